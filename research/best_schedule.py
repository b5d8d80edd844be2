"""Which decay of the noise is best at a certified budget: tried on public stand-in data, so that it costs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from discreet.core import check
from discreet.methods import automatic
from discreet.methods.d2p2.recipes import Decay, decaying
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.schedule import Period, Schedule, Table

if TYPE_CHECKING:
    from discreet.data import Task

ENDS: Final = (0.8, 0.6, 0.4)
"""Last factors that exponential and linear decay are tried with."""


@final
@dataclass(frozen=True, kw_only=True)
class DecayCandidate:
    """A decay that is tried; `to` is the last factor of exponential and linear decay."""

    decay: Decay
    to: float | None = None

    def over(self, epochs: int) -> Schedule:
        """The schedule of a run of so many epochs."""
        return decaying(self.decay, Period.EPOCH, self.to, epochs if self.decay.is_timed else None)

    def strength(self, epochs: int) -> float:
        """The first noise over the last: 1 without decay."""
        schedule = self.over(epochs)
        return schedule.factor(0, 1) / schedule.factor(epochs - 1, 1)

    def __str__(self) -> str:
        return f"{self.decay}" if self.to is None else f"{self.decay} to {self.to:g}"


CANDIDATES: Final = (
    DecayCandidate(decay=Decay.CONSTANT),
    *(DecayCandidate(decay=kind, to=end) for end in ENDS for kind in (Decay.LINEAR, Decay.EXPONENTIAL)),
    DecayCandidate(decay=Decay.INVERSE_FOURTH_ROOT),
    DecayCandidate(decay=Decay.INVERSE_ROOT),
)
"""No decay, the paper's two, and those that end at a factor of choice."""


@final
@dataclass(frozen=True, kw_only=True)
class ScheduleTrial:
    """What a candidate reached on the stand-in: mean test accuracy, its standard error, its first and last noise."""

    candidate: DecayCandidate
    accuracy: float
    error: float | None
    first_noise: float
    last_noise: float


@final
@dataclass(frozen=True, kw_only=True)
class ScheduleChoice:
    """The schedule for the run, and the table it was chosen from."""

    schedule: Schedule
    candidate: DecayCandidate
    trials: tuple[ScheduleTrial, ...]
    stand_in: str
    epsilon: float
    delta: float

    @property
    def table(self) -> str:
        """The trials in words, the best first."""
        lines = [f"stand-in {self.stand_in}, certified epsilon {self.epsilon:g}, delta {self.delta:g}"]
        for trial in sorted(self.trials, key=lambda one: -one.accuracy):
            spread = "" if trial.error is None else f" ± {100 * trial.error:.1f}"
            mark = " <- chosen" if trial.candidate == self.candidate else ""
            noise = f"noise {trial.first_noise:.2f} to {trial.last_noise:.2f}"
            lines.append(f"{trial.candidate!s:22s} {100 * trial.accuracy:5.1f}{spread} %  {noise}{mark}")
        return "\n".join(lines)


def choose_schedule(
    *,
    epsilon: float,
    delta: float,
    epochs: int,
    recipe: Recipe | None = None,
    stand_in: str = "digits",
    steps: int | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    candidates: Sequence[DecayCandidate] = CANDIDATES,
    data_dir: str | None = None,
    listener: Callable[[ScheduleTrial], None] | None = None,
) -> ScheduleChoice:
    """The decay for a run of `epochs` epochs, by training each candidate on public data at the same certified budget.

    Every candidate is stretched over the stand-in's own run of `steps` steps and calibrated to (epsilon, delta): a
    decay pays for its quiet end with a louder start. The mildest candidate within one standard error of the best mean
    is chosen, so that luck does not choose a strong decay.

    recipe    stages of the run, its schedule aside; default: automatic clipping
    stand_in  a public benchmark: never the private data, on which a search would have to be paid for
    """
    check.count("the epochs of the run that the schedule is for", least=2, epochs=epochs)
    check.require(bool(candidates), "candidates", "none", "give at least one")
    check.require(bool(seeds), "seeds", "none", "give at least one")
    task = _public(stand_in, data_dir)
    trials = []
    for candidate in candidates:
        trials.append(_try(candidate, recipe or automatic(), task, epsilon, delta, epochs, steps, seeds))
        if listener is not None:
            listener(trials[-1])
    best = max(trials, key=lambda trial: trial.accuracy)
    bar = best.accuracy - (best.error or 0.0)
    good = [trial.candidate for trial in trials if trial.accuracy >= bar]
    chosen = min(good, key=lambda candidate: candidate.strength(epochs))
    return ScheduleChoice(
        schedule=chosen.over(epochs),
        candidate=chosen,
        trials=tuple(trials),
        stand_in=stand_in,
        epsilon=epsilon,
        delta=delta,
    )


def stretched(schedule: Schedule, epochs: int, steps: int) -> Table:
    """A schedule over `epochs` epochs, drawn out over `steps` steps.

    >>> stretched(decaying(Decay.LINEAR, Period.EPOCH, 0.5, 2), 2, 4).factors
    (1.0, 1.0, 0.5, 0.5)
    """
    return Table(tuple(schedule.factor(step * epochs // steps, 1) for step in range(steps)))


def _public(stand_in: str, data_dir: str | None) -> Task:
    from discreet.data import load

    task = load(stand_in, data_dir=data_dir)
    check.require(task.public, "public stand-in data", stand_in, "name a benchmark: digits, mnist, fashion-mnist")
    return task


def _try(
    candidate: DecayCandidate,
    recipe: Recipe,
    task: Task,
    epsilon: float,
    delta: float,
    epochs: int,
    steps: int | None,
    seeds: Sequence[int],
) -> ScheduleTrial:
    from discreet.runs.presets import defaults_for

    usual = defaults_for(task.name)
    assert task.records is not None
    length = steps or usual.steps or -(-task.records // usual.batch) * (usual.epochs or 1)
    schedule = stretched(candidate.over(epochs), epochs, length)
    horizon = Horizon.of(records=task.records, batch=usual.batch, steps=length)
    plan = recipe.using(schedule=schedule).for_horizon(epsilon=epsilon, delta=delta, horizon=horizon)
    found = [_accuracy(plan, task, seed) for seed in seeds]
    mean = math.fsum(found) / len(found)
    error = None
    if len(found) > 1:
        error = math.sqrt(math.fsum((one - mean) ** 2 for one in found) / (len(found) - 1) / len(found))
    return ScheduleTrial(
        candidate=candidate,
        accuracy=mean,
        error=error,
        first_noise=plan.noise_at(0),
        last_noise=plan.noise_at(length - 1),
    )


def _accuracy(plan: Plan, task: Task, seed: int) -> float:
    """Test accuracy of one seeded run with the stand-in's usual model and step."""
    import torch
    from torch.nn.functional import cross_entropy

    from discreet.core.streams import Streams
    from discreet.data import build
    from discreet.runs.presets import defaults_for
    from discreet.runs.scoring import measure
    from discreet.training.private import Private

    usual = defaults_for(task.name)
    streams = Streams.seeded(seed)
    first = int(streams.init.uniform64(1)[0] >> 1)
    model = build(usual.model, shape=task.shape, classes=task.classes, seed=first)
    rate = usual.reach / plan.queries(1.0)[0].sensitivity
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=usual.momentum)
    private = Private(model, optimizer, plan, task.train, average=usual.average, streams=streams)
    try:
        for x, y in private:
            private.step(cross_entropy(model(x), y, reduction="none"))
        with private.averaged():
            return measure(model, task.test)[0]
    finally:
        private.close()
