"""Games on the real releases of a plan: stages, mechanism and noise are those of the library.

The model is one linear layer without bias and each record's loss is its output. A record's gradient is then the record
itself, whatever the weights: the worst case, and no update is needed between steps.

The last part observes the releases of any run, by stages that pass on what they see and change nothing.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Self, final

import numpy as np
import torch
from torch import Tensor, nn

from discreet.accounting.events import NonPrivate, Release
from discreet.auditing.bounds import Flags, Floats
from discreet.auditing.games import by_world
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.layout import Layout, Mask
from discreet.methods.d2p2.projected_noise import ProjectedNoise
from discreet.methods.geodp.stages import GeometricNoise
from discreet.stages.analysis import Composition
from discreet.stages.clipping import Query
from discreet.stages.combination import TakeFirst
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.selection import Frozen, Order, RowCounting, Selection
from discreet.stages.values import BoundedSum, Released, StepContext
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

    @classmethod
    def of(cls, recipe: Recipe, *, records: int, noise: float, delta: float, steps: int = 1) -> Self:
        """The recipe at a sampling rate of 1, where sampling hides nothing."""
        runs = (Horizon.of(records=records, batch=records, steps=count) for count in (steps, LATE + steps))
        # A game with records that are made up: any delta will do.
        own, longer = (recipe.bind(noise=noise, horizon=run, delta=delta, accept_large_delta=True) for run in runs)
        alike = all(own.event_at(step) == longer.event_at(LATE + step) for step in range(steps))
        return cls(plan=own, playing=longer if alike else own, start=LATE if alike else 0)

    @property
    def steps(self) -> int:
        return self.plan.horizon.steps

    @property
    def batch(self) -> float:
        return self.plan.horizon.size.batch

    def run(self, net: nn.Module, engine: Engine, records: Tensor, *, plan: Plan | None = None) -> list[Released]:
        """Every release on these records by the plan's own stages, with fresh random streams.

        plan  the plan to run, if the attacker observes it (`observing_noise`)
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


def _independent(plan: Pipeline) -> bool:
    """Whether each coordinate has independent noise and depends only on the records that touch it."""
    return isinstance(plan.mechanism, GaussianNoise) and isinstance(plan.combination, TakeFirst)


@final
class Canaries:
    """Many records in one release, each on its own coordinate and included by a fair coin: one trial each.

    Valid if the noise of coordinates is independent and the bounder sees one record at a time: then the trials of one
    release are independent. Frozen coordinates are public and give no trial.
    """

    def __init__(self, attacked: Attacked) -> None:
        stages = f"{type(attacked.plan.mechanism).__name__}, then {type(attacked.plan.combination).__name__}"
        is_valid, got = _independent(attacked.plan) and attacked.steps == 1, f"{attacked.steps} steps of {stages}"
        check.require(is_valid, "one step of independent noise", got, "play ReleaseGame instead")
        self.attacked, self._count = attacked, attacked.plan.horizon.size.records

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        def play() -> tuple[Flags, Floats]:
            there = generator.random(self._count) < 0.5
            released = self.attacked.run(net, engine, canaries(self.attacked.plan, there))[0]
            values, active = released.value.double().numpy() * self.attacked.batch, active_in(released).numpy()
            expected = "a mask that leaves coordinates active"
            check.require(bool(active.any()), expected, "none", "freeze fewer coordinates")
            return there[active], values[active]

        with linear(self._count) as (net, engine):
            return by_world(play, trials)


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
            absent, present = (
                np.array([self._statistics(net, engine, records) for _ in range(trials)]) for records in self._worlds
            )
        return absent, present

    def _sums(self, net: nn.Module, engine: Engine, records: Tensor) -> list[Tensor]:
        """The sums of the first step in this world, before noise."""
        found: list[list[Tensor]] = []
        plan = observing_noise(self.attacked.playing, lambda exact, noisy, stds, context: found.append(exact))
        self.attacked.run(net, engine, records, plan=plan)
        return found[0]

    def _statistics(self, net: nn.Module, engine: Engine, records: Tensor) -> list[float]:
        ratios: list[float] = []
        plan = observing_noise(self.attacked.playing, lambda _, *seen: ratios.append(self._ratio(*seen)))
        total = follows = 0.0
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
        mechanism, ratio, projection = self.attacked.playing.mechanism, 0.0, None
        if isinstance(mechanism, ProjectedNoise) and mechanism.reduction > 0:  # public, and regenerated from its stream
            projection = mechanism.projection.make(context.layout, mechanism.reduction, context)
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


