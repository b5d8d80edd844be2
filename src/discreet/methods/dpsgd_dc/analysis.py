"""The analysis for runs of which only the last iterate leaves: epsilon that stops growing with the steps.

Proof: docs/proofs/LastIterateRun.md. It pays for full batches and many steps; docs/methods/dpsgd-dc.md says when not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, final

from discreet.accounting.events import (
    Event,
    Gaussian,
    LastIterateRun,
    TruncatedPoissonSampled,
    WithoutReplacement,
)
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.dpsgd_dc.curvature import Curvature, LinearModel
from discreet.stages.analysis import Composition
from discreet.stages.bounding import FlatClip
from discreet.stages.combination import TakeFirst
from discreet.stages.gaussian import GaussianNoise
from discreet.stages.sampling import FixedSize, FullBatch
from discreet.stages.sampling import TruncatedPoisson as Capped
from discreet.stages.schedule import Constant
from discreet.stages.selection import Everything

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from discreet.stages.guard import RunGuard
    from discreet.stages.pipeline import Pipeline
    from discreet.stages.plan import Plan

_COMPOSE = "or take analysis=Composition(), under which every plan is proven"


@final
@dataclass(frozen=True, kw_only=True)
class LastIterate:
    """x <- project(x - learning_rate * (sum of clipped gradients / batch + noise + decay x)); only the last x leaves.

    learning_rate  the one of every step: the optimizer is checked against it before each release
    curvature      what is known of the losses (`LinearModel`: certified, `Assumed`: the user's word)
    decay          weight decay of the optimizer

    Guarantee: the certificate of the whole run, for its last iterate and for the iterate of every earlier stop that
    no iterate decided. It is never above composition.
    """

    learning_rate: float
    curvature: Curvature
    decay: float = 0.0

    def __post_init__(self) -> None:
        check.positive("the learning rate of every step", learning_rate=self.learning_rate)
        check.not_negative("weight decay pulls towards zero", decay=self.decay)

    @property
    def visible(self) -> bool:
        return False

    @property
    def composes(self) -> bool:
        return False

    def check(self, stages: Pipeline) -> None:
        """Refuse every stage that the proof does not know."""
        _only(
            isinstance(stages.bounder, FlatClip),
            "FlatClip, the projection of each gradient to a ball",
            type(stages.bounder).__name__,
            "other ways to bound can move two gradients apart: take bounder=FlatClip(...)",
        )
        _only(
            isinstance(stages.mechanism, GaussianNoise),
            "Gaussian noise on the whole gradient",
            type(stages.mechanism).__name__,
            "a projected gradient absorbs no shift elsewhere: take mechanism=GaussianNoise()",
        )
        _only(
            isinstance(stages.selection, Everything),
            "every coordinate in every step",
            type(stages.selection).__name__,
            "frozen coordinates get no noise: take selection=Everything()",
        )
        _only(
            isinstance(stages.combination, TakeFirst),
            "the noisy gradient itself",
            type(stages.combination).__name__,
            "what a combination remembers is hidden state: take combination=TakeFirst()",
        )
        _only(
            isinstance(stages.schedule, Constant),
            "the same noise at every step",
            type(stages.schedule).__name__,
            "the bound is proven for one noise level: take schedule=Constant()",
        )
        _only(
            math.isfinite(stages.domain.diameter),
            "a bounded domain",
            type(stages.domain).__name__,
            "nothing is forgotten in an unbounded one: take domain=Ball(radius=...)",
        )
        _only(
            isinstance(stages.sampling, (FullBatch, FixedSize, Capped)),
            "batches of a public largest size (FullBatch, FixedSize or TruncatedPoissonSampled)",
            type(stages.sampling).__name__,
            "a batch larger than the divisor expands the update: take TruncatedPoissonSampled(cap=...)",
        )

    def whole_run(self, plan: Plan) -> Event | None:
        """The run as one event."""
        horizon, bounder = plan.horizon, plan.bounder
        assert isinstance(bounder, FlatClip)
        step = plan.sampling.bill(plan.mechanism.event(plan.queries(1.0), plan.noise), horizon)
        assert isinstance(step, (Gaussian, TruncatedPoissonSampled, WithoutReplacement))
        return LastIterateRun(
            step=step,
            steps=horizon.steps,
            clip=bounder.clip,
            batch=horizon.size.batch,
            learning_rate=self.learning_rate,
            diameter=plan.domain.diameter,
            expansion=self.expansion(plan),
        )

    def expansion(self, plan: Plan) -> float:
        """c of this plan: a batch holds at most cap (truncated Poisson) or batch records, over a divisor of batch."""
        capped = plan.sampling
        ratio = capped.cap / plan.horizon.size.batch if isinstance(capped, Capped) else 1.0
        return self.curvature.expansion(learning_rate=self.learning_rate, ratio=ratio, decay=self.decay)

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        said = [] if self.curvature.condition is None else [self.curvature.condition]
        if isinstance(self.curvature, LinearModel):
            said.append("each label is part of its record and does not depend on the model")
        if isinstance(plan.sampling, FullBatch) and plan.relation is Neighbouring.ADD_REMOVE:
            said.append("the data never holds more records than the stated public bound")
        return tuple(said)

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        from discreet.methods.dpsgd_dc.guard import LastIterateGuard

        return LastIterateGuard(plan, model, optimizer)


Stages = TypeVar("Stages", bound="Pipeline")


def with_visible_iterates(stages: Stages) -> Stages:
    """The same recipe or plan, certified for an observer who sees every iterate: by composition."""
    return stages.using(analysis=Composition())


def _only(holds: bool, expected: str, got: str, remedy: str) -> None:
    check.require(holds, f"{expected} (LastIterate)", got, f"{remedy}, {_COMPOSE}")
