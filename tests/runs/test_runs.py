"""Runs: from settings to a directory that holds everything and tells nothing private."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discreet import runs
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.errors import RunStopped
from discreet.core.relation import Neighbouring
from discreet.data import DATASETS, MODELS, build, load, targets
from discreet.methods import METHODS
from discreet.runs import RunConfig, RunFolder, RunProgress, complete, load_config, load_result, plan_of, train
from discreet.runs.budget import Budget, BudgetLimit
from discreet.runs.defaults import learning_rate_of, settle
from discreet.runs.scoring import measure
from discreet.stages.sampling import FixedSize, TruncatedPoisson
from discreet.training.noise_keys import RESTARTED, NoiseKeys

SEEDS = 5


def config(out: Path | str = "unused", **settings: Any) -> RunConfig:
    usual: dict[str, Any] = {
        "model": "softmax",
        "steps": 12,
        "batch": 64,
        "noise": 1.0,
        "delta": 1e-5,
        "eval_every": 4,
        "seed": 3,
    }
    if "epsilon" in settings:
        del usual["noise"]
    if "epochs" in settings:
        del usual["steps"]
    return RunConfig(out=str(out), **{**usual, **settings})


# A run directory ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[runs.RunResult, list[RunProgress], RunFolder]:
    heard: list[RunProgress] = []
    directory = tmp_path_factory.mktemp("runs") / "deep" / "a"
    result = train(config(directory, epsilon=2.0), on_progress=heard.append)
    return result, heard, RunFolder(directory)


Done = tuple[runs.RunResult, list[RunProgress], RunFolder]


def test_the_directory_is_complete(done: Done) -> None:
    _, _, folder = done
    assert {path.name for path in folder.directory.iterdir()} == {
        *("plan.json", "run.json", "metrics.jsonl", "ledger.jsonl", "checkpoint"),
        *("model.pt", "result.json", "privacy-statement.md"),
    }


def test_what_a_run_says_about_itself(done: Done) -> None:
    result, _, folder = done
    facts = json.loads(folder.run.read_text())
    assert RunConfig.from_json(facts["config"]) == load_config(folder.directory)
    assert facts["data"]["checksum"] == load("digits").checksum
    assert facts["seed"] == 3
    assert facts["randomness"] == "seeded: not private"
    assert set(facts["versions"]) == {"python", "discreet", "torch", "numpy", "scipy"}
    assert "command" in facts
    plan = json.loads(folder.plan.read_text())
    assert plan["digest"] == read(folder.ledger).header["plan"]
    assert plan["horizon"]["records"] == 1437
    assert load_result(folder.directory) == result


def test_progress_is_told_step_by_step(done: Done) -> None:
    result, heard, _ = done
    assert [news.step for news in heard] == list(range(1, 13))
    assert [news.step for news in heard if news.accuracy is not None] == [4, 8, 12]
    assert [point[0] for point in result.curve] == [4, 8, 12]
    epsilons = [point[2] for point in result.curve]
    assert epsilons == sorted(epsilons)
    assert 1.98 < epsilons[-1] == result.spent.certified.epsilon <= 2.0
    assert result.steps == 12
    assert (result.lost, result.resumes) == (0, 0)


def test_nothing_private_is_logged(done: Done) -> None:
    """Accuracies are of the unprotected test records; no loss, norm, batch size or training accuracy."""
    _, _, folder = done
    for line in folder.metrics.read_text().splitlines():
        assert set(json.loads(line)) == {*("step", "test_accuracy", "test_accuracy_averaged", "epsilon", "delta")}
    entries = [json.loads(line)["body"] for line in folder.ledger.read_text().splitlines()[1:]]
    assert all(set(entry) == {"step", "event", "note"} for entry in entries)
    assert all(set(entry["note"]) <= {"noise", "sampling", "seeded", "public"} for entry in entries)


def test_the_model_is_what_was_evaluated(done: Done) -> None:
    result, _, folder = done
    task = load("digits")
    model = build("softmax", shape=task.shape, classes=10)
    model.load_state_dict(torch.load(folder.model, weights_only=True))
    assert measure(model, task.test)[0] == result.test_accuracy == result.averaged_accuracy


def test_an_existing_run_is_not_overwritten(done: Done) -> None:
    _, _, folder = done
    with pytest.raises(Refused, match="which holds one"):
        train(config(folder.directory))


def test_a_finished_run_is_not_run_again(done: Done) -> None:
    result, _, folder = done
    heard: list[RunProgress] = []
    before = folder.ledger.read_bytes()
    assert train(load_config(folder.directory), resume=True, on_progress=heard.append) == result
    assert heard == []
    assert folder.ledger.read_bytes() == before


# The statement --------------------------------------------------------------------------------------------


def test_a_seeded_run_says_that_it_is_not_private(done: Done) -> None:
    result, _, folder = done
    assert folder.statement.read_text() == result.statement
    assert "NOT private" in result.statement
    assert "seeded: not private" in result.statement


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> runs.RunResult:
    settings = config(tmp_path_factory.mktemp("real") / "b", epsilon=2.0, seed=None, average=0)
    return train(settings)


@pytest.mark.parametrize(
    "said",
    [
        "epsilon 2.00** at delta 1e-05",
        "| unit | one record",
        "add/remove: the same data with and without any one record",
        "| epsilon, certified | 2.00, by PLD accounting |",
        "| epsilon, claimed by the method's paper | no claim",
        "Poisson: each record joins each step independently with probability 0.0445372",
        "Gaussian, ",
        "12 charged of 12 planned",
        "keyed by the operating system",
        "floating-point",
        "sampled independently",
        "evaluation records",
        "unprotected",
        "hyper-parameters",
        "running time",
    ],
)
def test_the_statement_says_what_a_reader_needs(real: runs.RunResult, said: str) -> None:
    assert said in real.statement
    assert "NOT private" not in real.statement
    assert "resumed" not in real.statement


def test_two_runs_keyed_by_the_operating_system_share_nothing(real: runs.RunResult, tmp_path: Path) -> None:
    again = train(config(tmp_path / "c", epsilon=2.0, seed=None, average=0))
    facts = [json.loads(RunFolder(r.directory).run.read_text())["starts"][0] for r in (real, again)]
    assert facts[0]["noise"] != facts[1]["noise"]
    assert facts[0]["sampling"] != facts[1]["sampling"]
    one, other = (torch.load(RunFolder(r.directory).model, weights_only=True) for r in (real, again))
    assert not torch.equal(one["1.weight"], other["1.weight"])
    assert real.averaged_accuracy is None
    assert real.test_accuracy == real.accuracy


def test_no_noise_is_said_in_words(tmp_path: Path) -> None:
    result = train(config(tmp_path / "d", noise=0.0, steps=2, seed=None))
    assert math.isinf(result.spent.certified.epsilon)
    assert "no bound on epsilon is proven" in result.statement
    assert load_result(tmp_path / "d") == result
    assert json.loads(RunFolder(tmp_path / "d").result.read_text())["spent"]["certified"]["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampling": "fixed-size"}, "replace-one: the same data with any one record exchanged"),
        ({"sampling": "balls-in-bins", "epochs": 1}, "each record joins one step of every epoch"),
        ({"sampling": "truncated-poisson", "cap": 90}, "batches cut to 90 records"),
        ({"sampling": "full-batch", "steps": 2, "batch": None}, "all records in every step"),
        ({"method": "adaptive-quantile", "parameters": (("quantile", 0.6),)}, "quantile=0.6"),
        ({"method": "dp-ftrl", "parameters": (("bands", 3),)}, "always at the same place"),
        ({"method": "bandmf", "parameters": (("bands", 2),)}, "one of 2 parts, which take turns"),
    ],
)
def test_other_samplers_and_methods(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    result = train(config(tmp_path / "e", **settings))
    assert said in result.statement
    task = load("digits")
    plan = plan_of(complete(config(tmp_path / "e", **settings)), task)
    assert read(RunFolder(tmp_path / "e").ledger).charge().certified == plan.charge().certified
    assert result.spent.certified.epsilon == plan.certificate().epsilon


# Interruptions --------------------------------------------------------------------------------------------


class Stop:
    """Ctrl-C while the loss of the n-th micro-batch is computed."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        self.left -= torch.is_grad_enabled()  # evaluations do not count
        if self.left < 0:
            raise KeyboardInterrupt
        return F.cross_entropy(*args, **kwargs)


