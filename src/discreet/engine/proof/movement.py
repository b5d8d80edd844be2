"""What moved between two runs of a call, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from discreet.engine.proof.forms.provable_call import UnprovableError
from discreet.engine.trace.capture import RecordAxis

_ROUNDING: Final = 1e-3


def put(target: Tensor, source: Tensor, axis: RecordAxis, half: Tensor) -> Tensor:
    """`target` with the records of `half` from `source`."""
    return torch.where(_entries(half, axis, target), source, target)


def _entries(half: Tensor, axis: RecordAxis, tensor: Tensor) -> Tensor:
    """Which entries along the record axis belong to the records of `half`, ready to be broadcast."""
    return _entries_of(half, axis, tensor.shape[axis.axis], tensor.dim(), tensor.device)


@lru_cache(1000)  # halves are few, and the same objects in all proofs
def _entries_of(half: Tensor, axis: RecordAxis, size: int, axes: int, device: torch.device) -> Tensor:
    entries = half
    if size != len(half):
        each, rest = divmod(size, len(half))
        if rest:
            raise UnprovableError("the size of an axis does not follow the number of records")
        entries = half.repeat(each) if axis.minor else half.repeat_interleave(each)
    return entries.view([-1 if i == axis.axis else 1 for i in range(axes)]).to(device)


@lru_cache(1000)
def _kept_places(half: Tensor, axis: RecordAxis, size: int, device: torch.device) -> Tensor:
    """Where the other records lie along the record axis."""
    return (~_entries_of(half, axis, size, 1, device)).nonzero().flatten()


def follows(axis: int, shapes: dict[int, torch.Size], factors: dict[int, int]) -> bool:
    """Whether the size of an axis is the same multiple of every number of records."""
    return all(axis < len(shape) and shape[axis] == factors[axis] * records for records, shape in shapes.items())


def changed(old: Tensor, new: Tensor, *, but_for_rounding: bool = False) -> Tensor | None:
    """Which entries moved; None if none did. NaN equals NaN here."""
    change = old != new
    if not bool(change.any()):
        return None
    if but_for_rounding:  # both may be computed in another order
        change &= ~((old - new).abs() <= _ROUNDING * torch.maximum(old.abs(), new.abs()))
    if (old.is_floating_point() or old.is_complex()) and bool((old != old).any()):
        change &= (old == old) | (new == new)
        return change if bool(change.any()) else None
    return change


def only(axis: RecordAxis, change: Tensor, half: Tensor) -> bool:
    """Whether nothing moved but entries of the records that were replaced."""
    return not bool((change & ~_entries(half, axis, change)).any())


def stays(axis: RecordAxis, old: Tensor, new: Tensor, half: Tensor) -> bool:
    """Whether entries of records that were not replaced are equal: then nothing moved but those of `half`.

    It takes less than a look at all entries. NaN is not equal here, so that False shows nothing.
    """
    places = _kept_places(half, RecordAxis(0, axis.minor), old.shape[axis.axis], old.device)
    return torch.equal(old.index_select(axis.axis, places), new.index_select(axis.axis, places))


def shifted(tensor: Tensor, axis: RecordAxis, records: int) -> Tensor:
    """The same with every record in the place of the one before it."""
    places = torch.arange(tensor.shape[axis.axis])
    by_record = places.view(-1, records).roll(1, 1) if axis.minor else places.view(records, -1).roll(1, 0)
    return tensor.index_select(axis.axis, by_record.flatten().to(tensor.device))


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal but for rounding, which may differ from place to place."""
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    if torch.equal(one, other):
        return True  # nearly always: what follows takes several copies
    finite = one[one.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    half = one.dtype in (torch.float16, torch.bfloat16)
    return torch.allclose(one, other, rtol=0.0, atol=scale * (0.05 if half else 1e-4), equal_nan=True)


def spread(numbers: Tensor, like: Tensor, shape: Sequence[int], axis: RecordAxis) -> Tensor:
    """A tensor that holds, in every entry, the number of its record."""
    whole = torch.empty(list(shape), dtype=like.dtype, device=like.device)
    by_record = axis.split(whole, len(numbers))
    by_record.copy_(numbers.view(-1, *[1] * (by_record.dim() - 1)).expand_as(by_record))
    return whole


def belongs(axis: RecordAxis, numbers: Tensor, held: Tensor, records: Tensor) -> bool:
    """Whether entries that hold the number of a record lie where that record lies."""
    by_record, is_held = axis.split(numbers, len(records)), axis.split(held, len(records))
    own = records.to(numbers).view(-1, *[1] * (by_record.dim() - 1))
    return not bool((is_held & (by_record != own)).any())


def most_exact(dtype: torch.dtype) -> int:
    """The largest number up to which all whole numbers have a place in a type."""
    return int(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max
