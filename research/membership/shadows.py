"""Target models and shadow models of membership inference: who is trained on which records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from discreet.auditing.bounds import Flags
from discreet.auditing.trainings import OnStep, TrainingSetup, fit, log_probabilities
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.runs.defaults import load_task

if TYPE_CHECKING:
    from discreet.data import Task
    from discreet.runs import RunConfig


@final
@dataclass(frozen=True, kw_only=True)
class RecordSplit:
    """Candidates of the target models and the pool of the shadow models; they share no record."""

    task: Task
    candidates: tuple[Tensor, Tensor]
    pool: tuple[Tensor, Tensor]
    size: int

    @staticmethod
    def of(task: Task, size: int | None) -> RecordSplit:
        x, y = task.train.tensors
        found = len(x) // 4 if size is None else size
        check.require(
            2 <= found <= len(x) // 4,
            f"a size of at most a quarter of the {len(x)} records",
            found,
            "members and non-members of targets and shadows are disjoint",
        )
        # The same in all calls: candidates must not be chosen by looking at results.
        order = torch.from_numpy(np.random.default_rng(len(x)).permutation(len(x)))
        first, rest = order[: 2 * found], order[2 * found :]
        return RecordSplit(
            task=dataclasses.replace(task, records=found),
            candidates=(x[first], y[first]),
            pool=(x[rest], y[rest]),
            size=found,
        )


def load_whole(config: RunConfig) -> Task:
    """The task with its test records added to the training records."""
    task = load_task(config)
    pairs = zip(task.train.tensors, task.test.tensors, strict=True)
    joined = TensorDataset(*(torch.cat(pair) for pair in pairs))
    return dataclasses.replace(task, train=joined, records=len(joined))


@final
@dataclass(frozen=True)
class Outputs:
    """A model's log-probabilities after a step: on records it learned and on others, and on the candidates."""

    answers: Tensor  # [n, classes]
    labels: Tensor
    members: Flags
    on_candidates: Tensor


def seeded(setup: TrainingSetup, seed: int | None) -> TrainingSetup:
    return dataclasses.replace(setup, config=dataclasses.replace(setup.config, seed=seed))


def shadow(
    setup: TrainingSetup, split: RecordSplit, number: int, steps: Sequence[int], on_step: OnStep | None
) -> list[Outputs]:
    """A model trained on `size` records of the pool; as many others of it are not members."""
    x, y = split.pool
    seed = None if setup.config.seed is None else [setup.config.seed, number]
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))[: 2 * split.size])
    members = np.arange(2 * split.size) < split.size
    return _train(setup, split, (x[order], y[order]), members, (1, number), steps, on_step)


def target(
    setup: TrainingSetup, split: RecordSplit, number: int, steps: Sequence[int], on_step: OnStep | None
) -> list[Outputs]:
    """A model trained on the candidates whose coin says so; a seeded target flips seeded coins.

    Under replace-one a coin chooses one of two candidates, which keeps the number of records fixed.
    """
    seed = None if setup.config.seed is None else [setup.config.seed, number, 2]
    members = np.random.default_rng(seed).random(2 * split.size) < 0.5
    if setup.plan.relation is Neighbouring.REPLACE_ONE:
        members[split.size :] = ~members[: split.size]
    return _train(setup, split, split.candidates, members, (2, number), steps, on_step)


def _train(
    setup: TrainingSetup,
    split: RecordSplit,
    records: tuple[Tensor, Tensor],
    members: Flags,
    label: tuple[int, int],
    steps: Sequence[int],
    on_step: OnStep | None,
) -> list[Outputs]:
    """The outputs after each of `steps`."""
    x, y = records
    streams = setup.streams(*label)
    model, device = setup.build(streams), setup.config.device
    seen: list[Outputs] = []

    def look() -> None:
        on_candidates = log_probabilities(model, split.candidates[0], device)
        seen.append(Outputs(log_probabilities(model, x, device), y, members, on_candidates))

    def after(step: int, total: int) -> None:
        if on_step is not None:
            on_step(step, total)
        while len(seen) < len(steps) - 1 and step >= steps[len(seen)]:
            look()

    chosen = torch.from_numpy(members)
    fit(setup, model, TensorDataset(x[chosen], y[chosen]), streams=streams, on_step=after)
    while len(seen) < len(steps):
        look()
    return seen


def setup_on(config: RunConfig, split: RecordSplit) -> TrainingSetup:
    """The config on `size` records, a public number; where that is an upper bound, with a margin for the coins."""
    setup = TrainingSetup.of(config, task=split.task)
    if setup.plan.analysis.visible or setup.plan.relation is Neighbouring.REPLACE_ONE:
        return setup
    most = split.size + math.ceil(4 * math.sqrt(split.size))
    return TrainingSetup.of(config, task=dataclasses.replace(split.task, records=most))
