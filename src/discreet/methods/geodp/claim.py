"""What the GeoDP paper (arXiv 2504.05618) claims for one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from discreet.accounting.claims import ABOUT_DELTA, Claim
from discreet.core import check


@final
@dataclass(frozen=True, kw_only=True)
class GeoDpOneStepClaim(Claim):
    """GeoDP: one step is (sqrt(2 ln(1.25/delta)) / sigma, delta + delta')-DP with delta' = 1 - beta.

    The paper gives no rule for several steps: `one_step` is what can be shown for them, labelled so.

    >>> claim = GeoDpOneStepClaim(noise=1.0, beta=1.0, steps=1)
    >>> round(claim.epsilon(1e-5), 5)
    4.84481
    """

    noise: float
    beta: float
    steps: int = 1
    theorem: str = "GeoDP (arXiv 2504.05618), Lemma 2 and Theorem 5, one step"
    assumes: str = "the angle of an average of B gradients has sensitivity (range of the angle)/B"

    def __post_init__(self) -> None:
        check.not_negative("noise is the multiplier sigma of the paper", noise=self.noise)
        check.fraction("beta is the share of the directions that is protected", beta=self.beta)
        check.count("count the steps", steps=self.steps)

    def one_step(self, delta: float) -> float:
        """The claim for one step alone."""
        check.inside_unit(ABOUT_DELTA, delta=delta)
        return math.sqrt(2 * math.log(1.25 / delta)) / self.noise if self.noise > 0 else math.inf

    def epsilon(self, delta: float) -> float | None:
        """The claim for one step; None for more."""
        return self.one_step(delta) if self.steps == 1 else None

    def delta(self, delta: float) -> float:
        """delta + delta'."""
        return min(1.0, delta + (1 - self.beta))

    def repeated(self, times: int) -> GeoDpOneStepClaim:
        """More steps, for which nothing is claimed."""
        return replace(self, steps=self.steps * times)

    def joined(self, other: Claim) -> GeoDpOneStepClaim | None:
        """More steps, for which nothing is claimed."""
        if isinstance(other, GeoDpOneStepClaim) and replace(other, steps=self.steps) == self:
            return replace(self, steps=self.steps + other.steps)
        return None
