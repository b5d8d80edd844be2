"""Which axis of a tensor is the record, shown by passes of two sizes and by replacing single records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.trace.capture import RecordAxis
from discreet.engine.trace.settings import LARGE, SMALL


def record_axis(small: Tensor, large: Tensor, moved: Sequence[Tensor], what: str) -> RecordAxis | None:
    """The axis that follows the number of records, or None for a constant; refuses what mixes records.

    `moved` are the values of the large batch with one record after the other replaced.
    """
    if small.dim() != large.dim():
        _refuse_mixing(what, f"shape {tuple(small.shape)} for {SMALL} records, {tuple(large.shape)} for {LARGE}")
    axis = _follower(small, large)
    if isinstance(axis, str):
        _refuse_mixing(what, axis)
    changes = [_changed(large, other) for other in moved]
    if axis is None:
        if any(bool(change.any()) for change in changes):
            _refuse_mixing(what, "entries of no record's own move when one record changes")
        return None
    layouts = [RecordAxis(axis), RecordAxis(axis, minor=True)]
    fitting = [one for one in layouts if all(_only(one, change, j) for j, change in enumerate(changes))]
    if not fitting:
        _refuse_mixing(what, "replacing one record moves entries of the others")
    if len(fitting) > 1 and large.shape[axis] > LARGE:
        _refuse_mixing(what, "several rows per record, in an order that nothing shows")
    return fitting[0]


def same_for_every_size(small: Tensor, large: Tensor) -> None:
    """Refuse values that move with the number of records, which is private.

    The first records of `large` are those of `small`.
    """
    axis = _follower(small, large)
    if not small.is_floating_point() or isinstance(axis, str):
        return
    if axis is not None:
        pairs = [
            (layout.split(small, SMALL), layout.split(large, LARGE)[:SMALL])
            for layout in (RecordAxis(axis), RecordAxis(axis, minor=True))
        ]
    else:
        pairs = [(small, large)]
    if not any(_close(a, b) for a, b in pairs):
        refuse(
            "values of a record that are the same in a batch of any size",
            "values that move with the number of records",
            "do not divide by the size of the batch, which is private: the plan's batch divides the update",
        )


def _follower(small: Tensor, large: Tensor) -> int | str | None:
    """The one axis that follows the number of records; None if none does; a reason if that is unclear."""
    sizes = list(enumerate(zip(small.shape, large.shape, strict=True)))
    changing = [axis for axis, (a, b) in sizes if a != b]
    if not changing:
        return None
    axis = changing[0]
    if len(changing) > 1 or small.shape[axis] * LARGE != large.shape[axis] * SMALL:
        return f"shape {tuple(small.shape)} for {SMALL} records, {tuple(large.shape)} for {LARGE}"
    return axis


def _close(first: Tensor, second: Tensor) -> bool:
    """Equal but for rounding, which differs between batch sizes; half precision rounds a lot."""
    half = first.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(first.device.type)
    finite = first[first.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(first, second, rtol=0.0, atol=scale * (0.1 if half else 1e-2), equal_nan=True)


def _changed(first: Tensor, second: Tensor) -> Tensor:
    same = (first == second) | ((first != first) & (second != second))  # NaN equals NaN here
    return ~same


def _only(axis: RecordAxis, change: Tensor, record: int) -> bool:
    by_record = axis.split(change, LARGE)
    return not any(bool(by_record[j].any()) for j in range(LARGE) if j != record)


def _refuse_mixing(what: str, came: str) -> NoReturn:
    refuse(
        f"{what} to keep the records apart",
        came,
        "remove the op that mixes records (batch statistics, in-batch comparisons), or give it one record's "
        "view; an input that is no tensor of records must not have one row per record",
    )
