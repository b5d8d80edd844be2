"""Normals that are drawn on a thread of their own while a core has nothing else to do."""

import os
import threading
from typing import Final, Self, final

import numpy as np
import torch

from discreet.core import normals

LEAST: Final = 1 << 16  # fewer normals are not worth a thread
MOST: Final = 1 << 20  # more would leave the cache, and reading them again would take longer than drawing them
_PIECE: Final = 1 << 17  # normals drawn at a time
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

    Guarantee: `wait` gives what a draw at these positions gives, all of it, whatever happened to the thread. It takes
    over what the thread has not begun, so a busy core delays it by one piece at most.
    """

    def __init__(self, key: bytes, first: int, memory: normals.Floats) -> None:
        self._key, self._first, self._values = key, first, memory
        self._lock, self._begun, self._made = threading.Lock(), 0, 0
        self._thread: threading.Thread | None = None

    @classmethod
    def begin(cls, key: bytes, first: int, memory: normals.Floats) -> Self:
        """Draw to `memory`, which belongs to this object until `wait`."""
        ahead, thread = cls(key, first, memory), None
        try:
            thread = threading.Thread(target=ahead._draw_pieces, daemon=True)
            thread.start()
            ahead._thread = thread
        except RuntimeError:  # no thread to be had: `wait` draws everything
            pass
        return ahead

    def wait(self) -> normals.Floats:
        """All values. If this is interrupted, it can be called again."""
        self._draw_pieces()
        if self._thread is not None:
            self._thread.join()
        if self._made != len(self._values):  # a piece was begun and not finished
            self._draw(0, len(self._values))
            self._made = len(self._values)
        return self._values

    def _draw_pieces(self) -> None:
        """Draw pieces until none is left. This thread and the one that waits take turns."""
        while True:
            with self._lock:
                start = self._begun
                self._begun = stop = min(start + _PIECE, len(self._values))
            if start == stop:
                return
            self._draw(start, stop)
            with self._lock:
                self._made += stop - start

    def _draw(self, start: int, stop: int) -> None:
        part = self._values[start:stop]
        part.fill(0.0)
        normals.add(self._key, self._first + start // 2, part, 1.0, threads=1)
