"""Games with one user more or less: users with many, huge records, in releases of the library's own stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch

from discreet.auditing.bounds import Flags, Floats
from discreet.auditing.games import PreparedGame, by_world
from discreet.auditing.releases import linear
from discreet.core import check
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.factors.groups import UnitRows
from discreet.stages.noise import GaussianNoise
from discreet.stages.plan import Plan
from discreet.training.draws import Draw, drawn, population
from discreet.training.owners import Owners
from discreet.training.step import PrivateStep, RunState

_LOUD = 1e3  # the norm of every record's gradient: beyond every clip


@final
@dataclass(frozen=True, kw_only=True)
class UserCanaries:
    """Many users in one release, each with `each` records on a coordinate of its own, included by a fair coin.

    Each user is one trial. Valid if the noise of coordinates is independent: then the users of a release are
    independent, because what one of them adds does not depend on the others.
    """

    plan: Plan
    users: int = 200
    each: int = 20
    _micro_batch: int = field(default=512, init=False)

    def __post_init__(self) -> None:
        noise, remedy = type(self.plan.mechanism).__name__, "attack a plan with GaussianNoise"
        check.require(isinstance(self.plan.mechanism, GaussianNoise), "independent noise", noise, remedy)
        check.require(not self.plan.unit.is_record, "a plan that protects users", "records", "play Canaries instead")
        check.count("users and their records", users=self.users, each=self.each)

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        def play() -> tuple[Flags, Floats]:
            there = generator.random(self.users) < 0.5
            return there, self._released(there)

        return by_world(play, trials)

    def _released(self, there: Flags) -> Floats:
        """The sum of all releases of a run on these users, one coordinate for each."""
        owners = np.flatnonzero(there).repeat(self.each)
        records, streams = _LOUD * torch.eye(self.users)[torch.from_numpy(owners)], Streams.from_os()
        of = population(self.plan, records, Owners(owners.tolist()), streams.sampling.at(0))
        total, progress, plan = np.zeros(self.users), RunState(), self.plan
        with linear(self.users) as (net, engine):
            for draw in drawn(plan, of, World(), streams.sampling, streams.sampling, 0):
                step = PrivateStep(plan, engine, progress, streams, lambda event, step: None, World.current())
                for part in draw.cut(max(self._micro_batch, plan.unit.per_user or 1)):
                    if len(part.records):
                        engine.begin(len(part.records), units=_units(part))
                        step.add(net(records[torch.from_numpy(part.records)]).squeeze(1))
                total += step.release().value.double().numpy() * plan.horizon.size.batch
        return total


def _units(draw: Draw) -> UnitRows | None:
    return None if draw.sizes is None else UnitRows(draw.sizes)


def user_game(plan: Plan, *, trials: int, users: int = 200, each: int = 20) -> PreparedGame:
    """The game against a plan that protects users, with its row of the truth table."""
    return PreparedGame(
        game=UserCanaries(plan=plan, users=users, each=each),
        method=f"{plan.method}, {type(plan.unit).__name__}",
        parameters={
            "records of a user": each,
            "per_user": plan.unit.per_user,
            "rate": plan.horizon.rate,
            "noise": plan.noise,
            "steps": plan.horizon.steps,
        },
        trials=trials,
        delta=plan.delta,
        certified=plan.certificate().epsilon,
    )
