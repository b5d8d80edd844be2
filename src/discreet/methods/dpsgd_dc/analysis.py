"""The analysis of runs that publish their final parameters only. Its epsilon stops growing with the steps.

Proof: docs/proofs/LastIterateRun.md. It helps with full batches and many steps; see docs/methods/dpsgd-dc.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from discreet.accounting.events import Event, Gaussian, LastIterateRun, TruncatedPoissonSampled, WithoutReplacement
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.dpsgd_dc.curvature import Curvature, LinearModel
from discreet.stages.analysis import Analysis
from discreet.stages.clipping import FlatClip
from discreet.stages.combination import TakeFirst
from discreet.stages.noise import GaussianNoise
from discreet.stages.sampling import FixedSize, FullBatch, TruncatedPoisson
from discreet.stages.schedule import Constant
from discreet.stages.selection import Everything

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from discreet.stages.analysis import RunGuard
    from discreet.stages.pipeline import Pipeline
    from discreet.stages.plan import Plan
    from discreet.stages.values import Released

_OR_COMPOSE = "or use plan.using(analysis=Composition()), which covers every plan"


@final
@dataclass(frozen=True, kw_only=True)
class LastIterate(Analysis):
    """x <- project(x - learning_rate * (sum of clipped gradients / batch + noise + decay x)); only the last x is seen.

    learning_rate  the learning rate of every step; the optimizer is checked before each release
    curvature      what is known about the losses: `LinearModel` (certified) or `Assumed` (stated by the user)
    decay          weight decay of the optimizer

    Guarantee: the certified epsilon covers the final parameters. It also covers the parameters of a run that stops
    earlier, if the decision to stop does not depend on any parameters. It is never larger than by composition.
    """

    visible: ClassVar[bool] = False
    composes: ClassVar[bool] = False
    covers_users: ClassVar[bool] = False  # its bounds on curvature are those of one record's loss
    learning_rate: float
    curvature: Curvature
    decay: float = 0.0

    def __post_init__(self) -> None:
        check.positive("give the learning rate of every step", learning_rate=self.learning_rate)
        check.not_negative("give the weight decay of the optimizer", decay=self.decay)

    def check(self, stages: Pipeline) -> None:
        """Refuse stages that the proof does not cover."""
        limited = "batches with a public maximum size (FullBatch, FixedSize or TruncatedPoisson)"
        capped, use = (FullBatch, FixedSize, TruncatedPoisson), "sampling=discreet.TruncatedPoisson(cap=...)"
        for stage, kinds, expected, remedy in (
            (stages.bounder, FlatClip, "FlatClip, which projects each gradient onto a ball", "bounder=FlatClip(...)"),
            (stages.mechanism, GaussianNoise, "Gaussian noise on the whole gradient", "mechanism=GaussianNoise()"),
            (stages.selection, Everything, "all coordinates in every step", "selection=Everything()"),
            (stages.combination, TakeFirst, "the noisy gradient itself", "combination=TakeFirst()"),
            (stages.schedule, Constant, "the same noise at every step", "schedule=Constant()"),
            (stages.sampling, capped, limited, use),
        ):
            only(isinstance(stage, kinds), expected, type(stage).__name__, f"use {remedy}")
        bounded = math.isfinite(stages.domain.diameter)
        only(bounded, "a bounded domain", type(stages.domain).__name__, "use domain=Ball(radius=...)")

    def whole_run(self, plan: Plan) -> Event | None:
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
        """The Lipschitz constant c of an update.

        It depends on the ratio of the largest batch (`cap` for truncated Poisson) to the public batch size.
        """
        sampling = plan.sampling
        ratio = sampling.cap / plan.horizon.size.batch if isinstance(sampling, TruncatedPoisson) else 1.0
        return self.curvature.expansion(learning_rate=self.learning_rate, ratio=ratio, decay=self.decay)

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        assumed = [] if self.curvature.condition is None else [self.curvature.condition]
        if isinstance(self.curvature, LinearModel):
            assumed.append("each label is part of its record and does not depend on the model")
        if isinstance(plan.sampling, FullBatch) and plan.relation is Neighbouring.ADD_REMOVE:
            assumed.append("the dataset never has more records than the stated public bound")
        return tuple(assumed)

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        from discreet.methods.dpsgd_dc.guard import LastIterateGuard

        return LastIterateGuard(plan, model, optimizer)

    def updating(self, parameters: Sequence[Tensor], released: Released) -> AbstractContextManager[None]:
        """Refuse a step that is not x - learning_rate * (release + decay x), whatever hooks and wrappers did to it."""
        from discreet.methods.dpsgd_dc.guard import exact_update

        return exact_update(self, parameters, released)


def only(holds: bool, expected: str, got: str, remedy: str) -> None:
    """Refuse what the proof does not cover. Every refusal also names the analysis that covers every plan."""
    check.require(holds, f"{expected} (LastIterate)", got, f"{remedy}, {_OR_COMPOSE}")
