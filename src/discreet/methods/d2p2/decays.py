"""Noise schedules of D2P2-SGD (arXiv 2509.09485)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from discreet.stages.schedule import Period, PerPeriod


@final
@dataclass(frozen=True)
class InverseRoot(PerPeriod):
    """The factor 1 / sqrt(k) in period k = 1, 2, ..., as in Theorem 1 of D2P2-SGD.

    >>> InverseRoot().factor(3, steps_per_epoch=1)
    0.5
    """

    period: Period = Period.EPOCH

    def at(self, k: int) -> float:
        return 1 / math.sqrt(k)


@final
@dataclass(frozen=True)
class InverseFourthRoot(PerPeriod):
    """The factor 1 / k^(1/4) in period k = 1, 2, ...; the variance decays as 1 / sqrt(k), as in Table 3 of D2P2-SGD.

    >>> InverseFourthRoot(Period.STEP).factor(15, steps_per_epoch=1)
    0.5
    """

    period: Period = Period.EPOCH

    def at(self, k: int) -> float:
        return 1 / math.sqrt(math.sqrt(k))
