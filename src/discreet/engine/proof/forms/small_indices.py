"""Smaller sizes for an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from discreet.engine.proof.forms.bound_arguments import SHARED, BoundArguments, Sizes, SmallCall, whole


def smaller_index(call: BoundArguments) -> SmallCall:
    """input[index]: axes that are copied whole are made smaller, and so are those of which one place is taken.

    That place is the first, the last or one between, and all between are alike.
    """
    index, sizes = call.get(1, "index"), call.size(0, "self")
    parts = index if type(index) is tuple else (index,)
    if any(isinstance(part, Tensor) for part in parts):
        _rows_by_number(parts, sizes)
        return _indexed(call, index, [sizes[0], *(min(size, SHARED) for size in sizes[1:])], is_fixed=False)
    if not all(map(_names_one_axis, parts)) or parts.count(...) > 1:
        raise ValueError("conditions, lists, or bounds in tensors")
    has_bounds, taken, new = any(map(_is_bounded, parts)), list[Any](), list[Any]()
    for part, axis in _with_axes(parts, len(sizes)):
        taken.append(part)
        if axis is None:
            continue
        size = sizes[axis]
        is_whole = type(part) is slice and not _is_bounded(part)
        if type(part) is int and not has_bounds:  # else bounds and places may follow the number of records
            whole(size)
            taken[-1] = part if size <= SHARED else {0: 0, size - 1: SHARED - 1}.get(part % size, 1)
            is_whole = True
        new.append(min(size, SHARED) if is_whole and type(size) is int else size)
    return _indexed(call, index if has_bounds else tuple(taken), new, is_fixed=not has_bounds)


def _indexed(call: BoundArguments, index: Any, sizes: list[Any], *, is_fixed: bool) -> SmallCall:
    if tuple(sizes) == tuple(call.size(0, "self")):
        raise ValueError("nothing to make smaller")
    call.resize(0, "self", tuple(sizes))
    call.put(1, "index", index)
    return call.done(is_fixed=is_fixed, has_rows=True)


def _with_axes(parts: tuple[Any, ...], axes: int) -> Iterator[tuple[Any, int | None]]:
    """Each part of an index with the axis that it stands for; axes that none names are whole."""
    axis, unnamed = 0, axes - sum(part is not None and part is not ... for part in parts)
    for part in parts if ... in parts else (*parts, ...):
        if part is None:
            yield None, None
            continue
        for own in [slice(None)] * unnamed if part is ... else [part]:
            yield own, axis
            axis += 1


def _is_bounded(part: Any) -> bool:
    return type(part) is slice and part != slice(None)


def _rows_by_number(parts: Any, sizes: Sizes) -> None:
    """Only table[numbers], for one tensor of whole numbers and a table without records."""
    if len(parts) > 1 or parts[0].dtype not in (torch.int64, torch.int32):
        raise ValueError("conditions, or several tensors")
    whole(*sizes)


def _names_one_axis(part: Any) -> bool:
    """Whether a part of an index stands for the next axis, for a new one or for all that no other names."""
    if type(part) is slice:
        return all(bound is None or type(bound) is int for bound in (part.start, part.stop, part.step))
    return part is None or part is ... or type(part) is int
