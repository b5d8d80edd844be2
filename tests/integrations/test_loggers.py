"""Loggers see the step, the certified epsilon and what the user says is public."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import loop
from discreet import Refused
from discreet.integrations.loggers import EPSILON, PublicLog, TensorBoard


class Kept:
    """The protocol in three lines: Weights & Biases and MLflow need no more."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.seen.append((step, dict(values)))


def test_each_step_with_its_epsilon() -> None:
    run, kept = loop.private(), Kept()
    log = PublicLog(run, kept)
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            log.step(test_accuracy=0.5)
    assert [step for step, _ in kept.seen] == list(range(1, loop.STEPS + 1))
    assert kept.seen[-1][1] == {EPSILON: run.plan.certificate().epsilon, "test_accuracy": 0.5}


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra loggers")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = loop.private()
    log = PublicLog(run, TensorBoard(tmp_path))
    loop.train(run, most=2)
    log.step(test_accuracy=0.25)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {EPSILON, "test_accuracy"}
    (event,) = read.Scalars(EPSILON)
    assert (event.step, event.value) == (2, pytest.approx(run.spent().certified.epsilon))


def test_a_log_needs_a_logger() -> None:
    with pytest.raises(Refused, match="at least one logger"):
        PublicLog(loop.private())
