"""Who is trained on what, in membership inference: target models and shadow models by the recipe of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from discreet.auditing.trainings import OnStep, Recipe, fit, load, log_probabilities
from discreet.core import check
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    from discreet.data import Task
    from discreet.runs import RunConfig

Flags = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, kw_only=True)
class Split:
    """Candidates of the targets and the pool of the shadows: they share no record."""

    task: Task
    candidates: tuple[Tensor, Tensor]
    pool: tuple[Tensor, Tensor]
    size: int

    @staticmethod
    def of(task: Task, size: int | None) -> Split:
        x, y = task.train.tensors
        found = len(x) // 4 if size is None else size
        check.require(
            2 <= found <= len(x) // 4,
            f"a size of at most a quarter of the {len(x)} records",
            found,
            "members and others of targets and of shadows are disjoint",
        )
        # Fixed for all calls: candidates must not be chosen by looking at results.
        order = torch.from_numpy(np.random.default_rng(len(x)).permutation(len(x)))
        first, rest = order[: 2 * found], order[2 * found :]
        return Split(
            task=dataclasses.replace(task, records=found),
            candidates=(x[first], y[first]),
            pool=(x[rest], y[rest]),
            size=found,
        )


def load_whole(config: RunConfig) -> Task:
    """The task with its test records beside the others."""
    task = load(config)
    pairs = zip(task.train.tensors, task.test.tensors, strict=True)
    joined = TensorDataset(*(torch.cat(pair) for pair in pairs))
    return dataclasses.replace(task, train=joined, records=len(joined))


@final
@dataclass(frozen=True)
class Trained:
    """A model's answers after each step of interest: on records it learned and on others."""

    answers: tuple[Tensor, ...]  # [n, classes] log-probabilities
    labels: Tensor
    members: Flags
    on_candidates: tuple[Tensor, ...]

    def at(self, place: int) -> Seen:
        return Seen(self.answers[place], self.labels, self.members, self.on_candidates[place])


@final
@dataclass(frozen=True)
class Seen:
    answers: Tensor
    labels: Tensor
    members: Flags
    on_candidates: Tensor


@final
class Told:
    """Progress over all trainings."""

    def __init__(self, listener: OnStep | None, total: int) -> None:
        self._listener, self._total, self._before = listener, total, 0

    def tell(self, step: int) -> None:
        if self._listener is not None:
            self._listener(self._before + step, self._total)

    def one_more(self, steps: int) -> None:
        """A training of so many steps has ended."""
        self._before += steps


def seeded(recipe: Recipe, seed: int | None) -> Recipe:
    return dataclasses.replace(recipe, config=dataclasses.replace(recipe.config, seed=seed))


def shadow(recipe: Recipe, split: Split, number: int, steps: Sequence[int], told: Told) -> Trained:
    """Trained on `size` records of the pool; as many others of it are not members."""
    x, y = split.pool
    seed = None if recipe.config.seed is None else [recipe.config.seed, number]
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))[: 2 * split.size])
    members = np.arange(2 * split.size) < split.size
    return _train(recipe, split, (x[order], y[order]), members, (1, number), steps, told)


def target(recipe: Recipe, split: Split, number: int, steps: Sequence[int], told: Told) -> Trained:
    """Trained on the candidates whose coin says so; a seeded target flips seeded coins.

    Under replace-one a coin chooses one of two candidates, so that the size is what it must be.
    """
    seed = None if recipe.config.seed is None else [recipe.config.seed, number, 2]
    members = np.random.default_rng(seed).random(2 * split.size) < 0.5
    if recipe.plan.relation is Neighbouring.REPLACE_ONE:
        members[split.size :] = ~members[: split.size]
    return _train(recipe, split, split.candidates, members, (2, number), steps, told)


def _train(
    recipe: Recipe,
    split: Split,
    records: tuple[Tensor, Tensor],
    members: Flags,
    label: tuple[int, int],
    steps: Sequence[int],
    told: Told,
) -> Trained:
    x, y = records
    streams = recipe.streams(*label)
    model, device = recipe.build(streams), recipe.config.device
    answers: list[Tensor] = []
    on_candidates: list[Tensor] = []

    def look() -> None:
        answers.append(log_probabilities(model, x, device))
        on_candidates.append(log_probabilities(model, split.candidates[0], device))

    def on_step(step: int, total: int) -> None:
        told.tell(step)
        while len(answers) < len(steps) - 1 and step >= steps[len(answers)]:
            look()

    chosen = torch.from_numpy(members)
    fit(recipe, model, TensorDataset(x[chosen], y[chosen]), streams=streams, on_step=on_step)
    while len(answers) < len(steps):
        look()
    told.one_more(recipe.plan.horizon.steps)
    return Trained(tuple(answers), y, members, tuple(on_candidates))


def recipe_on(config: RunConfig, split: Split) -> Recipe:
    """The config on `size` records, a public number; where that is an upper bound, with room for the luck of coins."""
    recipe = Recipe.of(config, task=split.task)
    if recipe.plan.analysis.visible or recipe.plan.relation is Neighbouring.REPLACE_ONE:
        return recipe
    most = split.size + math.ceil(4 * math.sqrt(split.size))
    return Recipe.of(config, task=dataclasses.replace(split.task, records=most))
