"""Zeros that take memory where they are written to, and not before.

The sums of a batch are added parameter by parameter, while what each parameter kept of the records is let go of: with
these, the two never stand side by side.
"""

from __future__ import annotations

import math
import mmap
import sys
from typing import Final

import torch
from torch import Tensor

from discreet.core.peak_memory import give_back

# From so many bytes on, the allocator takes new pages from the system itself, unless it finds as much that was freed
# (the largest M_MMAP_THRESHOLD of glibc).
_LARGE: Final = 32 << 20
_MUCH: Final = 64 << 20  # from here on it is worth a share of a step's time to give other memory back first


def lazy_zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`. On a CPU the system clears each page of a large tensor when it is first touched.

    >>> lazy_zeros(2, 3, dtype=torch.float32, device=torch.device("cpu")).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _LARGE or sys.platform == "win32":
        return torch.zeros(*shape, dtype=dtype, device=device)
    if size >= _MUCH:
        give_back()  # activations that were freed, in pieces too small for this
    # Pages of its own: torch.zeros writes to every page, and so does calloc where it finds freed memory.
    # They are private: a process that is forked from here must not share them.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
