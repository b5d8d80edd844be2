"""Which methods of a comparison can be told apart: t tests between runs, corrected for their number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from discreet.runs.comparison.values import MethodResult

LEVEL: Final = 0.05


def p_value(one: MethodResult, other: MethodResult) -> float:
    """The p value of equal mean accuracies, two-sided; 1 where there are too few runs.

    Runs with the same seeds share initial weights and batches, so their differences are tested (paired t test). Runs
    without seeds are independent (Welch's t test).
    """
    first, second = ({run.seed: run.accuracy for run in entry.runs} for entry in (one, other))
    seeds = sorted(seed for seed in first.keys() & second.keys() if seed is not None)
    if seeds:
        return _paired([first[seed] - second[seed] for seed in seeds])
    return _welch([run.accuracy for run in one.runs], [run.accuracy for run in other.runs])


def told_apart(best: MethodResult, others: Sequence[MethodResult]) -> Mapping[str, bool]:
    """Whether each row differs from the best at the 5 % level, over all rows together (Holm 1979)."""
    values = {entry.name: p_value(best, entry) for entry in others}
    found, rejected = {}, True
    for rank, name in enumerate(sorted(values, key=values.__getitem__)):
        rejected = rejected and values[name] <= LEVEL / (len(values) - rank)
        found[name] = rejected
    return found


def _paired(differences: Sequence[float]) -> float:
    """
    >>> round(_paired([0.01, 0.02, 0.03]), 4), _paired([0.5]), _paired([0.0, 0.0]), _paired([0.1, 0.1])
    (0.0742, 1.0, 1.0, 0.0)
    """
    if len(differences) < 2:
        return 1.0
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    return _two_sided(mean, error, len(differences) - 1)


def _welch(first: Sequence[float], second: Sequence[float]) -> float:
    if min(len(first), len(second)) < 2:
        return 1.0
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    freedom = sum(parts) ** 2 / max(
        sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)), 1e-300
    )
    return _two_sided(statistics.fmean(first) - statistics.fmean(second), math.sqrt(sum(parts)), max(freedom, 1.0))


def _two_sided(difference: float, error: float, freedom: float) -> float:
    from scipy.special import stdtr

    if error < 1e-12 * abs(difference):  # all runs differ by the same amount
        return 0.0
    return 1.0 if difference == 0 else float(2 * stdtr(freedom, -abs(difference) / error))
