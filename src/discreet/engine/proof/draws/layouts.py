"""The order in which a draw gives its numbers to the entries of a tensor: that of memory.

`torch.rand_like(x)` fills the rows of `x` one after the other, but those of `x.t().contiguous().t()` side by side:
which numbers a record gets, and how far the generator moves, depends on sizes and strides, which the form of a call
leaves out. So they are part of what a draw is compared by.

Guarantee: two draws by calls of one form from one state give each entry the same number if their layouts are equal. If
layouts of two numbers of records agree, the entries of one record are drawn in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from discreet.engine.proof.forms.call_forms import Reading
from discreet.engine.proof.forms.provable_call import Place, factor_of
from discreet.engine.proof.lineage import MIXED, SOLE
from discreet.engine.trace.capture import RecordAxis


class _Order(NamedTuple):
    """Axes longer than one entry, from the slowest in memory to the fastest.

    repeated  those whose entries share an address
    is_dense  whether there are no gaps between entries
    """

    axes: tuple[int, ...]
    repeated: tuple[int, ...]
    is_dense: bool


class Layout(NamedTuple):
    """How a tensor that a draw takes lies in memory.

    whole  of all axes; where records are kept apart, the record is the first
    own    of the axes of one record; None where it is not known which these are
    sizes  of a public tensor, which its form does not fix: whole numbers, or multiples of the number of records
    """

    whole: _Order
    own: _Order | None
    sizes: tuple[Any, ...]

    def agrees(self, other: Layout, *, is_sole: bool) -> bool:
        """Whether both draw in one order; sizes apart.

        is_sole  whether one of the two is of a batch of one record, which has no order of records
        """
        if self.own is not None and other.own is not None:
            return self.own == other.own and (is_sole or self.whole == other.whole)
        if not is_sole:
            return self.whole == other.whole
        axes = set(self.whole.axes) & set(other.whole.axes)  # an axis of one entry has no place in the order
        return _among(axes, self.whole) == _among(axes, other.whole)


UNKNOWN_LAYOUT: Final = Layout(_Order((), (), is_dense=False), None, ())
"""Of a mixed tensor, whose sizes may follow values of the records."""


Strides = tuple[tuple[int, ...] | None, ...]
"""Of several tensors; None for one that is not strided."""


def strides_of(tensors: Sequence[torch.Tensor]) -> Strides:
    """Of the tensors that a call takes."""
    return tuple([one.stride() if one.layout is torch.strided else None for one in tensors])


def layouts_of(reading: Reading) -> tuple[Layout, ...]:
    """Of the tensors that a call takes."""
    return tuple(
        [
            UNKNOWN_LAYOUT
            if origin.lineage is MIXED or tensor.layout is not torch.strided
            else _layout(tensor.shape, tensor.stride(), origin.lineage, reading.records)
            for tensor, origin in zip(reading.tensors, reading.origins, strict=True)
        ]
    )


@lru_cache(maxsize=10_000)
def _layout(sizes: tuple[int, ...], strides: tuple[int, ...], place: Place, records: int) -> Layout:
    if place is SOLE:
        whole = _order(_long(sizes, strides))
        return Layout(whole, whole, ())
    if isinstance(place, RecordAxis):
        axis, step = place.axis, strides[place.axis]
        each = sizes[axis] // records
        by_record, inside = (step, step * records) if place.minor else (step * each, step)
        sizes = *sizes[:axis], each, *sizes[axis + 1 :]
        strides = *strides[:axis], inside, *strides[axis + 1 :]
        closer = [own // records if own > by_record and own % records == 0 else own for own in strides]
        return Layout(_order(_long((records, *sizes), (by_record, *strides))), _order(_long(sizes, closer)), ())
    factors = [(size, factor_of(size, records)) for size in sizes]
    axes = [(axis, *own) for axis, own in enumerate(zip(sizes, strides, strict=True)) if own[0] != 1]
    return Layout(_order(axes), None, tuple(size if own is None else ("records", own) for size, own in factors))


def _long(sizes: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int, int]]:
    """Axes, numbered without those of one entry, which a batch of one record may lack; their sizes and strides."""
    found = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return [(axis, *own) for axis, own in enumerate(found)]


def _order(axes: list[tuple[int, int, int]]) -> _Order:
    by_stride = sorted(axes, key=lambda own: -own[2])
    step, is_dense = 1, True
    for _, size, stride in reversed(by_stride):
        is_dense &= stride == step
        step *= size
    repeated = tuple(axis for axis, _, stride in axes if stride == 0)
    return _Order(tuple(axis for axis, _, _ in by_stride), repeated, is_dense)


def _among(axes: set[int], order: _Order) -> list[int]:
    return [axis for axis in order.axes if axis in axes]
