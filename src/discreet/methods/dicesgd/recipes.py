"""Recipes of DiceSGD (arXiv 2311.14632, Algorithms 2 to 4) and of two-level clipping, which reduce clipping bias."""

import abc
import math
from dataclasses import dataclass
from typing import final

from discreet.accounting.charges import ABOUT_DELTA, Claim
from discreet.accounting.events import ClippedFeedback
from discreet.core import check
from discreet.methods.dicesgd import stages
from discreet.methods.dicesgd.analysis import FeedbackRun
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan, Recipe


def dicesgd(clip: float = 1.0, feedback_clip: float = 1.0, preclip: float | None = None) -> Recipe:
    """DiceSGD: DP-SGD with clipped error feedback, which reduces the bias of clipping.

    clip           C1, the clipping norm of the records
    feedback_clip  C2, the bound on the fed-back error of the mean; the paper needs C2 >= C1. 0 is exactly DP-SGD
    preclip        G, a larger clipping norm that is applied first; it lowers the certified epsilon considerably

    Algorithm 3 of the paper is this recipe with Adam.
    """
    bounder = stages.FeedbackClip(clip, preclip) if feedback_clip != 0 else FlatClip(clip)
    feedback = stages.ErrorFeedback(feedback_clip)
    return Recipe(method="dicesgd", bounder=bounder, mechanism=feedback, analysis=FeedbackRun(), claims=_claim)


def dicesgd_automatic(feedback_clip: float = 1.0) -> Recipe:
    """DiceSGD with normalised gradients and a normalised error (Algorithm 4)."""
    check.positive("choose the norm of the fed-back error, e.g. 1.0", feedback_clip=feedback_clip)
    bounder, feedback = stages.FeedbackNormalised(1.0), stages.ErrorFeedback(feedback_clip, stages.Normalising())
    return Recipe(
        method="dicesgd-automatic", bounder=bounder, mechanism=feedback, analysis=FeedbackRun(), claims=_claim
    )


def two_level(clip: float = 1.0, residual: float = 9.0, kappa: float = 0.1, share: float | None = None) -> Recipe:
    """Two-level clipping: adds a moving average of the released residuals to the clipped gradient.

    clip      clipping norm of the gradients
    residual  clipping norm of the residuals; gradients with norm up to clip + residual are not biased
    kappa     weight of the newest residual in the moving average; 1 means no averaging
    share     factor on the noise multiplier of the clipped sum; None: the least noise per step
    """
    two = stages.TwoLevel
    bounder = two.smoothed(clip, residual, kappa) if share is None else two(clip, residual, share)
    return Recipe(method="two-level", bounder=bounder, combination=stages.SmoothedResidual(kappa))


def _claim(plan: Plan) -> Claim | None:
    run, records = plan.analysis.whole_run(plan), plan.horizon.records
    if not isinstance(run, ClippedFeedback) or records is None:
        return None
    claim = AutomaticDiceClaim if isinstance(plan.bounder, stages.FeedbackNormalised) else DiceClaim
    return claim(run=run, records=records)


@dataclass(frozen=True, kw_only=True)
class _Claimed(Claim):
    """sqrt(32 T S ln(1/delta)) / (N sigma), if batch <= N/5 and C1 <= C2. The claims differ in S, the square."""

    run: ClippedFeedback
    records: int

    def __post_init__(self) -> None:
        check.count("give the public number of records", records=self.records)

    @abc.abstractmethod
    def square(self) -> float:
        """The squared sensitivity S that the paper uses."""

    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon of the whole run; None if the theorem does not apply."""
        check.inside_unit(ABOUT_DELTA, delta=delta)
        run = self.run
        if run.batch / self.records > 1 / 5 or run.clip > run.feedback_clip:
            return None
        if run.noise_std_on_mean == 0:
            return math.inf
        return math.sqrt(32 * run.steps * self.square() * math.log(1 / delta)) / (self.records * run.noise_std_on_mean)


@final
@dataclass(frozen=True, kw_only=True)
class DiceClaim(_Claimed):
    """DiceSGD, Theorem 3.8 solved for epsilon: S = C1^2 + 2 min(C^2, G'^2).

    Here C = batch * C2, and G' = G - C1 with pre-clip G, or infinity without one.
    """

    theorem: str = "DiceSGD (arXiv 2311.14632), Theorem 3.8"
    assumes: str = "bounds G and sigma exist but may be arbitrarily large; batch/records <= 1/5; C1 <= C2"

    def square(self) -> float:
        run = self.run
        error = math.inf if run.preclip is None else max(0.0, run.preclip - run.clip)
        return run.clip**2 + 2 * min(run.batch * run.feedback_clip, error) ** 2


@final
@dataclass(frozen=True, kw_only=True)
class AutomaticDiceClaim(_Claimed):
    """The noise of Algorithm 4 solved for epsilon: S = C1^2 + 2 C2^2.

    For C1 = C2 this is the paper's constant 96. Theorem 3.8 has batch * C2 where Algorithm 4 has C2; the paper does not
    explain why the batch size is dropped.
    """

    theorem: str = "DiceSGD (arXiv 2311.14632), Algorithm 4"
    assumes: str = "Theorem 3.8 with C2 instead of batch * C2; batch/records <= 1/5; C1 <= C2"

    def square(self) -> float:
        return self.run.clip**2 + 2 * self.run.feedback_clip**2
