"""Norms of rows, and whether numbers lie in a range, at every magnitude.

Small tensors on a CPU are measured by compiled code (_lengths.c), where a call of torch would take longer than what it
computes. Without a compiler torch measures all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

try:
    from discreet.engine.factors import _lengths as compiled
except ImportError:  # no compiler
    compiled = None  # type: ignore[assignment]

# Squares are added up in blocks of this many and the blocks in float64: no small square is ever lost.
_BLOCK: Final = 128
_LARGEST: Final = torch.finfo(torch.float64).max
# Up to so many numbers, one thread without the overhead of torch's calls is the faster one (measured on two cores).
_SMALL: Final = 1 << 19
_FLOATS: Final = (torch.float32, torch.float64)


def widen(tensor: Tensor) -> Tensor:
    """At least float32: norms and sums never run in half precision."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def is_small(tensor: Tensor) -> bool:
    """Whether compiled code can read a tensor, and is worth it."""
    is_there = compiled is not None and tensor.dtype in _FLOATS and tensor.device.type == "cpu"
    return is_there and tensor.numel() <= _SMALL and tensor.is_contiguous()


def _are_small_doubles(vectors: Sequence[Tensor], count: int) -> bool:
    """Whether compiled code can read so many float64 numbers of each; it trusts this, and would read past the end."""
    return all(is_small(one) and one.dtype == torch.float64 and one.numel() == count for one in vectors)


def is_within(values: Tensor, least: float, most: float) -> bool:
    """Whether all values lie in [least, most]; a NaN lies nowhere."""
    count = values.numel()
    if is_small(values):
        return compiled.is_within(values.data_ptr(), values.dtype == torch.float64, count, least, most)
    if not count:
        return True
    low, high = values.aminmax()
    return float(low) >= least and float(high) <= most


def are_products_above(weights_N: Tensor, left_N: Tensor, right_N: Tensor, least: float) -> bool:
    """Whether min(left, right) * min(|weight|, 1) is at least `least` for every record; a NaN is not."""
    if is_small(weights_N) and _are_small_doubles((left_N, right_N), weights_N.numel()):
        is_double = weights_N.dtype == torch.float64
        left, right = left_N.data_ptr(), right_N.data_ptr()
        return compiled.are_products_above(weights_N.data_ptr(), is_double, left, right, len(weights_N), least)
    return is_within(torch.minimum(left_N, right_N) * weights_N.abs().clamp(max=1), least, math.inf)


@cache
def _block_of(columns: int) -> int:
    """The largest block that divides the columns, if one is large enough to be worth it."""
    if columns <= _BLOCK:
        return max(columns, 1)
    return next((size for size in range(_BLOCK, _BLOCK // 4, -1) if columns % size == 0), _BLOCK)


@cache
def _least_norm(columns: int, dtype: torch.dtype) -> float:
    """The least norm of so many numbers whose squares lose no digits."""
    return math.sqrt(columns * torch.finfo(dtype).tiny * 2.0**26)


def row_norms(tensor: Tensor) -> Tensor:
    """Norms over everything but the first axis, float64, relative error below 2^-17 at every magnitude."""
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    flat = widen(tensor).reshape(rows, columns)
    if is_small(flat):
        norms = torch.empty(rows, dtype=torch.float64)
        is_double = flat.dtype == torch.float64
        compiled.row_norms(flat.data_ptr(), is_double, rows, columns, norms.data_ptr())
        if not is_double:  # squares of float32 neither overflow nor vanish in float64
            return norms
    else:
        norms = _by_blocks(flat)
    # Where squares overflow or lose digits, measure again, scaled by the largest entry.
    floor = _least_norm(columns, flat.dtype)
    if columns and not is_within(norms, floor, _LARGEST):
        _measure_again(flat, norms, ~((norms >= floor) & norms.isfinite()))
    return norms


def _by_blocks(flat: Tensor) -> Tensor:
    """Norms of rows in torch's calls, wherever the tensor is."""
    rows, columns = flat.shape
    block = _block_of(columns)
    whole = columns - columns % block
    norms: Tensor
    if columns == block:
        norms = torch.linalg.vector_norm(flat, dim=1).double()
        return norms
    pieces = torch.linalg.vector_norm(flat[:, :whole].view(rows, whole // block, block), dim=2).double()
    if whole < columns:
        rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, keepdim=True).double()
        pieces = torch.cat([pieces, rest], 1)
    norms = torch.linalg.vector_norm(pieces, dim=1)
    return norms


def _measure_again(flat: Tensor, norms: Tensor, odd: Tensor) -> None:
    """Replace the norms of some rows by those of the rows divided by their largest entries; rows of zeros stay."""
    index = odd.nonzero().flatten()
    some = flat[index] if len(index) < len(flat) else flat
    largest = torch.maximum(some.amax(1), -some.amin(1)).double()  # of the sizes, in one pass each
    norms[index] = largest
    index, scale = index[largest != 0], largest[largest != 0].unsqueeze(1)
    if index.numel():
        norms[index] = torch.linalg.vector_norm(flat[index].double() / scale, dim=1) * scale.squeeze(1)


def length_bound(tensor: Tensor) -> float:
    """At least the norm of every part of a tensor, and infinite where one rough pass cannot tell.

    Added in float32, in whatever order, up to 2^22 squares lose at most a quarter of their sum, and those that vanish
    are less than a sixteenth of it here: the norm is less than 1.25 times what was found.
    """
    if tensor.numel() > 1 << 22:
        return math.inf
    length = float(torch.linalg.vector_norm(tensor))
    return 1.25 * length if length >= 4 * math.sqrt(tensor.numel() * torch.finfo(tensor.dtype).tiny) else math.inf


def root_of_squares(norms: Sequence[Tensor]) -> Tensor:
    """sqrt(sum of squares) of float64 vectors, scaled so that no square overflows or vanishes."""
    if _are_small_doubles(norms, norms[0].numel()):
        roots = torch.empty_like(norms[0])
        compiled.root_of_squares(tuple(one.data_ptr() for one in norms), len(roots), roots.data_ptr())
        return roots
    stacked = torch.stack(list(norms))
    scale = stacked.amax(0).clamp(min=torch.finfo(torch.float64).tiny)
    return (stacked / scale).square().sum(0).sqrt() * scale


def are_finite(values: Tensor) -> bool:
    """Whether all values are finite and none is negative."""
    return is_within(values, 0.0, _LARGEST)
