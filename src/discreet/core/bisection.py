"""The least number at which a monotone condition holds."""

import math
from collections.abc import Callable


def least(
    holds: Callable[[float], bool], *, start: float = 1.0, tolerance: float = 1e-12, limit: float = math.inf
) -> float:
    """The least number >= 0 at which `holds`, rounded up by a relative `tolerance`; infinite beyond `limit`.

    >>> least(lambda x: x * x >= 2) >= math.sqrt(2), least(lambda x: True), least(lambda x: False)
    (True, 0.0, inf)
    """
    if holds(0.0):
        return 0.0
    low, high = 0.0, start
    while not holds(high):
        low, high = high, 2 * high
        if high > limit or math.isinf(high):
            return math.inf
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def least_whole(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least whole number of low .. high at which `holds`; `high` if it holds nowhere below."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high
