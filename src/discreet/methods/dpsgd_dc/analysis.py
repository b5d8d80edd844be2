"""The analysis of runs that publish their final parameters only. Its epsilon stops growing with the steps.

Proof: docs/proofs/LastIterateRun.md. It helps with full batches and many steps; see docs/methods/dpsgd-dc.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, final

from discreet.accounting.events import Event, Gaussian, LastIterateRun, TruncatedPoissonSampled, WithoutReplacement
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.dpsgd_dc.curvature import Curvature, LinearModel
from discreet.stages.analysis import Composition
from discreet.stages.bounding import FlatClip
from discreet.stages.combination import TakeFirst
from discreet.stages.gaussian_noise import GaussianNoise
from discreet.stages.sampling import FixedSize, FullBatch, TruncatedPoisson
from discreet.stages.schedule import Constant
from discreet.stages.selection import Everything

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from discreet.stages.analysis import RunGuard
    from discreet.stages.pipeline import Pipeline
    from discreet.stages.plan import Plan

_OR_COMPOSE = "or use analysis=Composition(), which covers every plan"


@final
@dataclass(frozen=True, kw_only=True)
class LastIterate:
    """x <- project(x - learning_rate * (sum of clipped gradients / batch + noise + decay x)); only the last x is seen.

    learning_rate  the learning rate of every step; the optimizer is checked before each release
    curvature      what is known about the losses: `LinearModel` (certified) or `Assumed` (stated by the user)
    decay          weight decay of the optimizer

    Guarantee: the certified epsilon covers the final parameters. It also covers the parameters of a run that stops
    earlier, if the decision to stop does not depend on any parameters. It is never larger than by composition.
    """

    learning_rate: float
    curvature: Curvature
    decay: float = 0.0

    def __post_init__(self) -> None:
        check.positive("give the learning rate of every step", learning_rate=self.learning_rate)
        check.not_negative("give the weight decay of the optimizer", decay=self.decay)

    @property
    def visible(self) -> bool:
        return False

    @property
    def composes(self) -> bool:
        return False

    def check(self, stages: Pipeline) -> None:
        """Refuse stages that the proof does not cover."""
        _only(
            isinstance(stages.bounder, FlatClip),
            "FlatClip, which projects each gradient onto a ball",
            type(stages.bounder).__name__,
            "use bounder=FlatClip(...)",
        )
        _only(
            isinstance(stages.mechanism, GaussianNoise),
            "Gaussian noise on the whole gradient",
            type(stages.mechanism).__name__,
            "use mechanism=GaussianNoise()",
        )
        _only(
            isinstance(stages.selection, Everything),
            "all coordinates in every step",
            type(stages.selection).__name__,
            "use selection=Everything()",
        )
        _only(
            isinstance(stages.combination, TakeFirst),
            "the noisy gradient itself",
            type(stages.combination).__name__,
            "use combination=TakeFirst()",
        )
        _only(
            isinstance(stages.schedule, Constant),
            "the same noise at every step",
            type(stages.schedule).__name__,
            "use schedule=Constant()",
        )
        _only(
            math.isfinite(stages.domain.diameter),
            "a bounded domain",
            type(stages.domain).__name__,
            "use domain=Ball(radius=...)",
        )
        _only(
            isinstance(stages.sampling, (FullBatch, FixedSize, TruncatedPoisson)),
            "batches with a public maximum size (FullBatch, FixedSize or TruncatedPoisson)",
            type(stages.sampling).__name__,
            "use sampling=discreet.TruncatedPoisson(cap=...)",
        )

    def whole_run(self, plan: Plan) -> Event | None:
        """The event of the run."""
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


Stages = TypeVar("Stages", bound="Pipeline")


def with_visible_iterates(stages: Stages) -> Stages:
    """Return the recipe or plan with certification by composition, so that all parameters may be seen."""
    return stages.using(analysis=Composition())


def _only(holds: bool, expected: str, got: str, remedy: str) -> None:
    check.require(holds, f"{expected} (LastIterate)", got, f"{remedy}, {_OR_COMPOSE}")
