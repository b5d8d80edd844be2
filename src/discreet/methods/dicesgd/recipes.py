"""DiceSGD (arXiv 2311.14632, Algorithms 2 to 4), and two-level clipping: less clipping bias at the price of DP-SGD."""

from __future__ import annotations

from discreet.accounting.claims import Claim
from discreet.accounting.events import ClippedFeedback as FeedbackEvent
from discreet.core import check
from discreet.methods.dicesgd.analysis import FeedbackRun
from discreet.methods.dicesgd.bounding import FeedbackClip, FeedbackNormalised, TwoLevel
from discreet.methods.dicesgd.claim import AutomaticDiceClaim, DiceClaim
from discreet.methods.dicesgd.combination import SmoothedResidual
from discreet.methods.dicesgd.mechanism import ErrorFeedback, Normalising
from discreet.stages.bounding import FlatClip
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe


def dicesgd(clip: float = 1.0, feedback_clip: float = 1.0, preclip: float | None = None) -> Recipe:
    """DiceSGD: what clipping takes away is kept in secret and fed back, clipped itself.

    feedback_clip  C2, on the mean; the paper wants C2 >= C1. 0: DP-SGD, exactly
    preclip        G: every gradient is cut to it first, which makes the certificate far cheaper

    Algorithm 3 is this release fed to Adam.
    """
    bounder = FeedbackClip(clip, preclip) if feedback_clip != 0 else FlatClip(clip)
    return Recipe(
        method="dicesgd",
        bounder=bounder,
        mechanism=ErrorFeedback(feedback_clip),
        analysis=FeedbackRun(),
        claims=_claim,
    )


def dicesgd_automatic(feedback_clip: float = 1.0) -> Recipe:
    """DiceSGD with normalised gradients and a normalised error (Algorithm 4)."""
    check.positive("the norm of the error that is fed back, e.g. 1.0", feedback_clip=feedback_clip)
    return Recipe(
        method="dicesgd-automatic",
        bounder=FeedbackNormalised(1.0),
        mechanism=ErrorFeedback(feedback_clip, Normalising()),
        analysis=FeedbackRun(),
        claims=_automatic_claim,
    )


def two_level(
    clip: float = 1.0, residual: float = 9.0, kappa: float = 0.1, share: float | None = None
) -> Recipe:
    """Two-level clipping: the clipped sum, and a moving average of the released rest, from one sample.

    residual  bound on what the first clip takes away: no bias where gradients stay within clip + residual
    kappa     weight of the newest residual in its moving average; 1: no averaging
    share     of the noise on the clipped sum (1/share^2 is its part of the price); None: least noise per step
    """
    bounder = TwoLevel.smoothed(clip, residual, kappa) if share is None else TwoLevel(clip, residual, share)
    return Recipe(method="two-level", bounder=bounder, combination=SmoothedResidual(kappa))


def _claim(plan: Plan) -> Claim | None:
    run, records = plan.analysis.whole_run(plan), plan.horizon.records
    if not isinstance(run, FeedbackEvent) or records is None:
        return None
    return DiceClaim(run=run, records=records)


def _automatic_claim(plan: Plan) -> Claim | None:
    run, records = plan.analysis.whole_run(plan), plan.horizon.records
    if not isinstance(run, FeedbackEvent) or records is None:
        return None
    return AutomaticDiceClaim(run=run, records=records)