def game_for(recipe: Recipe, *, noise: float, delta: float, steps: int | None = None) -> Canaries | ReleaseGame:
    """The fastest game that is valid for the plan's mechanism: one step, or several if it may keep state.

    Several steps get more noise each, noise * sqrt(steps), so that together they cost as much as one.
    """
    if not recipe.analysis.visible:
        steps = 1  # only the final parameters of a longer run may be seen
    if _independent(recipe) and steps in (None, 1):
        return Canaries(Attacked.of(recipe, records=CANARIES, noise=noise, delta=delta))
    stateless = isinstance(recipe.mechanism, (GaussianNoise, ProjectedNoise, GeometricNoise))
    forgets = stateless and isinstance(recipe.combination, TakeFirst)
    count = (1 if forgets else RUN_STEPS) if steps is None else steps
    spread = noise * math.sqrt(count)
    return ReleaseGame(Attacked.of(recipe, records=PUBLIC_BATCH, noise=spread, delta=delta, steps=count))


@contextmanager
def linear(inputs: int) -> Iterator[tuple[nn.Module, Engine]]:
    """A linear layer without bias, and its engine."""
    net = nn.Linear(inputs, 1, bias=False)
    engine = Engine(net)
    try:
        yield net, engine
    finally:
        engine.close()


# -- observing ---------------------------------------------------------------------------------------------------

Listener = Callable[[Released, float, StepContext], None]
"""Receives every release, its noise standard deviation and its step, before the update."""

OnNoise = Callable[[list[Tensor], list[Tensor], list[float], StepContext], None]
"""Receives the sums of a step, the noisy sums, and the standard deviations of the noise."""


@final
@dataclass(frozen=True)
class ObservedSelection:
    """A selection that passes each release to a listener; stages, mechanism, noise and update are unchanged."""

    inner: Selection
    listener: InitVar[Listener]
    order: Order = field(init=False)
    frozen: Frozen = field(init=False)
    takes_all: bool = field(init=False)
    counting: RowCounting | None = field(init=False)

    def __post_init__(self, listener: Listener) -> None:
        object.__setattr__(self, "_listener", listener)
        for name in ("order", "frozen", "takes_all", "counting"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def check(self, stages: Pipeline) -> None:
        self.inner.check(stages)

    def mask(self, context: StepContext) -> Mask | None:
        return self.inner.mask(context)

    def observe(self, released: Released, std: float, context: StepContext) -> None:
        listener: Listener = object.__getattribute__(self, "_listener")
        listener(released, std, context)
        self.inner.observe(released, std, context)

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        return self.inner.density(horizon, baseline_epochs=baseline_epochs)


def observing_releases(plan: Plan, listener: Listener) -> Plan:
    """The same stages with a listener for releases; the original plan gives the cost."""
    observed = ObservedSelection(plan.selection, listener)
    return dataclasses.replace(plan, selection=observed, analysis=Composition(), claims=None)


@final
class ObservedMechanism(Mechanism):
    """A mechanism that passes its input and output to a listener: an attacker who knows both worlds knows the sums."""

    def __init__(self, inner: Mechanism, listener: OnNoise) -> None:
        self._inner, self._listener = inner, listener

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        return self._inner.event(queries, noise)

    def check(self, layout: Layout) -> None:
        self._inner.check(layout)

    def fits(self, stages: Pipeline) -> None:
        self._inner.fits(stages)

    @property
    def of_numbers(self) -> Mechanism:
        return self._inner.of_numbers

    def prepare(self, context: StepContext) -> None:
        self._inner.prepare(context)

    @property
    def is_independent(self) -> bool:
        return self._inner.is_independent

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        exact = [total.value.clone() for total in sums]  # a mechanism overwrites what it is given
        noisy = self._inner.release(sums, queries, noise, context)
        self._listener(exact, [value.clone() for value in noisy], [query.std(noise) for query in queries], context)
        return noisy


def observing_noise(plan: Plan, listener: OnNoise) -> Plan:
    """The same stages with a listener for the sums before and after noise."""
    observed = ObservedMechanism(plan.mechanism, listener)
    return dataclasses.replace(plan, mechanism=observed, analysis=Composition(), claims=None)


def active_in(released: Released) -> Tensor:
    """Which coordinates are active in this release, as a flat tensor."""
    active = torch.ones(released.layout.size)
    if released.mask is not None:
        released.mask.apply_(released.layout.views(active))
    return active.bool()
