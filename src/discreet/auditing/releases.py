"""Games on the real releases of a plan: stages, mechanism and noise are those of the library.

The model is one linear layer without bias and each record's loss is its output. A record's gradient is then the record
itself, whatever the weights: the worst case, and no update is needed between steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from discreet.auditing.bounds import Flags, Floats
from discreet.auditing.observing import active_in, observing_noise
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.methods.d2p2.projected_noise import ProjectedNoise
from discreet.methods.d2p2.projections import ProjectionMap
from discreet.methods.geodp.noise import GeometricNoise
from discreet.stages.combination import TakeFirst
from discreet.stages.context import StepContext
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.values import Released
from discreet.training.step import PrivateStep, RunState

CANARIES = 500
LATE = 20  # epochs, since at rate 1 each step is one
DIMENSION = 4
RUN_STEPS = 2
PUBLIC_BATCH = 100
_LOUD = 1e3  # the norm of a canary's gradient: beyond every clip
_QUIET = 1e-2  # the norm of the record that fixes a direction


@final
@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What is attacked: `plan` gives the cost, `playing` has the same steps from `start` on in a longer run.

    By then, masks that freeze more and more coordinates are active. If later steps cost more, start is 0.
    """

    plan: Plan
    playing: Plan
    start: int

    @staticmethod
    def of(recipe: Recipe, *, records: int, noise: float, delta: float, steps: int = 1) -> Attacked:
        """The recipe at a sampling rate of 1, where sampling hides nothing."""
        own, longer = (
            recipe.bind(
                noise=noise,
                horizon=Horizon.of(records=records, batch=records, steps=count),
                delta=delta,
                accept_large_delta=True,  # a game with records that are made up
            )
            for count in (steps, LATE + steps)
        )
        alike = all(own.event_at(step) == longer.event_at(LATE + step) for step in range(steps))
        return Attacked(plan=own, playing=longer if alike else own, start=LATE if alike else 0)

    @property
    def steps(self) -> int:
        return self.plan.horizon.steps

    @property
    def batch(self) -> float:
        return self.plan.horizon.size.batch

    def run(self, net: nn.Module, engine: Engine, records: Tensor, *, plan: Plan | None = None) -> list[Released]:
        """Every release on these records by the plan's own stages, with fresh random streams.

        plan  the plan to run, if the attacker observes it (`observing`)
        """
        plan, streams, world = plan or self.playing, Streams.from_os(), World.current()
        progress = RunState(step=self.start)
        drawn = plan.sampling.batches(len(records), plan.horizon, streams.sampling, self.start)
        releases = []
        for indices in itertools.islice(drawn, self.steps):
            batch = PrivateStep(plan, engine, progress, streams, lambda event, step: None, world)
            if batch.is_learning:
                public = public_inputs(records.shape[1])
                engine.begin(len(public))
                batch.learn(net(public).squeeze(1))
                batch.end_learning()
            if len(indices):
                engine.begin(len(indices))
                batch.add(net(records[torch.from_numpy(indices)]).squeeze(1))
            releases.append(batch.release())
        return releases


def public_inputs(dimension: int) -> Tensor:
    """A public record. Of the attacked records, one half lies in its direction, and the other half does not."""
    halves = torch.arange(dimension) < dimension / 2
    return halves.float().unsqueeze(0)


def canaries(plan: Plan, there: Flags) -> Tensor:
    """The included records, each on a coordinate of its own; under replace-one the others have the opposite sign."""
    records = torch.eye(len(there)) * _LOUD
    if plan.relation is Neighbouring.REPLACE_ONE:
        records[torch.from_numpy(~there)] *= -1
        return records
    return records[torch.from_numpy(there)]


def game_for(recipe: Recipe, *, noise: float, delta: float, steps: int | None = None) -> Canaries | ReleaseGame:
    """The fastest game that is valid for the plan's mechanism: one step, or several if it may keep state.

    Several steps get more noise each, noise * sqrt(steps), so that together they cost as much as one.
    """
    if not recipe.analysis.visible:
        steps = 1  # only the final parameters of a longer run may be seen
    if _independent(recipe) and steps in (None, 1):
        return Canaries(Attacked.of(recipe, records=CANARIES, noise=noise, delta=delta))
    count = (1 if _forgets(recipe) else RUN_STEPS) if steps is None else steps
    spread = noise * math.sqrt(count)
    return ReleaseGame(Attacked.of(recipe, records=PUBLIC_BATCH, noise=spread, delta=delta, steps=count))


def _independent(plan: Pipeline) -> bool:
    """Whether each coordinate has independent noise and depends only on the records that touch it."""
    return isinstance(plan.mechanism, GaussianNoise) and isinstance(plan.combination, TakeFirst)


def _forgets(plan: Pipeline) -> bool:
    """Whether a step is known to keep no state for the next one."""
    return isinstance(plan.combination, TakeFirst) and isinstance(
        plan.mechanism, (GaussianNoise, ProjectedNoise, GeometricNoise)
    )


