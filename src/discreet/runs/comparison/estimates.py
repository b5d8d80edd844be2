"""A mean over runs, with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from discreet.core import check

CONFIDENCE = 0.95


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its standard error and half the width of its t confidence interval.

    error = s / sqrt(n), half = t(0.975, n - 1) * error, with s the sample deviation; both None for one value.

    >>> estimate = Estimate.of([0.91, 0.92, 0.93])
    >>> round(estimate.mean, 4), round(estimate.error, 5), round(estimate.half, 5)
    (0.92, 0.00577, 0.02484)
    """

    mean: float
    error: float | None
    half: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        from scipy.special import stdtrit

        is_valid = len(values) > 0 and all(math.isfinite(value) for value in values)
        check.require(is_valid, "finite values, at least one", f"{list(values)}", "average finished runs only")
        count, mean = len(values), statistics.fmean(values)
        if count == 1:
            return Estimate(mean=mean, error=None, half=None, count=1)
        error = statistics.stdev(values) / math.sqrt(count)
        quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
        return Estimate(mean=mean, error=error, half=quantile * error, count=count)

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals share a point. The interval of a single run overlaps all others."""
        if self.half is None or other.half is None:
            return True
        return self.low <= other.high and other.low <= self.high
