"""What moved between two runs of a call, and whose it is."""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.engine.trace.capture import RecordAxis


def put(target: Tensor, source: Tensor, axis: RecordAxis, half: Tensor) -> Tensor:
    """`target` with the records of `half` from `source`."""
    return torch.where(_entries(half, axis, target), source, target)


def _entries(half: Tensor, axis: RecordAxis, tensor: Tensor) -> Tensor:
    """Which entries along the record axis belong to the records of `half`, ready to be broadcast."""
    entries, size = half, tensor.shape[axis.axis]
    if size != len(half):
        each = size // len(half)
        entries = half.repeat(each) if axis.minor else half.repeat_interleave(each)
    return entries.view([-1 if i == axis.axis else 1 for i in range(tensor.dim())]).to(tensor.device)


def follows(axis: int, shapes: dict[int, torch.Size], factors: dict[int, int]) -> bool:
    """Whether the size of an axis is the same multiple of every number of records."""
    return all(axis < len(shape) and shape[axis] == factors[axis] * records for records, shape in shapes.items())


def changed(old: Tensor, new: Tensor) -> Tensor | None:
    """Which entries moved; None if none did. NaN equals NaN here."""
    change = old != new
    if old.is_floating_point() or old.is_complex():
        change &= (old == old) | (new == new)
    return change if bool(change.any()) else None


def only(axis: RecordAxis, change: Tensor, half: Tensor) -> bool:
    """Whether nothing moved but entries of the records that were replaced."""
    return not bool((change & ~_entries(half, axis, change)).any())