def interrupted(settings: RunConfig, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop(at)

    class Functional:
        cross_entropy = staticmethod(stop)

    with monkeypatch.context() as patch:
        patch.setattr(targets, "F", Functional)
        with pytest.raises(KeyboardInterrupt):
            train(settings, resume=RunFolder(settings.out).run.exists())


@pytest.mark.parametrize("seed", [None, 3])
def test_control_c_saves_and_a_resumed_run_loses_nothing(
    tmp_path: Path, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path / "f", epsilon=2.0, seed=seed)
    interrupted(settings, 5, monkeypatch)
    interrupted(settings, 4, monkeypatch)
    result = train(load_config(tmp_path / "f"), resume=True)
    assert (result.steps, result.lost, result.resumes) == (12, 0, 2)
    assert result.spent.certified.epsilon <= 2.0
    assert "resumed 2 times" in result.statement
    starts = json.loads(RunFolder(tmp_path / "f").run.read_text())["starts"]
    assert len({start["noise"] for start in starts}) == 3
    assert ("NOT private" in result.statement) == (seed is not None)
    assert [point[0] for point in result.curve] == [4, 8, 12]


def test_a_budget_pays_for_one_factorisation_of_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Correlated noise whose keys are lost begins anew at the full price, which nobody has taken from the budget."""
    budget = Budget.create(tmp_path / "budget.jsonl", BudgetLimit(epsilon=2.0, delta=1e-5))
    settings = config(tmp_path / "g", epsilon=2.0, seed=None, method="dp-ftrl", budget=str(budget.path))
    interrupted(settings, 5, monkeypatch)
    ledger = RunFolder(tmp_path / "g").ledger
    released = len(read(ledger).entries)
    NoiseKeys.path_of(ledger).unlink()
    for _ in range(2):
        with pytest.raises((Refused, RunStopped), match=r"the keys of the noise next to .* got none: they were lost"):
            train(settings, resume=True)
    assert [RESTARTED in entry.note for entry in read(ledger).entries] == [False] * released + [True]
    assert len(budget.read().entries) == 1


def test_a_resumed_seeded_run_differs_from_one_in_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are derived from the seed and the number of resumes: repeatable, never repeated."""
    for name in ("g", "h"):
        interrupted(config(tmp_path / name), 5, monkeypatch)
        train(config(tmp_path / name), resume=True)
    train(config(tmp_path / "i"))
    weights = [torch.load(tmp_path / name / "model.pt", weights_only=True)["1.weight"] for name in "ghi"]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_other_settings_are_refused_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path / "j")
    interrupted(settings, 3, monkeypatch)
    for change in ({"noise": 2.0}, {"learning_rate": 9.0}, {"seed": 4}, {"batch": 32}, {"model": "mlp"}):
        with pytest.raises(Refused, match=f"{next(iter(change))}=.*as the run began"):
            train(dataclasses.replace(settings, **change), resume=True)
    free = dataclasses.replace(settings, micro_batch=7, eval_every=6, checkpoint_every=2)
    assert train(free, resume=True).steps == 12


