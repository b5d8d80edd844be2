"""`scipy.special`, imported when one of its functions is first called, and the binomial distribution.

Importing `scipy.special` takes twice as long as importing numpy, and most commands compute nothing with it. Other parts
of scipy take longer still, so accounting does not use them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def __getattr__(name: str) -> Any:
    from scipy import special

    return getattr(special, name)


def binomial_above(count: int, trials: int, rate: float) -> float:
    """P(X > count) for X ~ Bin(trials, rate).

    >>> round(binomial_above(1, 4, 0.5), 4), binomial_above(-1, 4, 0.5), binomial_above(4, 4, 0.5)
    (0.6875, 1.0, 0.0)
    """
    return float(_tails(np.array([count]), trials, rate)[1][0])


def binomial_below(count: int, trials: int, rate: float) -> float:
    """P(X <= count) for X ~ Bin(trials, rate)."""
    return float(_tails(np.array([count]), trials, rate)[0][0])


def binomial_between(counts: Any, trials: int, rate: float) -> Floats:
    """P(X <= counts[0]), P(counts[0] < X <= counts[1]), ... for increasing counts, each from the smaller tail.

    >>> binomial_between([0, 1, 4], 4, 0.5).round(4).tolist()
    [0.0625, 0.25, 0.6875]
    """
    below, above = _tails(np.asarray(counts), trials, rate)
    below, above = np.append(0.0, below), np.append(1.0, above)
    masses: Floats = np.where(above[:-1] < 0.5, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.maximum(masses, 0.0)


def _tails(counts: Any, trials: int, rate: float) -> tuple[Floats, Floats]:
    """P(X <= count) and P(X > count), by the incomplete beta function: both keep their relative precision."""
    from scipy import special

    inside = np.clip(counts, 0, trials - 1)
    above = special.betainc(inside + 1.0, trials - inside, rate)
    below = special.betaincc(inside + 1.0, trials - inside, rate)
    impossible, certain = counts < 0, counts >= trials
    below = np.where(impossible, 0.0, np.where(certain, 1.0, below))
    return below, np.where(impossible, 1.0, np.where(certain, 0.0, above))
