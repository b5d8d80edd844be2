"""Normals that are drawn on a thread of their own while a core has nothing else to do."""

import os
from typing import Final, final

import numpy as np
import torch

from discreet.core import normals

LEAST: Final = 1 << 16  # fewer normals are not worth a thread
MOST: Final = 1 << 20  # more would leave the cache, and reading them again would take longer than drawing them
_KNOWS_AFFINITY: Final = "sched_getaffinity" in dir(os)


def core_is_free() -> bool:
    """Whether torch leaves a processor of this process unused, and the compiled generator could use it."""
    processors = len(os.sched_getaffinity(0)) if _KNOWS_AFFINITY else os.cpu_count() or 1
    return normals.is_compiled() and processors > torch.get_num_threads()


def memory_for(count: int, kept: normals.Floats) -> normals.Floats:
    """Memory for `count` values: that of the last time if it fits, since new pages take as long as their noise."""
    return kept[:count] if len(kept) >= count else np.empty(count)


@final
class NormalsAhead:
    """The standard normals of the pairs from `first` on, an even number.

    Guarantee: `wait` gives what a draw at these positions gives, all of it, also in a forked process, which has no such
    thread. It takes over what the thread has not begun, so a busy core delays it by one piece at most. The thread never
    holds the interpreter lock: Python threads took more time from the training than the noise itself.
    """

    def __init__(self, key: bytes, first: int, memory: normals.Floats, *, beside: bool = True) -> None:
        """Draw to `memory`, which belongs to this object until `wait`. Without `beside` the one who waits draws."""
        self._values = memory
        self._begun = normals.begin(key, first, memory, beside=beside)

    def wait(self) -> normals.Floats:
        """All values. If this is interrupted, it can be called again."""
        normals.finish(self._begun)
        return self._values
