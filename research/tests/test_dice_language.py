"""DiceSGD on a language model: the whole study on a tiny one, and the quick study where the weights are."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from small_llama import TOKENS, speaker

from discreet.core.check import Refused
from research.reproductions import Bench, dice_language, results
from research.reproductions.dice_language import DRAWN, Size, language
from research.reproductions.experiment import Experiment, Outcome
from research.reproductions.results import perform
from research.tasks import e2e
from research.tasks.smollm2 import SmolLM2

SMALL = Size(train=40, test=12, batch=20, epochs=1, spoken=3, vocabulary=len(TOKENS))


def texts(split: str, *, data_dir: str | None = None) -> e2e.Texts:
    places = 30 if split == "train" else 12
    return {f"name[{split} {i}]": ["A is at the end.", "The one at the end!"] for i in range(places)}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A tiny random model in the place of SmolLM2, made texts in the place of E2E."""
    known = speaker()
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    monkeypatch.setattr(e2e, "texts", texts)
    monkeypatch.setattr(SmolLM2, "load", staticmethod(lambda vocabulary=0: known))
    monkeypatch.setattr(dice_language, "QUICK", SMALL)
    return tmp_path


def bench(folder: Path) -> Bench:
    return Bench(quick=True, seeds=(0,), folder=folder / "runs")


def check_rows(found: Outcome) -> None:
    rows = {row.setting: row for row in found.rows}
    assert list(rows)[:3] == ["SmolLM2, no fine-tuning", "without privacy", "DPSGD-GC"]
    assert rows["SmolLM2, no fine-tuning"].certified == 0
    assert rows["without privacy"].certified == math.inf
    for name in ("DPSGD-GC", "DiceSGD, certified", "two-level", "automatic (AUTO-S)"):
        certified = rows[name].certified
        assert certified is not None
        assert 7.9 < certified <= 8
    drawn = rows[DRAWN]
    assert drawn.claimed == 8
    assert drawn.certified is not None
    assert drawn.certified > 100  # what the paper's noise proves, beside what it claims
    assert (rows["DPSGD-GC"].paper, drawn.paper, rows["without privacy"].paper) == (56.8, 62.6, 70.4)
    losses = {curve.name: curve.y for curve in found.figures[0].curves}
    assert losses["without privacy"][2] < losses["without privacy"][0]
    assert losses["DiceSGD, certified"][2] != losses["DPSGD-GC"][2]


def test_the_study_on_a_tiny_model(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row has its epsilons; the record names no place; what is kept is not trained again."""
    experiment = Experiment(
        name="dice-e2e",
        paper="004",
        artefact="Table 3",
        what="",
        minutes_quick=1,
        minutes_full=1,
        run=language,
    )
    record = perform(experiment, bench(tiny), command="discreet reproduce dice-e2e")
    check_rows(record.outcome)
    text = results.write(record, tiny / "results").read_text(encoding="utf-8")
    kept = sorted((tiny / "runs" / "values").iterdir())
    assert len(kept) == len(record.outcome.rows)
    assert not any(str(tiny) in line for line in (text, *(file.read_text("utf-8") for file in kept)))

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(dice_language._Study, "_train", never)
    assert language(bench(tiny)) == record.outcome
    for file in kept:  # the control: without them there is something to train
        file.unlink()
    with pytest.raises(AssertionError, match="trained again"):
        language(bench(tiny))


def test_the_rate_warms_up_and_falls() -> None:
    size = Size(train=2000, test=1, batch=100, epochs=2, spoken=1)
    rates = [size.rate_at(step) for step in range(size.steps)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert np.all(np.diff(rates[4:]) < 0)
    assert 0 < rates[-1] < 0.05


@pytest.mark.slow
def test_the_quick_study_with_the_real_model(tmp_path: Path) -> None:
    try:
        SmolLM2.load()
        e2e.texts("test")
    except Refused as missing:
        pytest.skip(str(missing))
    found = language(bench(tmp_path))
    rows = {row.setting: row for row in found.rows}
    losses = {curve.name: curve.y for curve in found.figures[0].curves}
    assert losses["without privacy"][2] < losses["without privacy"][0] < 4
    assert (rows["SmolLM2, no fine-tuning"].ours or 0) >= 0
