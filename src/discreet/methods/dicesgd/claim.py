"""The privacy claims of the DiceSGD paper (arXiv 2311.14632) for a run."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import final

from discreet.accounting import events
from discreet.accounting.claims import ABOUT_DELTA, Claim
from discreet.core import check


@dataclass(frozen=True, kw_only=True)
class _Claimed(Claim):
    """sqrt(32 T S ln(1/delta)) / (N sigma), if batch <= N/5 and C1 <= C2. The claims differ in S, the square."""

    run: events.ClippedFeedback
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
