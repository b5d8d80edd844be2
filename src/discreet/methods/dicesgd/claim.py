"""What the DiceSGD paper (arXiv 2311.14632) claims for a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from discreet.accounting import events
from discreet.accounting.claims import ABOUT_DELTA, Claim
from discreet.core import check


@final
@dataclass(frozen=True, kw_only=True)
class DiceClaim(Claim):
    """DiceSGD, Theorem 3.8 solved for epsilon: sqrt(32 T (C1^2 + 2 min(C^2, G'^2)) ln(1/delta)) / (N sigma).

    C = batch * C2; G' = G - C1 from the pre-clip, else infinite. Needs batch <= N/5 and C1 <= C2.
    """

    run: events.ClippedFeedback
    records: int
    theorem: str = "DiceSGD (arXiv 2311.14632), Theorem 3.8"
    assumes: str = "the bounds G and sigma exist but may be arbitrarily large; batch/records <= 1/5; C1 <= C2"

    def __post_init__(self) -> None:
        check.count("records is the public size of the data", records=self.records)

    def epsilon(self, delta: float) -> float | None:
        """The claim for the whole run."""
        check.inside_unit(ABOUT_DELTA, delta=delta)
        run = self.run
        if run.batch / self.records > 1 / 5 or run.clip > run.feedback_clip:
            return None
        error = math.inf if run.preclip is None else max(0.0, run.preclip - run.clip)
        square = run.clip**2 + 2 * min(run.batch * run.feedback_clip, error) ** 2
        if run.noise_std_on_mean == 0:
            return math.inf
        top = math.sqrt(32 * run.steps * square * math.log(1 / delta))
        return top / (self.records * run.noise_std_on_mean)


@final
@dataclass(frozen=True, kw_only=True)
class AutomaticDiceClaim(Claim):
    """Algorithm 4's noise solved for epsilon: sqrt(32 T (C1^2 + 2 C2^2) ln(1/delta)) / (N sigma), 96 for C1 = C2.

    Theorem 3.8 has batch * C2 in the place of C2; the paper drops the batch without a word.
    """

    run: events.ClippedFeedback
    records: int
    theorem: str = "DiceSGD (arXiv 2311.14632), Algorithm 4"
    assumes: str = "Theorem 3.8 with C2 in the place of batch * C2; batch/records <= 1/5; C1 <= C2"

    def __post_init__(self) -> None:
        check.count("records is the public size of the data", records=self.records)

    def epsilon(self, delta: float) -> float | None:
        """The claim for the whole run."""
        check.inside_unit("delta is the probability that the claim fails", delta=delta)
        run = self.run
        if run.batch / self.records > 1 / 5 or run.clip > run.feedback_clip:
            return None
        if run.noise_std_on_mean == 0:
            return math.inf
        square = run.clip**2 + 2 * run.feedback_clip**2
        return math.sqrt(32 * run.steps * square * math.log(1 / delta)) / (
            self.records * run.noise_std_on_mean
        )
