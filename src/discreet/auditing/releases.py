"""Games on what a plan really releases: stages, mechanism and noise of the library, nothing imitated.

The model is one linear layer without bias and each record's loss is its output, so that a record's gradient is the
record itself, whatever the weights: the adversary's worst case, and no update is needed between steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.auditing.bounds import Floats
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.plan import Plan
from discreet.stages.engine import Engine
from discreet.stages.mechanisms.gaussian import GaussianNoise
from discreet.stages.sampling import Horizon
from discreet.stages.values import Released
from discreet.step import LogicalBatch, Progress

Flags = npt.NDArray[np.bool_]

CANARIES = 500
LATE = 20  # epochs, since at rate 1 each step is one
DIMENSION = 4
RUN_STEPS = 2
_LOUD = 1e3  # the norm of a canary's gradient: beyond every clip
_QUIET = 1e-2  # of the record that turns a direction round


@final
@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What is attacked: `plan` says what it costs, `playing` the same steps from `start` on in a longer run.

    Masks that freeze more and more have set in by then. Where later steps have another price, start is 0.
    """

    plan: Plan
    playing: Plan
    start: int

    @staticmethod
    def of(recipe: Plan, *, records: int, noise: float, delta: float, steps: int = 1) -> Attacked:
        """The recipe at rate 1, where sampling hides nothing."""
        own, longer = (
            recipe.bind(
                noise=noise, horizon=Horizon.of(records=records, batch=records, steps=count), delta=delta
            )
            for count in (steps, LATE + steps)
        )
        alike = all(own.event_at(step) == longer.event_at(LATE + step) for step in range(steps))
        return Attacked(plan=own, playing=longer if alike else own, start=LATE if alike else 0)

    @property
    def steps(self) -> int:
        return self.plan.known_horizon.steps

    @property
    def batch(self) -> float:
        return self.plan.known_horizon.known_batch

    def run(self, net: nn.Module, engine: Engine, records: Tensor) -> list[Released]:
        """Every release on these records, drawn and noised by the plan's own stages under fresh keys."""
        plan, streams, world = self.playing, Streams.from_os(), World.current()
        progress = Progress(step=self.start)
        drawn = plan.sampling.batches(len(records), plan.known_horizon, streams.sampling, self.start)
        releases = []
        for indices in itertools.islice(drawn, self.steps):
            batch = LogicalBatch(plan, engine, progress, streams)
            if len(indices):
                engine.begin(len(indices))
                batch.add(net(records[torch.from_numpy(indices)]).squeeze(1))
            releases.append(batch.release(lambda event, step: None, world))
        return releases


def canaries(plan: Plan, there: Flags) -> Tensor:
    """The records that are there, each alone on its coordinate; under replace-one the others point the other way."""
    records = torch.eye(len(there)) * _LOUD
    if plan.relation is Neighbouring.REPLACE_ONE:
        records[torch.from_numpy(~there)] *= -1
        return records
    return records[torch.from_numpy(there)]


def game_for(recipe: Plan, *, noise: float, delta: float, steps: int | None = None) -> Canaries | Run:
    """The quickest game that is valid for the plan's mechanism: one step, or several where it may keep state.

    Several steps get more noise each, noise * sqrt(steps): together they are as far from private as one.
    """
    if isinstance(recipe.mechanism, GaussianNoise) and steps in (None, 1):
        return Canaries(Attacked.of(recipe, records=CANARIES, noise=noise, delta=delta))
    count = RUN_STEPS if steps is None else steps
    spread = noise * math.sqrt(count)
    return Run(Attacked.of(recipe, records=2, noise=spread, delta=delta, steps=count))


@final
class Canaries:
    """Many records in one release, each alone on a coordinate, each there or not by a fair coin: one trial each.

    Valid for noise that is independent from coordinate to coordinate and a bounder that sees one record at a time;
    then the trials of one release are independent. Frozen coordinates are public and give no trial.
    """

    def __init__(self, attacked: Attacked) -> None:
        check.require(
            isinstance(attacked.plan.mechanism, GaussianNoise) and attacked.steps == 1,
            "one step of independent noise",
            f"{attacked.steps} steps of {type(attacked.plan.mechanism).__name__}",
            "play Run instead",
        )
        self.attacked = attacked
        self._count = attacked.plan.known_horizon.known_records

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        absent: list[Floats] = []
        present: list[Floats] = []
        with linear(self._count) as (net, engine):
            while min(sum(map(len, absent)), sum(map(len, present))) < trials:
                there = generator.random(self._count) < 0.5
                values, active = self._release(net, engine, there)
                check.require(
                    bool(active.any()),
                    "a mask that leaves coordinates active",
                    "none",
                    "freeze less, or single elements",
                )
                present.append(values[active & there])
                absent.append(values[active & ~there])
        return np.concatenate(absent)[:trials], np.concatenate(present)[:trials]

    def _release(self, net: nn.Module, engine: Engine, there: Flags) -> tuple[Floats, Flags]:
        records = canaries(self.attacked.plan, there)
        released = self.attacked.run(net, engine, records)[0]
        active = active_in(released).numpy()
        return released.value.double().numpy() * self.attacked.batch, active


@final
class Run:
    """A whole run of `steps` releases, once with the record and once without, under fresh keys for every trial.

    Statistic: the sum over the steps of the release projected on the record's direction. A quiet record points the
    other way, so that a direction that one record can turn is turned.
    """

    def __init__(self, attacked: Attacked, *, dimension: int = DIMENSION) -> None:
        check.count("coordinates of the model", least=2, dimension=dimension)
        self.attacked = attacked
        self._direction = torch.full((dimension,), dimension**-0.5)
        quiet, loud = -_QUIET * self._direction, _LOUD * self._direction
        replaced = attacked.plan.relation is Neighbouring.REPLACE_ONE
        self._without = torch.stack([quiet, -loud]) if replaced else quiet.unsqueeze(0)
        self._with = torch.stack([quiet, loud])

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        with linear(len(self._direction)) as (net, engine):
            worlds = [
                np.array([self._statistic(net, engine, records) for _ in range(trials)])
                for records in (self._without, self._with)
            ]
        return worlds[0], worlds[1]

    def _statistic(self, net: nn.Module, engine: Engine, records: Tensor) -> float:
        total = 0.0
        for released in self.attacked.run(net, engine, records):
            seen = self._direction.double() * active_in(released)
            norm = float(seen.norm())
            total += float(released.value.double() @ seen) / norm if norm else 0.0
        return total * self.attacked.batch


def active_in(released: Released) -> Tensor:
    """Which coordinates take part in this release, flat."""
    active = torch.ones(released.layout.size)
    if released.mask is not None:
        released.mask.apply_(released.layout.views(active))
    return active.bool()


@contextmanager
def linear(inputs: int) -> Iterator[tuple[nn.Module, Engine]]:
    """A linear layer without bias, and its engine."""
    net = nn.Linear(inputs, 1, bias=False)
    engine = Engine(net)
    try:
        yield net, engine
    finally:
        engine.close()
