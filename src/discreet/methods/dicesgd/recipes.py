"""Recipes of DiceSGD (arXiv 2311.14632, Algorithms 2 to 4) and of two-level clipping, which reduce clipping bias."""

from __future__ import annotations

from discreet.accounting.claims import Claim
from discreet.accounting.events import ClippedFeedback
from discreet.core import check
from discreet.methods.dicesgd.analysis import FeedbackRun
from discreet.methods.dicesgd.claim import AutomaticDiceClaim, DiceClaim
from discreet.methods.dicesgd.clipping import FeedbackClip, FeedbackNormalised, TwoLevel
from discreet.methods.dicesgd.combination import SmoothedResidual
from discreet.methods.dicesgd.error_feedback import ErrorFeedback, Normalising
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe


def dicesgd(clip: float = 1.0, feedback_clip: float = 1.0, preclip: float | None = None) -> Recipe:
    """DiceSGD: DP-SGD with clipped error feedback, which reduces the bias of clipping.

    clip           C1, the clipping norm of the records
    feedback_clip  C2, the bound on the fed-back error of the mean; the paper needs C2 >= C1. 0 is exactly DP-SGD
    preclip        G, a larger clipping norm that is applied first; it lowers the certified epsilon considerably

    Algorithm 3 of the paper is this recipe with Adam.
    """
    bounder = FeedbackClip(clip, preclip) if feedback_clip != 0 else FlatClip(clip)
    return Recipe(
        method="dicesgd", bounder=bounder, mechanism=ErrorFeedback(feedback_clip), analysis=FeedbackRun(), claims=_claim
    )


def dicesgd_automatic(feedback_clip: float = 1.0) -> Recipe:
    """DiceSGD with normalised gradients and a normalised error (Algorithm 4)."""
    check.positive("choose the norm of the fed-back error, e.g. 1.0", feedback_clip=feedback_clip)
    return Recipe(
        method="dicesgd-automatic",
        bounder=FeedbackNormalised(1.0),
        mechanism=ErrorFeedback(feedback_clip, Normalising()),
        analysis=FeedbackRun(),
        claims=_claim,
    )


def two_level(clip: float = 1.0, residual: float = 9.0, kappa: float = 0.1, share: float | None = None) -> Recipe:
    """Two-level clipping: adds a moving average of the released residuals to the clipped gradient.

    clip      clipping norm of the gradients
    residual  clipping norm of the residuals; gradients with norm up to clip + residual are not biased
    kappa     weight of the newest residual in the moving average; 1 means no averaging
    share     factor on the noise multiplier of the clipped sum; None: the least noise per step
    """
    bounder = TwoLevel.smoothed(clip, residual, kappa) if share is None else TwoLevel(clip, residual, share)
    return Recipe(method="two-level", bounder=bounder, combination=SmoothedResidual(kappa))


def _claim(plan: Plan) -> Claim | None:
    run, records = plan.analysis.whole_run(plan), plan.horizon.records
    if not isinstance(run, ClippedFeedback) or records is None:
        return None
    claim = AutomaticDiceClaim if isinstance(plan.bounder, FeedbackNormalised) else DiceClaim
    return claim(run=run, records=records)
