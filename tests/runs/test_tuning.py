"""A search is charged once, before records are read, and shows nothing about K."""

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import discreet
from discreet.accounting.accountants import certify
from discreet.accounting.best_of_runs import TruncatedNegativeBinomial
from discreet.accounting.events import BestOfRuns, Gaussian
from discreet.accounting.ledger import Ledger, read
from discreet.core.check import Refused
from discreet.core.errors import RunStopped
from discreet.core.streams import Streams
from discreet.runs.budget import Budget, BudgetLimit
from discreet.runs.config import RunConfig
from discreet.runs.scoring import Scored
from discreet.runs.tuning import sweep
from discreet.runs.tuning.bill import TuneSettings, bill_of, candidate_config
from discreet.runs.tuning.scaling import scale_linearly
from discreet.runs.tuning.space import Choices, LogRange, Space
from discreet.training.noise_keys import RESTARTED, check_not_restarted

SPACE = {"learning_rate": LogRange(0.1, 10.0), "clip": (0.5, 1.0)}


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    file = tmp_path / "visits.npz"
    np.savez(file, x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:])
    own = {"data": str(file), "classes": 2, "records": 240, "model": "logistic"}
    return RunConfig(**own, epsilon=3.0, delta=1e-4, batch=60, steps=2, out=str(tmp_path / "tuned"))


def with_runs(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(TruncatedNegativeBinomial, "draw", lambda law, uniform: count)


def settings_of(config: RunConfig, **others: Any) -> TuneSettings:
    return TuneSettings(config=config, space=Space.of(SPACE), **others)


def test_the_bill_is_within_the_budget_for_every_combination_of_costs(config: RunConfig) -> None:
    space = Space.of({**SPACE, "batch": (30, 60)})
    settings = TuneSettings(config=config, space=space)
    bill = bill_of(settings)
    assert 2.9 < bill.certificate.epsilon <= 3.0
    assert len(bill.noises) == 4
    assert len(bill.event.candidates) == 3  # one for each batch, and the score; the clip changes no cost
    for batch in (30, 60):
        drawn = {"learning_rate": 1.0, "clip": 0.5, "batch": batch}
        run = candidate_config(settings, bill, drawn, "x")
        assert (run.batch, run.records) == (batch, 216)
        assert run.noise == bill.noises[("batch", batch), ("clip", 0.5)]


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("average", LogRange(0.5, 2.0)),
        ("average", LogRange(0.5, 0.99999)),  # draws are rounded to 1
        ("average", (0.9, 1.5)),
        ("momentum", (0.5, -1)),
        ("learning_rate", (1.0, 0)),
        ("learning_rate", ("a", "b")),
        ("weight_decay", (0.1, -0.1)),
        ("optimizer", ("sgd", "none")),
    ],
)
def test_values_that_no_run_takes_are_refused_before_the_charge(config: RunConfig, name: str, axis: Any) -> None:
    """They were refused when a candidate drew them: the whole budget was spent, and the search could not be ended."""
    with pytest.raises(Refused, match=f"{name}|optimizer"):
        discreet.tune(config, {name: axis}, workers=1)
    assert not Path(config.out).exists()


