"""Games on what a plan really releases: stages, mechanism and noise of the library, nothing imitated.

The model is one linear layer without bias and each record's loss is its output, so that a record's gradient is the
record itself, whatever the weights: the adversary's worst case, and no update is needed between steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from discreet.auditing.bounds import Floats
from discreet.auditing.games import Game
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

CANARIES = 500
DIMENSION = 4
_LOUD = 1e3  # the norm of a canary's gradient: beyond every clip
_QUIET = 1e-2  # of the record that turns a direction round


def game_for(recipe: Plan, *, noise: float, delta: float, steps: int = 1) -> Game:
    """The quickest game that is valid for the plan's mechanism."""
    if isinstance(recipe.mechanism, GaussianNoise) and steps == 1:
        return Canaries(_bound(recipe, CANARIES, noise=noise, delta=delta, steps=steps))
    return Run(_bound(recipe, 2, noise=noise, delta=delta, steps=steps))


def plan_of(game: Game) -> Plan:
    """The plan that a game of releases plays."""
    assert isinstance(game, Canaries | Run)
    return game.plan


def _bound(recipe: Plan, records: int, *, noise: float, delta: float, steps: int) -> Plan:
    """The plan at rate 1, where sampling hides nothing."""
    return recipe.bind(
        noise=noise, horizon=Horizon.of(records=records, batch=records, steps=steps), delta=delta
    )


@final
class Canaries:
    """Many records in one release, each alone on a coordinate, each there or not by a fair coin: one trial each.

    Valid for noise that is independent from coordinate to coordinate and a bounder that sees one record at a time;
    then the trials of one release are independent. Frozen coordinates are public and give no trial.
    """

    def __init__(self, plan: Plan) -> None:
        check.require(
            isinstance(plan.mechanism, GaussianNoise) and plan.known_horizon.steps == 1,
            "one step of independent noise",
            f"{plan.known_horizon.steps} steps of {type(plan.mechanism).__name__}",
            "play Run instead",
        )
        self.plan = plan
        self._count = plan.known_horizon.known_records

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        absent: list[Floats] = []
        present: list[Floats] = []
        with _linear(self._count) as (net, engine):
            while min(sum(map(len, absent)), sum(map(len, present))) < trials:
                there = generator.random(self._count) < 0.5
                values, active = self._release(net, engine, there)
                present.append(values[active & there])
                absent.append(values[active & ~there])
        return np.concatenate(absent)[:trials], np.concatenate(present)[:trials]

    def _release(
        self, net: nn.Module, engine: Engine, there: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        records = torch.eye(self._count) * _LOUD
        if self.plan.relation is Neighbouring.REPLACE_ONE:
            records[torch.from_numpy(~there)] *= -1
        else:
            records = records[torch.from_numpy(there)]
        released = _run(self.plan, net, engine, records)[0]
        active = _active(released).numpy()
        return released.value.double().numpy() * self.plan.known_horizon.known_batch, active


@final
class Run:
    """A whole run of `steps` releases, once with the record and once without, under fresh keys for every trial.

    Statistic: the sum over the steps of the release projected on the record's direction. Without the record, a quiet one
    points the other way, so that a direction that one record can turn is turned.
    """

    def __init__(self, plan: Plan, *, dimension: int = DIMENSION) -> None:
        check.count("coordinates of the model", least=2, dimension=dimension)
        self.plan = plan
        self._direction = torch.full((dimension,), dimension**-0.5)
        quiet, loud = -_QUIET * self._direction, _LOUD * self._direction
        replaced = plan.relation is Neighbouring.REPLACE_ONE
        self._without = torch.stack([quiet, -loud]) if replaced else quiet.unsqueeze(0)
        self._with = torch.stack([quiet, loud])

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        with _linear(len(self._direction)) as (net, engine):
            worlds = [
                np.array([self._statistic(net, engine, records) for _ in range(trials)])
                for records in (self._without, self._with)
            ]
        return worlds[0], worlds[1]

    def _statistic(self, net: nn.Module, engine: Engine, records: Tensor) -> float:
        total = 0.0
        for released in _run(self.plan, net, engine, records):
            seen = self._direction.double() * _active(released)
            norm = float(seen.norm())
            total += float(released.value.double() @ seen) / norm if norm else 0.0
        return total * self.plan.known_horizon.known_batch


def _run(plan: Plan, net: nn.Module, engine: Engine, records: Tensor) -> list[Released]:
    """Every release of one run on these records, drawn and noised by the plan's own stages."""
    streams, progress, world = Streams.from_os(), Progress(), World.current()
    drawn = plan.sampling.batches(len(records), plan.known_horizon, streams.sampling, 0)
    releases = []
    for indices in drawn:
        batch = LogicalBatch(plan, engine, progress, streams)
        if len(indices):
            engine.begin(len(indices))
            batch.add(net(records[torch.from_numpy(indices)]).squeeze(1))
        releases.append(batch.release(lambda event, step: None, world))
    return releases


def _active(released: Released) -> Tensor:
    """Which coordinates take part in this release, flat."""
    active = torch.ones(released.layout.size)
    if released.mask is not None:
        released.mask.apply_(released.layout.views(active))
    return active.bool()


@contextmanager
def _linear(inputs: int) -> Iterator[tuple[nn.Module, Engine]]:
    net = nn.Linear(inputs, 1, bias=False)
    engine = Engine(net)
    try:
        yield net, engine
    finally:
        engine.close()
