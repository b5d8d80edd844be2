"""Zeros that take memory where they are written to, and not before.

The sums of a batch are added parameter by parameter, while what each parameter kept of the records is let go of: with
these, the two never stand side by side.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from discreet.core.peak_memory import give_back

# From so many bytes on, every tensor gets new pages from the system anyway (the largest M_MMAP_THRESHOLD of glibc).
_LARGE: Final = 32 << 20
_MUCH: Final = 64 << 20  # from here on it is worth a share of a step's time to give other memory back first
_ALIGNED: Final = 64  # bytes, as torch aligns memory: products may round differently elsewhere


def lazy_zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`. On a CPU the system clears each page of a large tensor when it is first touched.

    >>> lazy_zeros(2, 3, dtype=torch.float32, device=torch.device("cpu")).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _LARGE:
        return torch.zeros(*shape, dtype=dtype, device=device)
    if size >= _MUCH:
        give_back()  # activations that were freed, in pieces too small for this
    memory = np.zeros(size + _ALIGNED, dtype=np.uint8)  # calloc: torch.zeros writes to every page
    start = -memory.ctypes.data % _ALIGNED
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(*shape)
