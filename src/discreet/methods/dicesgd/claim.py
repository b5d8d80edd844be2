"""The privacy claims of the DiceSGD paper (arXiv 2311.14632) for a run."""

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

    Here C = batch * C2, and G' = G - C1 with pre-clip G, or infinity without one. It needs batch <= N/5 and C1 <= C2.
    """

    run: events.ClippedFeedback
    records: int
    theorem: str = "DiceSGD (arXiv 2311.14632), Theorem 3.8"
    assumes: str = "bounds G and sigma exist but may be arbitrarily large; batch/records <= 1/5; C1 <= C2"

    def __post_init__(self) -> None:
        check.count("give the public number of records", records=self.records)

    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon of the whole run; None if the theorem does not apply."""
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
    """The noise of Algorithm 4 solved for epsilon: sqrt(32 T (C1^2 + 2 C2^2) ln(1/delta)) / (N sigma).

    For C1 = C2 this is the paper's constant 96. Theorem 3.8 has batch * C2 where Algorithm 4 has C2; the paper does not
    explain why the batch size is dropped.
    """

    run: events.ClippedFeedback
    records: int
    theorem: str = "DiceSGD (arXiv 2311.14632), Algorithm 4"
    assumes: str = "Theorem 3.8 with C2 instead of batch * C2; batch/records <= 1/5; C1 <= C2"

    def __post_init__(self) -> None:
        check.count("give the public number of records", records=self.records)

    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon of the whole run; None if the theorem does not apply."""
        check.inside_unit(ABOUT_DELTA, delta=delta)
        run = self.run
        if run.batch / self.records > 1 / 5 or run.clip > run.feedback_clip:
            return None
        if run.noise_std_on_mean == 0:
            return math.inf
        square = run.clip**2 + 2 * run.feedback_clip**2
        return math.sqrt(32 * run.steps * square * math.log(1 / delta)) / (self.records * run.noise_std_on_mean)