@final
class Canaries:
    """Many records in one release, each on its own coordinate and included by a fair coin: one trial each.

    Valid if the noise of coordinates is independent and the bounder sees one record at a time: then the trials of one
    release are independent. Frozen coordinates are public and give no trial.
    """

    def __init__(self, attacked: Attacked) -> None:
        stages = f"{type(attacked.plan.mechanism).__name__}, then {type(attacked.plan.combination).__name__}"
        is_valid = _independent(attacked.plan) and attacked.steps == 1
        got = f"{attacked.steps} steps of {stages}"
        check.require(is_valid, "one step of independent noise", got, "play ReleaseGame instead")
        self.attacked = attacked
        self._count = attacked.plan.horizon.size.records

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        absent: list[Floats] = []
        present: list[Floats] = []
        with linear(self._count) as (net, engine):
            while min(sum(map(len, absent)), sum(map(len, present))) < trials:
                there = generator.random(self._count) < 0.5
                released = self.attacked.run(net, engine, canaries(self.attacked.plan, there))[0]
                values, active = released.value.double().numpy() * self.attacked.batch, active_in(released).numpy()
                expected = "a mask that leaves coordinates active"
                check.require(bool(active.any()), expected, "none", "freeze fewer coordinates")
                present.append(values[active & there])
                absent.append(values[active & ~there])
        return np.concatenate(absent)[:trials], np.concatenate(present)[:trials]


@final
class ReleaseGame:
    """A run of a few releases, with and without the record, with fresh random streams in every trial.

    A small record at a right angle is always there, so that one record can turn the direction of the sum. The batch
    size is a public number far above the one or two records. Three statistics, of which one is chosen: the likelihood
    ratio of the noisy sums, for an attacker who knows both worlds; the release projected on the record's direction;
    and how closely the release follows that direction.
    """

    def __init__(self, attacked: Attacked, *, dimension: int = DIMENSION) -> None:
        check.require(dimension >= 2 and dimension % 2 == 0, "an even dimension", dimension, "use 4, for example")
        self.attacked = attacked
        self._direction = torch.full((dimension,), dimension**-0.5)
        quiet, loud = self._direction.clone(), _LOUD * self._direction
        quiet[::2] *= -1
        quiet *= _QUIET
        if attacked.plan.relation is Neighbouring.REPLACE_ONE:
            fill = torch.zeros(attacked.plan.horizon.size.records - 2, dimension)
            self._worlds = [torch.cat([torch.stack([quiet, sign * loud]), fill]) for sign in (-1, 1)]
        else:
            self._worlds = [quiet.unsqueeze(0), torch.stack([quiet, loud])]
        self._exact: list[list[Tensor]] = []

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        with linear(len(self._direction)) as (net, engine):
            if not self._exact:
                self._exact = [self._sums(net, engine, records) for records in self._worlds]
            worlds = [
                np.array([self._statistics(net, engine, records) for _ in range(trials)]) for records in self._worlds
            ]
        return worlds[0], worlds[1]

    def _sums(self, net: nn.Module, engine: Engine, records: Tensor) -> list[Tensor]:
        """The sums of the first step in this world, before noise."""
        found: list[list[Tensor]] = []
        plan = observing_noise(self.attacked.playing, lambda exact, noisy, stds, context: found.append(exact))
        self.attacked.run(net, engine, records, plan=plan)
        return found[0]

    def _statistics(self, net: nn.Module, engine: Engine, records: Tensor) -> list[float]:
        ratios: list[float] = []

        def listen(exact: list[Tensor], noisy: list[Tensor], stds: list[float], context: StepContext) -> None:
            ratios.append(self._ratio(noisy, stds, context))

        total = follows = 0.0
        plan = observing_noise(self.attacked.playing, listen)
        for released in self.attacked.run(net, engine, records, plan=plan):
            value, seen = released.value.double(), self._direction.double() * active_in(released)
            norm = float(seen.norm())
            along = float(value @ seen) / norm if norm else 0.0
            total += along * self.attacked.batch
            follows += abs(along) / max(float(value.norm()), 1e-300)
        return [sum(ratios), total, follows]

    def _ratio(self, noisy: list[Tensor], stds: list[float], context: StepContext) -> float:
        """The log-likelihood ratio of these noisy sums; later steps are treated like the first."""
        if context.mask is not None:
            return 0.0
        projection = _projection(self.attacked.playing.mechanism, context)
        ratio = 0.0
        for index, (seen, std) in enumerate(zip(noisy, stds, strict=True)):
            value, (absent, present) = seen.double(), (world[index].double() for world in self._exact)
            shift = present - absent
            if projection is not None and value.shape == (context.layout.size,):
                back = projection.project(projection.lift(projection.project(shift), torch.float64))
                shift, absent = projection.project(shift), projection.project(absent)
                # Lifting and projecting again scales every image by the same public number.
                scale = float(back @ shift) / max(float(shift @ shift), 1e-300)
                value = projection.project(value) / max(scale, 1e-300)
            if std > 0:
                ratio += float(((value - absent) * shift).sum() - shift.square().sum() / 2) / std**2
        return ratio


def _projection(mechanism: Mechanism, context: StepContext) -> ProjectionMap | None:
    """The projection of this step: public, and regenerated from its stream."""
    if not isinstance(mechanism, ProjectedNoise) or mechanism.reduction == 0:
        return None
    return mechanism.projection.make(context.layout, mechanism.reduction, context)


@contextmanager
def linear(inputs: int) -> Iterator[tuple[nn.Module, Engine]]:
    """A linear layer without bias, and its engine."""
    net = nn.Linear(inputs, 1, bias=False)
    engine = Engine(net)
    try:
        yield net, engine
    finally:
        engine.close()
