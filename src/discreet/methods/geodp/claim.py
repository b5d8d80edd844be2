"""The privacy claim of the GeoDP paper (arXiv 2504.05618) for one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from discreet.accounting.claims import ABOUT_DELTA, Claim
from discreet.core import check


@final
@dataclass(frozen=True, kw_only=True)
class GeoDpOneStepClaim(Claim):
    """GeoDP claims that one step is (sqrt(2 ln(1.25/delta)) / sigma, delta + delta')-DP with delta' = 1 - beta.

    The paper gives no rule for several steps. For them `epsilon` is None; `one_step` is the claim for a single step.

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
        check.not_negative("give the noise multiplier, sigma in the paper", noise=self.noise)
        check.fraction("give the bounding factor of the paper, e.g. 0.1", beta=self.beta)
        check.count("give the number of steps", steps=self.steps)

    def one_step(self, delta: float) -> float:
        """The claimed epsilon of a single step."""
        check.inside_unit(ABOUT_DELTA, delta=delta)
        return math.sqrt(2 * math.log(1.25 / delta)) / self.noise if self.noise > 0 else math.inf

    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon of a run with one step; None for more steps."""
        return self.one_step(delta) if self.steps == 1 else None

    def delta(self, delta: float) -> float:
        """The claimed delta of one step: delta + delta'."""
        return min(1.0, delta + (1 - self.beta))

    def repeated(self, times: int) -> GeoDpOneStepClaim:
        """The claim with `times` as many steps."""
        return replace(self, steps=self.steps * times)

    def joined(self, other: Claim) -> GeoDpOneStepClaim | None:
        """The claim with the steps of both; None if their settings differ."""
        if isinstance(other, GeoDpOneStepClaim) and replace(other, steps=self.steps) == self:
            return replace(self, steps=self.steps + other.steps)
        return None