def test_a_search_that_its_budget_refused_may_ask_for_less(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says to lower epsilon, and the lower one was refused because of the settings of the first."""
    with_runs(monkeypatch, 1)
    file = tmp_path / "budget.json"
    Budget.create(file, BudgetLimit(epsilon=1.0, delta=1e-4))
    with pytest.raises(Refused, match="lower its epsilon"):
        discreet.tune(dataclasses.replace(config, budget=str(file)), SPACE, workers=1)
    less = dataclasses.replace(config, budget=str(file), epsilon=0.9)
    assert discreet.tune(less, SPACE, workers=1).certified.epsilon <= 0.9
    assert len(Budget(file).read().entries) == 1
    with pytest.raises(Refused, match="the settings of the search"):
        discreet.tune(dataclasses.replace(less, epsilon=0.8), SPACE, workers=1)


def test_an_unknown_model_is_refused_before_the_charge(config: RunConfig) -> None:
    with pytest.raises(Refused, match=r"a model of logistic.*got 'nosuch'"):
        discreet.tune(dataclasses.replace(config, model="nosuch"), SPACE, workers=1)
    assert not Path(config.out).exists()


def test_a_public_score_costs_nothing_and_needs_no_held_out_records(config: RunConfig) -> None:
    bill = bill_of(settings_of(config, held_out=0.0))
    assert (bill.sigma, bill.records, len(bill.event.candidates)) == (0.0, 240, 1)


def test_a_search_releases_the_chosen_run_and_one_charge(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with_runs(monkeypatch, 2)
    seen: list[Any] = []
    result = discreet.tune(config, SPACE, workers=1, on_progress=seen.append)
    record = read(Path(config.out) / "ledger.jsonl")
    assert [type(entry.event) for entry in record.entries] == [BestOfRuns]
    found = certify(record.charge(), delta=1e-4, relation=record.relation)
    assert found.epsilon == result.certified.epsilon <= 3.0
    assert result.candidates is None
    assert set(result.settings) == set(SPACE)
    assert all(isinstance(news, float) for news in seen)
    model = torch.load(result.directory / "model.pt", weights_only=True)
    assert model["1.weight"].shape == (1, 4)
    assert sweep.tune(config, SPACE).to_json() == result.to_json()  # it is read, not repeated


def files(directory: Path) -> list[tuple[str, int]]:
    """Names and sizes; a few numbers in the result and the statement have different lengths."""
    loose = ("result.json", "privacy-statement.md", "tune.json", "run.json", "lock")
    every = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(str(path.relative_to(directory)), 0 if path.name in loose else path.stat().st_size) for path in every]


def test_the_directory_is_the_same_for_few_runs_and_for_many(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left, keys = [], []
    for count in (1, 3):
        with_runs(monkeypatch, count)
        out = tmp_path / f"runs-{count}"
        result = discreet.tune(RunConfig(**{**vars(config), "out": str(out)}), SPACE, workers=1)
        left.append(files(out))
        keys.append(sorted(json.loads((out / "result.json").read_text())))
        assert "secret" in (out / "privacy-statement.md").read_text()
        assert result.candidates is None
    assert left[0] == left[1]
    assert keys[0] == keys[1]
    assert not any("hidden" in name for name, _ in left[0])


def test_a_crash_is_resumed_with_the_same_k_and_nothing_is_charged_or_trained_twice(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_runs(monkeypatch, 3)
    trained: list[int] = []
    real = sweep.train_candidate

    def fails_once(order: Any, tell: Any) -> None:
        if order["index"] == 1 and not trained.count(1):
            trained.append(1)
            raise OSError("lost run-1 of 3")
        trained.append(order["index"])
        real(order, tell)

    monkeypatch.setattr(sweep, "train_candidate", fails_once)
    with pytest.raises(RunStopped, match="one that could not be") as stopped:
        discreet.tune(config, SPACE, workers=1)
    assert "run-1" not in str(stopped.value)
    assert "3" not in str(stopped.value.__cause__).replace(config.out, "")
    hidden = Path(config.out) / "hidden"
    assert stat.S_IMODE(hidden.stat().st_mode) == 0o700
    assert "run-1" in (hidden / "failure.txt").read_text()
    state = (hidden / "state.json").read_bytes()
    with_runs(monkeypatch, 50)  # would be drawn if K were drawn again
    monkeypatch.setattr(sweep._Sweep, "_release", lambda self, held, best, scores: (held, scores))
    held, scores = discreet.tune(config, SPACE, workers=1)  # type: ignore[misc]
    assert (hidden / "state.json").read_bytes() == state
    assert len(held.settings) == len(scores) == 3
    assert sorted(trained) == [0, 1, 1, 2]
    assert read(Path(config.out) / "ledger.jsonl").length == 1


def test_a_charged_search_without_its_draw_cannot_go_on(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with_runs(monkeypatch, 2)
    monkeypatch.setattr(sweep, "train_candidate", lambda order, tell: 1 / 0)
    with pytest.raises(RunStopped, match="one that could not be"):
        discreet.tune(config, SPACE, workers=1)
    (Path(config.out) / "hidden" / "state.json").unlink()
    with pytest.raises(Refused, match="its charge stays spent"):
        discreet.tune(config, SPACE, workers=1)


def test_other_settings_are_refused_in_the_directory_of_a_search(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_runs(monkeypatch, 1)
    discreet.tune(config, SPACE, workers=1)
    with pytest.raises(Refused, match="the settings of the search"):
        discreet.tune(config, SPACE, runs=9.0)


def test_a_search_charges_the_budget_before_it_reads_records(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    budget = Budget.create(tmp_path / "budget.json", BudgetLimit(epsilon=3.0, delta=1e-4))
    paid = RunConfig(**{**vars(config), "budget": str(budget.path)})
    with_runs(monkeypatch, 1)

    def reads(settings: RunConfig) -> None:
        assert len(budget.read().entries) == 1
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "load_task", reads)
        with pytest.raises(RunStopped):
            discreet.tune(paid, SPACE, workers=1)
    assert discreet.tune(paid, SPACE, workers=1).certified.epsilon <= 3.0
    assert len(budget.read().entries) == 1
    more = RunConfig(**{**vars(paid), "out": str(tmp_path / "second")})
    with pytest.raises(Refused, match="no record was read"):
        discreet.tune(more, SPACE, workers=1)
    assert not (tmp_path / "second" / "ledger.jsonl").exists()


def test_each_record_joins_a_part_by_its_own_coin(config: RunConfig) -> None:
    """Leave one out: the parts of the other records do not move when a record is added at the end."""
    from discreet.runs.defaults import load_task

    task = load_task(config)
    x, y = task.train.tensors
    less = type(task)(**{**vars(task), "train": torch.utils.data.TensorDataset(x[:-1], y[:-1])})
    for key in (bytes(32), bytes(range(32))):
        (whole, held), (fewer, fewer_held) = (sweep.split_task(one, 0.3, key) for one in (task, less))
        scored, fewer_scored = held.data, fewer_held.data
        assert len(whole.train) + len(scored) == 240
        assert 30 < len(scored) < 120
        both = (len(whole.train) - len(fewer.train), len(scored) - len(fewer_scored))
        assert both in ((1, 0), (0, 1))
        assert torch.equal(whole.train.tensors[0][: len(fewer.train)], fewer.train.tensors[0])
        assert torch.equal(scored.tensors[0][: len(fewer_scored)], fewer_scored.tensors[0])
        assert len(whole.test) == 0


def test_the_score_is_a_count_with_the_noise_that_is_charged() -> None:
    """2000 draws; a deviation off by 6 % fails with a false-alarm rate below 1e-3, and half the noise fails."""
    right, noise = torch.tensor([True] * 60 + [False] * 40), Streams.from_os().noise
    noisy_count = Scored(torch.utils.data.TensorDataset(right)).noisy_count
    draws = np.array([noisy_count(right, 3.0, noise) for _ in range(2000)])
    assert abs(draws.mean() - 10) < 4 * 3 / np.sqrt(2000)
    assert 0.94 < draws.std() / 3 < 1.06
    halved = np.array([noisy_count(right, 1.5, noise) for _ in range(2000)])
    assert not 0.94 < halved.std() / 3 < 1.06
    assert abs(noisy_count(right[:-1], 1e-12, noise) - noisy_count(right, 1e-12, noise)) == pytest.approx(0.5)


def test_a_space_is_parsed_and_refused() -> None:
    space = Space.parse(["learning-rate=0.1..10", "clip=0.1,1", "method=dp-sgd,psac", "batch=64"])
    assert space == Space.of(
        {"learning_rate": LogRange(0.1, 10.0), "clip": (0.1, 1), "method": ("dp-sgd", "psac"), "batch": (64,)}
    )
    assert dict(space.axes)["batch"] == Choices((64,))
    for words, match in (
        (["clip=0.1..1"], "a range for learning_rate"),
        (["clip"], "NAME=VALUES"),
        (["learning_rate=1..a"], r"two numbers low\.\.high"),
        (["learning_rate=2..1"], "low < high"),
        (["clip=1", "clip=2"], "different settings"),
        (["epochs=1", "steps=2"], "epochs or steps"),
    ):
        with pytest.raises(Refused, match=match):
            Space.parse(words)


def test_what_a_search_cannot_pay_for_is_refused(config: RunConfig) -> None:
    for changes, match in (
        ({"seed": 1}, "secret randomness"),
        ({"epsilon": None, "noise": 1.0}, "epsilon"),
        ({"sampling": "fixed-size"}, "Poisson sampling with held-out"),
        ({"method": "dpsgd-dc"}, "which its certificate uses"),
    ):
        with pytest.raises(Refused, match=match):
            settings_of(RunConfig(**{**vars(config), **changes}))
    with pytest.raises(Refused, match="mean > 1"):
        settings_of(config, runs=1.0)


def test_the_linear_scaling_rule_takes_no_seed(config: RunConfig) -> None:
    with pytest.raises(Refused, match="secret randomness"):
        scale_linearly(dataclasses.replace(config, seed=7), (0.5, 2.0))


def test_a_run_that_is_paid_once_may_not_begin_anew(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.jsonl", {"relation": "add/remove", "delta": 1e-5, "plan": "p"}) as ledger:
        ledger.append(Gaussian(1.0), step=0)
        check_not_restarted(tmp_path / "ledger.jsonl")
        ledger.append(Gaussian(1.0), step=1, note={RESTARTED: "the keys of the noise were lost"})
    with pytest.raises(Refused, match="they were lost"):
        check_not_restarted(tmp_path / "ledger.jsonl")


def test_the_linear_scaling_rule_stays_within_the_budget(config: RunConfig) -> None:
    found = scale_linearly(config, (0.5, 2.0))
    assert 2.9 < found.certified.epsilon <= 3.0
    assert len(found.trials) == 4
    record = read(Path(config.out) / "ledger.jsonl")
    assert certify(record.charge(), delta=1e-4, relation=record.relation).epsilon == found.certified.epsilon
    single = found.run.spent.certified.epsilon
    assert single < found.certified.epsilon


_PROGRAM = """
import sys
import discreet
from discreet.accounting.best_of_runs import TruncatedNegativeBinomial
TruncatedNegativeBinomial.draw = lambda law, uniform: 4
config = discreet.RunConfig.from_json(__import__("json").loads(sys.argv[1]))
discreet.tune(config, {"learning_rate": discreet.LogRange(0.1, 10.0)}, workers=2)
"""


@pytest.mark.slow
def test_a_killed_search_goes_on_with_its_draw_and_its_charge(config: RunConfig) -> None:
    long = RunConfig(**{**vars(config), "steps": 60})
    command = [sys.executable, "-c", _PROGRAM, json.dumps(long.to_json())]
    process = subprocess.Popen(command, env=dict(os.environ), start_new_session=True)
    state = Path(long.out) / "hidden" / "state.json"
    end = time.monotonic() + 120
    while not any((Path(long.out) / "hidden").glob("run-*/ledger.jsonl")) and time.monotonic() < end:
        time.sleep(0.05)
    drawn = state.read_bytes()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert state.read_bytes() == drawn
    subprocess.run(command, env=dict(os.environ), check=True, timeout=240)
    assert not state.exists()
    assert read(Path(long.out) / "ledger.jsonl").length == 1
    assert (Path(long.out) / "result.json").exists()