def test_what_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="train without resume"):
        train(config(tmp_path / "nowhere"), resume=True)
    settings = config(tmp_path / "k")
    interrupted(settings, 8, monkeypatch)
    folder = RunFolder(tmp_path / "k")
    kept = folder.checkpoint.read_bytes()
    folder.checkpoint.unlink()
    with pytest.raises(Refused, match="a ledger with charges and no checkpoint"):
        train(settings, resume=True)
    folder.checkpoint.write_bytes(kept)
    folder.ledger.unlink()
    with pytest.raises(Refused, match="a checkpoint without its ledger"):
        train(settings, resume=True)


@pytest.mark.parametrize("torn", [None, b"", b'{"body":{"for', "header"])
def test_a_run_that_never_charged_begins_again(tmp_path: Path, torn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its first file and its first checkpoint: nothing was spent, so nothing is lost."""
    settings = config(tmp_path / "l")
    interrupted(settings, 0, monkeypatch)
    folder = RunFolder(tmp_path / "l")
    folder.checkpoint.unlink()
    if torn is None:
        folder.ledger.unlink()
    elif torn != "header":
        folder.ledger.write_bytes(torn)
    assert train(settings, resume=True).steps == 12


def test_a_torn_line_of_the_metrics_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path / "m")
    interrupted(settings, 9, monkeypatch)
    folder = RunFolder(tmp_path / "m")
    folder.metrics.write_text(folder.metrics.read_text() + '{"step": 9, "test_acc')
    result = train(settings, resume=True)
    assert [point[0] for point in result.curve] == [4, 8, 12]


# Settings -------------------------------------------------------------------------------------------------


def test_settings_survive_json() -> None:
    settings = config(method="adaptive-quantile", parameters=(("quantile", 0.4), ("clip", 0.1)))
    assert RunConfig.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    with pytest.raises(Refused, match="colour"):
        RunConfig.from_json({**settings.to_json(), "colour": "red"})


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"delta": 1.0}, "delta"),
        ({"method": "magic"}, "method to be one of dp-sgd"),
        ({"sampling": "shuffle"}, "sampling to be one of"),
        ({"noise": None}, "either epsilon or noise"),
        ({"epsilon": 1.0, "noise": 1.0}, "either epsilon or noise"),
        ({"epsilon": -1.0}, "epsilon > 0"),
        ({"optimizer": "lion"}, "optimizer to be one of sgd, adam"),
        ({"relation": "zero-out"}, "relation to be one of"),
        ({"epochs": 1, "steps": 1}, "either epochs or steps"),
        ({"cap": 9}, "cap with truncated-poisson"),
        ({"sampling": "truncated-poisson"}, "cap with truncated-poisson"),
        ({"learning_rate": 0.0}, "learning_rate > 0"),
        ({"weight_decay": -1.0}, "weight_decay >= 0"),
        ({"eval_every": 0}, "eval_every"),
        ({"learning_rate": 1e39}, "learning_rate <= 1e\\+30"),
        ({"average": 1.0}, "average"),
        ({"average": -0.5}, "average"),
        ({"micro_batch": 0}, "micro_batch"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        config(**wrong)


def test_delta_and_out_have_no_default() -> None:
    with pytest.raises(TypeError, match="delta"):
        RunConfig(out="x", epsilon=1.0)  # type: ignore[call-arg]


def test_parameters_that_the_method_does_not_take_are_refused() -> None:
    with pytest.raises(Refused, match=r"parameters of dp-sgd \(clip\), got gamma"):
        complete(config(parameters=(("gamma", 1.0),)))


def test_defaults_are_written_out() -> None:
    full = complete(RunConfig(out="x", delta=1e-5, epsilon=3.0))
    assert (full.model, full.optimizer, full.relation) == ("cnn-digits", "sgd", "add/remove")
    assert None not in (full.batch, full.steps, full.momentum, full.average)
    assert "clip" in dict(full.parameters)
    assert complete(full) == full
    kept = complete(RunConfig(out="x", delta=1e-5, epsilon=3.0, epochs=2, parameters=(("clip", 7.0),)))
    assert (kept.epochs, kept.steps, kept.parameters) == (2, None, (("clip", 7.0),))
    assert complete(config(method="dp-adam")).optimizer == "adam"
    assert complete(config(sampling="fixed-size")).relation == "replace-one"


def test_the_learning_rate_follows_the_bound() -> None:
    """A record moves the model as far under every clip; what the user says stands."""
    task = load("digits")
    rates = []
    for clip in (0.1, 0.4):
        full = complete(config(parameters=(("clip", clip),)))
        rates.append(learning_rate_of(full, plan_of(full, task)) * clip)
    assert rates[0] == pytest.approx(rates[1])
    assert learning_rate_of(complete(config(learning_rate=0.3)), plan_of(full, task)) == 0.3


@pytest.mark.parametrize("data", [*DATASETS, "own.npz"])
def test_every_dataset_has_defaults_that_fit_it(data: str) -> None:
    full = complete(RunConfig(out="x", delta=1e-5, noise=1.0, data=data))
    assert full.model in MODELS
    assert (full.epochs is None) != (full.steps is None)


def test_full_batches_are_all_records_and_nothing_else() -> None:
    task = load("digits")
    whole = complete(RunConfig(out="x", delta=1e-5, noise=1.0, steps=2, sampling="full-batch"))
    assert plan_of(whole, task).horizon.rate == 1.0
    with pytest.raises(Refused, match="rate 1"):
        plan_of(complete(config(sampling="full-batch", batch=64)), task).charge()


def test_samplers_by_name() -> None:
    assert config(sampling="truncated-poisson", cap=9).sampler() == TruncatedPoisson(9)
    plan = plan_of(complete(config(sampling="fixed-size")), load("digits"))
    assert (plan.sampling, plan.relation) == (FixedSize(), Neighbouring.REPLACE_ONE)
    with pytest.raises(Refused, match="a relation that Poisson"):
        plan_of(complete(config(relation="replace-one")), load("digits"))


def public_for(method: str, folder: Path) -> str | None:
    """A file of public records, for the methods that learn from them."""
    if not METHODS[method].recipe().bounder.public_records:
        return None
    generator = np.random.default_rng(0)
    x, y = generator.random((40, 1, 8, 8), dtype=np.float32), generator.integers(0, 10, 40)
    np.savez(folder / "public.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return str(folder / "public.npz")


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.certified])
def test_every_certified_method_trains(method: str, tmp_path: Path) -> None:
    result = train(
        config(tmp_path / "n", method=method, epsilon=3.0, steps=3, public_records=public_for(method, tmp_path))
    )
    assert result.spent.certified.epsilon <= 3.0
    assert result.method == method


def test_data_of_ones_own(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"x_{part}": generator.normal(size=(80, 5)).astype(np.float32) for part in ("train", "test")}
    labels = {f"y_{part}": (arrays[f"x_{part}"].sum(1) > 0).astype(np.int64) for part in ("train", "test")}
    np.savez(tmp_path / "own.npz", **arrays, **labels)
    settings = config(tmp_path / "o", data=str(tmp_path / "own.npz"), classes=2, batch=10)
    with pytest.raises(Refused, match="a public number of records"):
        train(settings)
    assert not (tmp_path / "o").exists()
    result = train(dataclasses.replace(settings, records=100))  # public, and not the true number
    facts = json.loads((tmp_path / "o" / "run.json").read_text())
    assert facts["data"]["records"] == 100
    assert "80" not in json.dumps(facts["data"])
    assert "not computed" in facts["data"]["checksum"]
    assert result.steps == 12


def test_public_data_may_be_shown(tmp_path: Path) -> None:
    result = train(config(tmp_path / "p", public_data=True, steps=2))
    (line,) = (tmp_path / "p" / "metrics.jsonl").read_text().splitlines()
    assert 0 <= json.loads(line)["train_accuracy"] <= 1
    assert "declared public" in result.statement


# Accuracy -------------------------------------------------------------------------------------------------


def test_the_defaults_learn_digits(tmp_path: Path) -> None:
    """Seeded, so that a pass stays a pass."""
    result = train(RunConfig(out=str(tmp_path / "q"), delta=1e-5, epsilon=3.0, seed=0, eval_every=1000))
    assert result.test_accuracy > 0.92
    assert result.spent.certified.epsilon <= 3.0


@pytest.mark.slow
@pytest.mark.timeout(0)  # how long it takes depends on what else the machine does
def test_digits_at_epsilon_3_reaches_93_percent(tmp_path: Path) -> None:
    """Mean of five seeded runs; their spread is about 1 %."""
    found = [
        train(RunConfig(out=str(tmp_path / str(seed)), delta=1e-5, epsilon=3.0, eval_every=1000, seed=seed))
        for seed in range(SEEDS)
    ]
    assert all(result.spent.certified.epsilon <= 3.0 for result in found)
    assert sum(result.test_accuracy for result in found) / SEEDS >= 0.93


@pytest.mark.parametrize("method", METHODS)
def test_what_is_settled_stays_so(method: str, tmp_path: Path) -> None:
    """Else a comparison that goes on would take its own finished runs for others, and spend their budget again."""
    task = load("digits")
    public = public_for(method, tmp_path)
    asked = RunConfig(
        data="digits", method=method, noise=20.0, steps=2, delta=1e-5, out=str(tmp_path), public_records=public
    )
    config, plan = settle(asked, task)
    again, same = settle(RunConfig.from_json(config.to_json()), task)
    assert again == config
    assert same.digest == plan.digest


def test_the_best_checkpoint_is_chosen_by_public_records_only(tmp_path: Path) -> None:
    config = RunConfig(out=str(tmp_path / "a"), epsilon=3.0, delta=1e-4, steps=6, eval_every=1, keep_best=True, seed=0)
    unsteady = dataclasses.replace(config, model="softmax", learning_rate=50.0, batch=64, average=0.0)
    result = train(unsteady)
    assert result.test_accuracy == max(accuracy for _, accuracy, _ in result.curve)
    assert result.test_accuracy > result.curve[-1][1]  # the last one was not the best
    model = build("softmax", shape=(1, 8, 8), classes=10, seed=0)
    model.load_state_dict(torch.load(tmp_path / "a" / "model.pt", weights_only=True))
    assert measure(model, load("digits").test)[0] == result.test_accuracy
    hidden = dataclasses.replace(config, out=str(tmp_path / "b"), method="dpsgd-dc", model="softmax")
    hidden = dataclasses.replace(
        hidden, sampling="full-batch", batch=None, parameters=(("smoothness", 1.0),), learning_rate=0.1
    )
    with pytest.raises(Refused, match="iterates may all be seen"):
        train(hidden)
