"""The decays of the noise that D2P2-SGD (arXiv 2509.09485) proposes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from discreet.stages.schedule import Period, PerPeriod


@final
@dataclass(frozen=True)
class InverseRoot(PerPeriod):
    """1 / sqrt(k) in period k = 1, 2, ...: the noise of D2P2-SGD's Theorem 1.

    >>> InverseRoot().factor(3, steps_per_epoch=1)
    0.5
    """

    period: Period = Period.EPOCH

    def at(self, k: int) -> float:
        return 1 / math.sqrt(k)


@final
@dataclass(frozen=True)
class InverseFourthRoot(PerPeriod):
    """1 / k^(1/4) in period k = 1, 2, ...: the variance falls as 1 / sqrt(k), as in D2P2-SGD's Table 3.

    >>> InverseFourthRoot(Period.STEP).factor(15, steps_per_epoch=1)
    0.5
    """

    period: Period = Period.EPOCH

    def at(self, k: int) -> float:
        return 1 / math.sqrt(math.sqrt(k))
