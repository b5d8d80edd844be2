"""Presets: settings by name and budget; what the user gives wins; runs without them are as before."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from discreet import runs
from discreet.core.check import Refused
from discreet.data import DATASETS, MODELS, load
from discreet.data.features import FEATURES, needs_public
from discreet.data.features.extractor import raw_records
from discreet.runs import training
from discreet.runs.config import SCHEDULES, learning_rate_factor
from discreet.runs.making import scale_learning_rate
from discreet.runs.presets import DEFAULTS, PRESETS, Preset, usual
from discreet.training.private import Private

RESULTS = Path(__file__).parents[2] / "results" / "records.json"


def config(**settings: object) -> runs.RunConfig:
    held = {"data": "digits", "delta": 1e-5, "out": "unused", "epsilon": 3.0, **settings}
    return runs.RunConfig(**held)  # type: ignore[arg-type]


def test_every_preset_names_what_exists() -> None:
    for preset in PRESETS:
        assert preset.data in ("", *DATASETS)
        assert [epsilon for epsilon, _ in preset.budgets] == sorted(epsilon for epsilon, _ in preset.budgets)
        for _, known in preset.budgets:
            assert known.model in MODELS
            assert known.schedule in SCHEDULES
            assert set(known.features) <= set(FEATURES)
            assert needs_public(known.features) == (known.public_records is not None)
            assert known.public_records != preset.data
    names = [(preset.data, preset.name) for preset in PRESETS]
    assert len(names) == len(set(names))


def test_a_preset_fills_in_what_the_user_left_out() -> None:
    complete = runs.complete(config(data="fashion-mnist", preset="best", epsilon=1.0))
    assert complete.features == ("scattering", "patches")
    assert complete.public_records == "cifar10"
    assert (complete.model, complete.batch, complete.schedule) == ("head", 8192, "linear")
    given = runs.complete(config(data="fashion-mnist", preset="best", epsilon=1.0, batch=100, schedule="cosine"))
    assert (given.batch, given.schedule, given.steps) == (100, "cosine", complete.steps)
    assert runs.complete(complete) == complete


def test_the_settings_are_those_of_the_largest_budget_below() -> None:
    small, large = DEFAULTS["digits"], DEFAULTS["adult"]
    preset = Preset(name="x", data="digits", about="", budgets=((1.0, small), (3.0, large)))
    assert [preset.at(epsilon) for epsilon in (0.5, 1.0, 2.9, 3.0, 8.0)] == [small, small, small, large, large]


def test_a_preset_for_any_records_takes_its_batch_and_reach_from_their_number() -> None:
    table = config(data="own.npz", classes=2, preset="table", epsilon=1.0, records=10_000)
    assert (usual(table).batch, usual(table).steps) == (1250, 100)
    image = config(data="own.npz", classes=2, preset="image", epsilon=3.0, records=1700)
    assert usual(image).reach == 3.0
    assert usual(dataclasses.replace(image, records=60_000)).reach == 35.0
    with pytest.raises(Refused, match="the public number of records"):
        usual(dataclasses.replace(table, records=None))


def test_a_table_with_few_records_learns_more_slowly() -> None:
    own = config(
        data="own.csv", label="pay", schema='{"age": {"bounds": [0, 9]}, "pay": {"bounds": [0, 9]}}', epsilon=3.0
    )
    few, many = (dataclasses.replace(own, records=records) for records in (1200, 40_000))
    assert [usual(one).reach for one in (few, many)] == pytest.approx([3.6, 30.0])
    few, many = (dataclasses.replace(one, task="regression") for one in (few, many))
    assert [usual(one).reach for one in (few, many)] == pytest.approx([1.2, 5.2])


def test_unknown_presets_and_budgets_without_epsilon_are_refused() -> None:
    with pytest.raises(Refused, match=r"a preset for digits \(best"):
        runs.complete(config(preset="no such preset"))
    with pytest.raises(Refused, match="epsilon with a preset"):
        runs.complete(config(preset="best", epsilon=None, noise=1.0))
    with pytest.raises(Refused, match="schedule to be one of"):
        config(schedule="sudden")


def test_private_records_are_refused_as_public_ones() -> None:
    for settings in ({"preset": "best", "public_records": "digits"}, {"features": ("scattering",)}):
        with pytest.raises(Refused, match=r"public records"):
            runs.train(config(**settings))


def test_settings_without_presets_keep_their_digest() -> None:
    stored = runs.complete(config()).to_json()
    assert not {"preset", "features", "schedule", "public_records"} & stored.keys()
    for settings in ({"preset": "best"}, {"preset": "best", "features": (), "schedule": "constant"}):
        given = runs.complete(config(**settings))
        again = runs.RunConfig.from_json(json.loads(json.dumps(given.to_json())))
        assert runs.complete(again) == given
        assert (given.features == (), given.schedule) == ("features" in settings, settings.get("schedule", "linear"))


def test_a_certificate_for_the_last_iterate_keeps_its_learning_rate() -> None:
    parameters = (("link", "logistic"), ("features", 3.0), ("clip", 3.2), ("radius", 6.0), ("learning_rate", 0.79))
    hidden = config(data="adult", preset="best", method="dpsgd-dc", parameters=parameters, epsilon=1.0)
    assert runs.complete(hidden).schedule == "constant"
    assert runs.complete(config(data="adult", preset="best", epsilon=1.0)).schedule == "linear"  # control


def test_the_learning_rate_falls_to_zero() -> None:
    for schedule in ("linear", "cosine"):
        factors = [learning_rate_factor(schedule, step / 50) for step in range(51)]
        assert factors[0] == 1
        assert factors == sorted(factors, reverse=True)
        assert factors[-1] == pytest.approx(0, abs=1e-12)


def test_a_run_follows_its_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def watched(private: Private, settings: runs.RunConfig) -> None:
        scale_learning_rate(private, settings)
        rates.append(private.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(training, "scale_learning_rate", watched)
    given = {"out": str(tmp_path / "run"), "model": "head", "schedule": "linear", "steps": 5, "seed": 0}
    runs.train(config(**given, learning_rate=4.0, batch=100, micro_batch=200))
    assert sorted(set(rates), reverse=True) == pytest.approx([4.0, 3.2, 2.4, 1.6, 0.8])


def test_texts_of_an_npz_file_reach_the_encoder_as_bytes(tmp_path: Path) -> None:
    text = np.frombuffer(b"some words    ", np.uint8)[None].repeat(2, 0)
    np.savez(tmp_path / "own.npz", x_train=text, y_train=np.zeros(2, int), x_test=text, y_test=np.zeros(2, int))
    task = load(tmp_path / "own.npz", classes=2)
    assert raw_records(task, task.train.tensors[0]).numpy().tobytes() == text.tobytes()


@pytest.mark.skipif(not RESULTS.is_file(), reason="results/records.json is written by python -m research.records run")
def test_presets_are_the_best_of_their_trials_and_those_that_were_measured() -> None:
    held = json.loads(RESULTS.read_text())["records"]
    measured = {name: record for name, record in held.items() if "settings" in record}
    assert measured
    for name, record in measured.items():
        known = usual(config(data=record["data"], preset=record["preset"], epsilon=record["epsilon"]))
        best = max(record["choice"]["trials"], key=lambda trial: trial["accuracy"])
        assert (known.clip, known.reach) == pytest.approx((best["clip"], best["reach"])), name
        assert record["settings"]["reach"] == known.reach, name
