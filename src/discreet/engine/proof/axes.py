"""Which axis of a tensor is the record: by passes of two sizes and by replacing records, or by its memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import torch
from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.proof.lineage import MIXED, PUBLIC, SOLE, UNPROVEN_ROWS, Geometry, Lineage, Origin, version_of
from discreet.engine.proof.movement import changed, only
from discreet.engine.trace.capture import RecordAxis
from discreet.engine.trace.settings import LARGE, SMALL

OUTPUT = "the model's output"


class AxisSearch:
    """The axis of one tensor that follows the number of records, or none for a constant; refuses what mixes records."""

    def __init__(self, small: Tensor, large: Tensor, what: str) -> None:
        self._large, self._what = large, what
        if small.dim() != large.dim():
            self._refuse(f"shape {tuple(small.shape)} for {SMALL} records, {tuple(large.shape)} for {LARGE}")
        axis = _follower(small, large)
        if isinstance(axis, str):
            self._refuse(axis)
        self._layouts = [] if axis is None else [RecordAxis(axis), RecordAxis(axis, minor=True)]
        self._is_constant = axis is None

    def compare(self, before: Tensor, moved: Tensor, replaced: Tensor) -> None:
        """Take note of the same tensor of two passes of LARGE records that differ in some of them."""
        if self._layouts and before.shape == moved.shape:
            kept = (~replaced).nonzero().flatten().tolist()
            if all(_stay(one.split(before, LARGE), one.split(moved, LARGE), kept) for one in self._layouts):
                return  # nearly always: the others stay, whatever the replaced ones do
        change = changed(before, moved)
        if change is None:
            return
        if self._is_constant and self._what == OUTPUT and self._large.dim() == 0:
            refuse(
                "a model whose outputs have one row for each record",
                "a number for the whole batch, such as the mean loss that models of transformers compute from `labels`",
                "leave `labels` out of the inputs, and compute one loss per record from the outputs "
                '(reduction="none"). '
                "If the model computes it without labels, return the other outputs alone from forward()",
            )
        if self._is_constant:
            self._refuse("entries of no record's own move when one record changes")
        self._layouts = [one for one in self._layouts if only(one, change, replaced)]
        if not self._layouts:
            self._refuse("replacing one record moves entries of the others")

    def found(self) -> RecordAxis | None:
        """The record axis; None for a constant."""
        if self._is_constant:
            return None
        if len(self._layouts) > 1 and self._large.shape[self._layouts[0].axis] > LARGE:
            # No record moved it: what parameters and public tensors make for each record is the same for all. The watch
            # refuses calls that read the rows in another layout than the one taken here (spread_rows.py).
            self._layouts = [one for one in self._layouts if _is_one_row(one.split(self._large, LARGE))]
            if not self._layouts:
                self._refuse("several rows per record, in an order that nothing shows")
        return self._layouts[0]

    def _refuse(self, came: str) -> NoReturn:
        refuse(
            f"{self._what} to keep the records apart",
            came,
            "remove the op that mixes records (batch statistics, in-batch comparisons), or give it one record's "
            "view; an input that is no tensor of records must not have one row per record; for CLIP and the like, "
            "write a forward() that returns get_text_features and get_image_features",
        )


def _stay(before: Tensor, moved: Tensor, kept: Sequence[int]) -> bool:
    """Whether the entries of these records are equal; NaN is not."""
    return all(torch.equal(before[record], moved[record]) for record in kept)


def _is_one_row(by_record: Tensor) -> bool:
    """Whether all records have the same entries."""
    return all(torch.equal(by_record[0], other) for other in by_record[1:])


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
    tolerance = 0.1 if half else 1e-2
    if not first.numel():
        return True
    gap, scale = float((first - second).abs().max()), float(first.abs().max())
    if math.isfinite(gap) and math.isfinite(scale):
        return gap <= tolerance * scale
    finite = first[first.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(first, second, rtol=0.0, atol=scale * tolerance, equal_nan=True)


def overlaps(tensor: Tensor) -> bool:
    """Whether several entries of a tensor share one address, as with `expand` and `unfold`; if in doubt, yes."""
    if tensor.is_contiguous():
        return False
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step <= reach:
            return True
        reach += max(size - 1, 0) * step
    return False


def geometry_of(tensor: Tensor) -> Geometry:
    """Which entries of its memory a tensor has."""
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


@dataclass(frozen=True)
class Write:
    """What was written into a memory, where and when; and how often it had been written to before and after."""

    clock: int
    versions: tuple[int, int]
    geometry: Geometry
    before: Lineage | RecordAxis
    origin: Origin
    dtype: torch.dtype


def are_all(writes: Sequence[Write], version: int, tensor: Tensor) -> bool:
    """Whether these are all the writes to a tensor since it had that version: others, as of a thread, are unseen."""
    for write in writes:
        if write.versions[0] != version:
            return False
        version = write.versions[1]
    return version == version_of(tensor)


def place_in_memory(
    tensor: Tensor, known: Lineage | RecordAxis, geometry: Geometry, records: int, dtype: torch.dtype
) -> Lineage | RecordAxis:
    """Where the record lies in a tensor that shares the memory of a known one."""
    if not isinstance(known, RecordAxis):
        return known
    if geometry_of(tensor) == geometry and tensor.dtype == dtype:
        return known
    if tensor.dtype != dtype:
        return MIXED
    owner = torch.full((tensor.untyped_storage().nbytes() // tensor.element_size(),), NOBODY, dtype=torch.int32)
    write_owner(owner, known, geometry, records)
    if bool((owner.as_strided(*geometry_of(tensor)) == NOBODY).all()):
        return PUBLIC
    return place_by_owner(tensor, owner, records) or MIXED


NOBODY: Final = -1
_PUBLIC_OWNER: Final = -2


def write_owner(owner: Tensor, place: Lineage | RecordAxis, geometry: Geometry, records: int) -> None:
    """Note in `owner`, one entry for each entry of a memory, whose values a write left there."""
    target = owner.as_strided(*geometry)
    if isinstance(place, RecordAxis):
        by_record = place.split(target, records)
        numbers = torch.arange(records, dtype=torch.int32).view(-1, *[1] * (by_record.dim() - 1))
        by_record.copy_(numbers.expand_as(by_record))
    else:
        target.fill_(_PUBLIC_OWNER)


def place_by_owner(tensor: Tensor, owner: Tensor, records: int) -> Lineage | RecordAxis | None:
    """Where the record lies in a tensor, by the owners of its memory; None if no axis is the record."""
    seen = owner.as_strided(*geometry_of(tensor))
    if bool((seen < 0).all()):
        return PUBLIC
    numbers = torch.arange(records, dtype=torch.int32)
    for axis, length in enumerate(tensor.shape):
        if length % records:
            continue
        for minor in (False, True):
            place = RecordAxis(axis, minor=minor)
            by_record = place.split(seen, records).reshape(records, -1)
            if bool(((by_record < 0) | (by_record == numbers.unsqueeze(1))).all()):
                return place
    return None


def place_of_writes(tensor: Tensor, writes: Sequence[Write], records: int) -> Lineage | RecordAxis | None:
    """Where the record lies in a tensor that these writes filled; None if no axis is, or an entry was not written."""
    owner = torch.full((tensor.untyped_storage().nbytes() // tensor.element_size(),), NOBODY, dtype=torch.int32)
    for write in writes:
        write_owner(owner, write.origin.lineage, write.geometry, records)
    place = place_by_owner(tensor, owner, records)
    if place is None or bool((owner.as_strided(*geometry_of(tensor)) == NOBODY).any()):
        return None
    public = [write for write in writes if write.origin.lineage is PUBLIC]
    if isinstance(place, RecordAxis) and any(tells_places(tensor, place, write, records) for write in public):
        return None
    return SOLE if any(write.origin.lineage is SOLE for write in writes) else place


def tells_places(tensor: Tensor, place: RecordAxis, write: Write, records: int) -> bool:
    """Whether public values that were written into a tensor of records differ among these, or reach some alone."""
    if write.dtype != tensor.dtype:
        return True
    owner = torch.full((tensor.untyped_storage().nbytes() // tensor.element_size(),), NOBODY, dtype=torch.int32)
    write_owner(owner, place, geometry_of(tensor), records)
    seen, numbers = owner.as_strided(*write.geometry), torch.arange(records).unsqueeze(1)
    equal = (write.origin.rows or UNPROVEN_ROWS).equal
    by_record = [axis.split(seen, records).reshape(records, -1) for axis in equal]
    is_alike = any(bool(((own == numbers).all(0) | (own == NOBODY).all(0)).all()) for own in by_record)
    return not is_alike and bool((seen != NOBODY).any())
