"""The analysis of runs with clipped error feedback. Proof: docs/proofs/ClippedFeedback.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.accounting import events
from discreet.accounting.events import Event
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.dicesgd.bounding import FeedbackClip, FeedbackNormalised
from discreet.methods.dicesgd.mechanism import ErrorFeedback
from discreet.stages.analysis import NoGuard, RunGuard
from discreet.stages.bounding import FlatClip
from discreet.stages.sampling import Poisson
from discreet.stages.schedule import Constant
from discreet.stages.selection import Everything

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from discreet.stages.pipeline import Pipeline
    from discreet.stages.plan import Plan


@final
@dataclass(frozen=True)
class FeedbackRun:
    """Charges the run with one event, because the accumulated error makes every step depend on earlier records.

    Guarantee: the epsilon of all releases together, as long as the error and the exact sums are never published.
    """

    @property
    def visible(self) -> bool:
        return True

    @property
    def composes(self) -> bool:
        return False

    def check(self, stages: Pipeline) -> None:
        """Refuse what the proof does not cover: it needs Poisson sampling, add/remove, constant noise and no masks."""
        mechanism = stages.mechanism
        check.require(
            isinstance(mechanism, ErrorFeedback),
            "the mechanism ErrorFeedback",
            type(mechanism).__name__,
            "use analysis=Composition()",
        )
        assert isinstance(mechanism, ErrorFeedback)
        fitting = (FeedbackClip, FeedbackNormalised) if mechanism.clip > 0 else (FeedbackClip, FlatClip)
        for stage, kinds in (
            (stages.bounder, fitting),
            (stages.sampling, (Poisson,)),
            (stages.schedule, (Constant,)),
            (stages.selection, (Everything,)),
        ):
            check.require(
                mechanism.clip == 0 or isinstance(stage, kinds),
                " or ".join(kind.__name__ for kind in kinds),
                type(stage).__name__,
                "use the stages of methods.dicesgd(...): the proof covers no others",
            )
        check.require(
            mechanism.clip == 0 or stages.relation is Neighbouring.ADD_REMOVE,
            "add/remove",
            str(stages.relation),
            "use discreet.Neighbouring.ADD_REMOVE: the proof covers no other relation",
        )

    def whole_run(self, plan: Plan) -> Event | None:
        """The event of the run; None without feedback, where every step is a step of DP-SGD."""
        mechanism, bounder, horizon = plan.mechanism, plan.bounder, plan.horizon
        assert isinstance(mechanism, ErrorFeedback)
        if mechanism.clip == 0:
            return None
        assert isinstance(bounder, FeedbackClip | FeedbackNormalised)
        # The energy bound needs both clips, of the records and of the error, to be projections onto balls.
        projected = isinstance(bounder, FeedbackClip) and mechanism.shortening.is_projection
        return events.ClippedFeedback(
            rate=horizon.rate,
            steps=horizon.steps,
            batch=horizon.size.batch,
            clip=bounder.clip,
            feedback_clip=mechanism.clip,
            noise_std_on_mean=plan.queries(1.0)[0].std(plan.noise) / horizon.size.batch,
            preclip=bounder.preclip if projected and isinstance(bounder, FeedbackClip) else None,
        )

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return ()

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        return NoGuard()
