"""Processor times compared in one run: a limit in seconds would test the machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

Work = Callable[[int], object]
"""Some work; it gets the number of the repeat, so that it can avoid caches."""


def times_as_long(work: Work, reference: Work, *, repeats: int = 3) -> float:
    """The processor time of `work` over that of `reference`: the best of several, measured in turns."""
    best = [float("inf"), float("inf")]
    for repeat in range(repeats):
        for index, one in enumerate((work, reference)):
            start = time.process_time()
            one(repeat)
            best[index] = min(best[index], time.process_time() - start)
    return best[0] / max(best[1], 1e-6)


def import_time(modules: str) -> float:
    """The processor time of importing these in a new interpreter, the best of three, start-up not counted."""
    program = f"import time; start = time.process_time(); import {modules}; print(time.process_time() - start)"
    command = [sys.executable, "-c", program]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3))
