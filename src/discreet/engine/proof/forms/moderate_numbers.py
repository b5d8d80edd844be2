"""The numbers of a call, without those out of scale.

What a record gets is compared but for rounding: that of few records with that of many, that of one place with that of
another. A number out of scale hides a difference as rounding does: `addmm(place, x, w, beta=1e-9)` is `x @ w` but for
the tenth digit, which the next call can bring back. So such calls are compared with moderate numbers, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

_LEAST: Final = 0.5  # half precision is compared to a twentieth
_MOST: Final = 2.0
MOST_WHOLE: Final = 20


def with_moderate_numbers(tree: Any, *, whole: bool) -> Any | None:
    """Arguments with moderate numbers in place of those out of scale, distinct ones; None if all are moderate.

    whole  whether whole numbers are values, and no sizes
    """
    counted = itertools.count()
    changed = _moderate(tree, counted, whole)
    return changed if next(counted) else None


def _moderate(tree: Any, counted: Iterator[int], whole: bool) -> Any:
    if isinstance(tree, np.generic):
        tree = tree.item()
    if isinstance(tree, bool):
        return tree
    if isinstance(tree, complex):
        return 0.75 + 0.125 * next(counted)
    if isinstance(tree, float):
        is_moderate = tree == 0 or not math.isfinite(tree) or _LEAST <= abs(tree) <= _MOST
        return tree if is_moderate else math.copysign(0.75 + 0.125 * next(counted), tree)
    if isinstance(tree, int):
        is_moderate = not whole or abs(tree) <= MOST_WHOLE
        return tree if is_moderate else (2 + next(counted)) * (1 if tree > 0 else -1)
    if type(tree) in (tuple, list):
        return type(tree)([_moderate(branch, counted, whole) for branch in tree])
    if type(tree) is dict:
        return {name: _moderate(branch, counted, whole) for name, branch in tree.items()}
    return tree
