"""Which tensors noise can be added to: those in float32 or float64, with memory for each element."""

import torch

from discreet.core import check


def check_dtype(dtype: torch.dtype) -> None:
    remedy = "sum and add noise in float32, then cast the result"
    check.require(dtype in (torch.float32, torch.float64), "noise in float32 or float64", dtype, remedy)


def check_own_cells(value: torch.Tensor) -> None:
    """Refuse a tensor of which two elements share memory, by the strides: each dimension steps over all finer ones."""
    steps = sorted((step, size) for step, size in zip(value.stride(), value.shape, strict=True) if size > 1)
    filled, apart = 1, True
    for step, size in steps:
        apart = apart and step >= filled
        filled = step * size
    layout = f"shape {list(value.shape)} with strides {list(value.stride())}"
    remedy = "clone() it: elements that share memory would share their noise"
    check.require(apart, "a tensor with memory for each element", layout, remedy)
