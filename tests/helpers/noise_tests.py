"""Statistical tests of released noise, for processes that each draw a part of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

FALSE_ALARM = 1e-9  # of each test below, before it is divided by the number of its comparisons
Values = npt.NDArray[np.float64]


def scale_is_right(z: Values, parts: Sequence[Values]) -> bool:
    """Whether sums of squares agree with N(0, 1): of everything, of every coordinate and of every step.

    A coordinate has few values, so its limits are wide; the `parts` of the ranks are tested as well.
    """
    groups = [z.reshape(1, -1), z.T, z, *(part.reshape(1, -1) for part in parts)]
    for values in groups:
        level = FALSE_ALARM / len(groups) / len(values) / 2
        low, high = (stats.chi2.ppf(p, values.shape[1]) for p in (level, 1 - level))
        squares = (values**2).sum(1)
        if not ((squares > low) & (squares < high)).all():
            return False
    return True


def are_independent(vectors: Sequence[Values]) -> bool:
    """Whether all pairs are uncorrelated: given one vector, the product over its norm is standard normal."""
    pairs = [(a, b) for number, a in enumerate(vectors) for b in vectors[:number]]
    limit = stats.norm.isf(FALSE_ALARM / len(pairs) / 2)
    return all(abs(a @ b) / np.linalg.norm(a) < limit for a, b in pairs)


def same_lengths(parts: Sequence[Values]) -> list[Values]:
    """The parts of the ranks as vectors of one length."""
    shortest = min(part.shape[1] for part in parts)
    return [part[:, :shortest].ravel() for part in parts]
