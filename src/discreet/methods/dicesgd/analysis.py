"""The analysis of runs with clipped error feedback. Proof: docs/proofs/ClippedFeedback.md."""

from dataclasses import dataclass
from typing import ClassVar, final

from discreet.accounting import events
from discreet.accounting.events import Event
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.dicesgd.stages import ErrorFeedback, FeedbackClip, FeedbackNormalised
from discreet.stages.analysis import Analysis
from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan
from discreet.stages.sampling import Poisson
from discreet.stages.schedule import Constant
from discreet.stages.selection import Everything


@final
@dataclass(frozen=True)
class FeedbackRun(Analysis):
    """Charges the run with one event, because the accumulated error makes every step depend on earlier records.

    Guarantee: the epsilon of all releases together, as long as the error and the exact sums are never published.
    """

    visible: ClassVar[bool] = True
    composes: ClassVar[bool] = False

    def check(self, stages: Pipeline) -> None:
        """Refuse what the proof does not cover: it needs Poisson sampling, add/remove, constant noise and no masks."""
        mechanism = stages.mechanism
        if not isinstance(mechanism, ErrorFeedback):
            check.refuse("the mechanism ErrorFeedback", type(mechanism).__name__, "use analysis=Composition()")
        if mechanism.clip == 0:
            return  # without feedback every step is a step of DP-SGD
        for stage, kinds in (
            (stages.bounder, (FeedbackClip, FeedbackNormalised)),
            (stages.sampling, (Poisson,)),
            (stages.schedule, (Constant,)),
            (stages.selection, (Everything,)),
        ):
            expected = " or ".join(kind.__name__ for kind in kinds)
            remedy = "use the stages of methods.dicesgd(...): the proof covers no others"
            check.require(isinstance(stage, kinds), expected, type(stage).__name__, remedy)
        remedy = "use discreet.Neighbouring.ADD_REMOVE: the proof covers no other relation"
        check.require(stages.relation is Neighbouring.ADD_REMOVE, "add/remove", str(stages.relation), remedy)

    def whole_run(self, plan: Plan) -> Event | None:
        """The event of the run; None without feedback, where every step is a step of DP-SGD."""
        mechanism, bounder, horizon = plan.mechanism, plan.bounder, plan.horizon
        assert isinstance(mechanism, ErrorFeedback)
        if mechanism.clip == 0:
            return None
        assert isinstance(bounder, FeedbackClip | FeedbackNormalised)
        # The energy bound needs both clips, of the records and of the error, to be projections onto balls.
        projects = mechanism.shortening.is_projection
        return events.ClippedFeedback(
            rate=horizon.rate,
            steps=horizon.steps,
            batch=horizon.size.batch,
            clip=bounder.clip,
            feedback_clip=mechanism.clip,
            noise_std_on_mean=plan.queries(1.0)[0].std(plan.noise) / horizon.size.batch,
            preclip=bounder.preclip if projects and isinstance(bounder, FeedbackClip) else None,
        )
