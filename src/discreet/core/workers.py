"""How many processes work at once: small models leave cores idle otherwise."""

from __future__ import annotations

import os
import sys

from discreet.core import check

MOST_WORKERS = 4


def cores() -> int:
    """The processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def crew_size(pieces: int, workers: int | None = None) -> int:
    """For so many pieces of work; `workers` None: one for each core, four at most.

    >>> crew_size(1, 3), crew_size(9, 3)
    (1, 3)
    """
    if workers is not None:
        check.count("how many work at once", workers=workers)
    return min(pieces, min(cores(), MOST_WORKERS) if workers is None else workers)
