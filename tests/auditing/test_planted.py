"""Canaries in an ordinary run: what they show stays below the certificate, and above it where noise is lost.

Keys come from the operating system; each audit is wrong with probability at most 1e-6.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from discreet.auditing.bounds import Guesses
from discreet.auditing.planted import ModelWithCanaries, RunAudit, _DataCanaries, _GradientCanaries, audit_training
from discreet.auditing.trainings import TrainingSetup
from discreet.core.check import Refused
from discreet.core.streams import Stream
from discreet.runs import RunConfig
from discreet.runs.audit_rows import CanaryKind

CONFIDENCE = 1 - 1e-6


def _config(**given: Any) -> RunConfig:
    usual = {"delta": 1e-6, "out": "", "model": "softmax", "noise": 1.0, "steps": 6, "average": 0.0}
    return RunConfig(**{**usual, **given})


def _lose_noise(patch: pytest.MonkeyPatch, factor: float) -> None:
    real = Stream.add_normal_
    patch.setattr(Stream, "add_normal_", lambda self, value, std: real(self, value, std * factor))


@pytest.mark.parametrize("method", ["dp-sgd", "per-layer", "adaptive-quantile", "random-freeze", "dp-adam"])
def test_a_run_stays_below_its_certificate(method: str) -> None:
    found = audit_training(_config(method=method), canaries=200, confidence=CONFIDENCE)
    assert 0 <= found.audited <= found.certified
    assert found.kind is CanaryKind.GRADIENT
    assert not found.independent


def test_many_canaries_count_as_trials_where_nothing_couples_them() -> None:
    found = audit_training(_config(noise=4.0), canaries=4000, confidence=CONFIDENCE)
    assert found.independent
    assert found.audited <= found.certified
    assert not audit_training(_config(method="adaptive-quantile", steps=1), canaries=4000).independent


def test_lost_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a twentieth of the noise, certified for the whole of it."""
    config = _config(noise=8.0)
    kept = audit_training(config, canaries=300)
    assert kept.audited <= kept.certified < 1
    _lose_noise(monkeypatch, 1 / 40)
    lost = audit_training(config, canaries=300)
    assert lost.audited > lost.certified


def test_a_canary_moves_its_own_coordinate_and_nothing_else() -> None:
    model = ModelWithCanaries(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 5)
    x, y = torch.randn(2, 4), torch.tensor([1, 0])
    mark, sign = torch.tensor([-1, 3]), torch.tensor([-1, 1])
    for index, touched in ((0, {"model.1.weight", "model.1.bias"}), (1, {"own.weight"})):
        model.zero_grad()
        _GradientCanaries._losses(model, (x, y, mark, sign))[index].backward()
        moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        assert moved == touched
    assert model.own.weight.grad is not None
    assert model.own.weight.grad.nonzero()[:, 0].tolist() == [3]


def test_canaries_are_there_as_their_coins_say() -> None:
    setup = TrainingSetup.of(_config())
    planted = _GradientCanaries(setup, 50, np.random.default_rng(1))
    marks = planted._data().tensors[2]
    assert (marks < 0).sum() == len(setup.task.train)
    assert sorted(marks[marks >= 0].tolist()) == np.flatnonzero(planted.there).tolist()


def test_replace_one_keeps_the_number_of_records() -> None:
    config = _config(sampling="fixed-size", batch=200)
    setup = TrainingSetup.of(config)
    for planted in (
        _GradientCanaries(setup, 40, np.random.default_rng(1)),
        _DataCanaries(setup, 40, np.random.default_rng(1)),
    ):
        assert len(planted._data()) == len(setup.task.train)
    found = audit_training(config, canaries=40)
    assert found.audited <= found.certified


def test_data_canaries_that_were_learned_score_higher(tmp_path: Path) -> None:
    """Random points with random labels, hardly any noise: what a model knows of a canary it has seen."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((300, 200)).astype(np.float32), rng.integers(0, 2, 300)
    path = tmp_path / "random.npz"
    np.savez(path, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    clip = (("clip", 10.0),)
    own = {"data": str(path), "classes": 2, "records": 200, "batch": 50, "parameters": clip}
    setup = TrainingSetup.of(_config(**own, steps=40, noise=1e-4, learning_rate=0.5, seed=1))
    planted = _DataCanaries(setup, 60, np.random.default_rng(2))
    scores = planted.train(None)
    assert len(scores) == len(planted.there) == 60
    assert roc_auc_score(planted.there, scores) > 0.75  # seeded


def test_only_data_canaries_where_the_last_iterate_alone_leaves() -> None:
    parameters = (("link", "softmax"), ("learning_rate", 1.0), ("radius", 5.0))
    config = _config(method="dpsgd-dc", parameters=parameters, sampling="full-batch", learning_rate=1.0, momentum=0.0)
    found = audit_training(config, canaries=60)
    assert found.kind is CanaryKind.DATA
    assert found.audited <= found.certified
    with pytest.raises(Refused, match="data canaries"):
        audit_training(config, kind=CanaryKind.GRADIENT, canaries=60)


def test_progress_is_told_step_by_step() -> None:
    told: list[tuple[int, int]] = []
    audit_training(_config(steps=4), canaries=20, on_step=lambda step, steps: told.append((step, steps)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_what_is_told_as_json() -> None:
    found = RunAudit(
        method="geodp",
        kind=CanaryKind.DATA,
        canaries=10,
        steps=3,
        certified=math.inf,
        claimed=None,
        audited=1.0,
        delta=1e-5,
        confidence=0.999,
        independent=False,
        guesses=Guesses(canaries=10, made=4, correct=4),
    )
    told = found.to_json()
    assert told["certified"] == "inf"
    assert told["tightness"] is None
    assert told["guesses"] == {"made": 4, "correct": 4}
    assert told["bound"] == "guesses of one run"
