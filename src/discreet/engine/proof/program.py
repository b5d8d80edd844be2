"""Whether all batches make their losses by the same calls, with the same numbers.

A value of a record can be read (`item`, `numpy`, a string of the batch, an error, `len`) and come back as a number in a
call, or as the choice between two calls; neither can be seen. So there is one way to make losses, that of the first
batch: the same calls on the same tensors, with the same numbers, up to sizes that follow the number of records. What
else changes from batch to batch (a schedule, a random choice) must be declared with `discreet.public`.

The number of records is private as well. The first step is cut into micro-batches of different sizes, so that numbers,
and values of public tensors, that depend on the size are refused before anything is released.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch
from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.proof.lineage import PUBLIC, Origin
from discreet.engine.proof.positions import differs, differs_by_place, grows, is_random, is_random_by_place
from discreet.engine.proof.verdicts import readable

_SIZES: Final = frozenset(
    getattr(room, name)
    for name in (
        *("view", "reshape", "expand", "broadcast_to", "repeat", "repeat_interleave", "tile", "split", "chunk"),
        *("split_with_sizes", "tensor_split", "narrow", "select", "__getitem__", "unflatten", "as_strided"),
        *("new_zeros", "new_ones", "new_full", "new_empty"),
    )
    for room in (torch, Tensor, torch.nn.functional)
    if getattr(room, name, None) is not None
)
"""Functions on records whose whole numbers are sizes, axes and positions, never values."""
_MOST_CHOICES: Final = 1000  # declared choices whose losses are remembered


@final
@dataclass
class ProgramComparison:
    """Two ways to make losses, side by side.

    sizes       their numbers of records
    difference  the first difference, in words
    tensors     pairs of public tensors whose values were kept
    """

    sizes: tuple[int, int]
    difference: str = ""
    tensors: list[tuple[Origin, Origin]] = field(default_factory=list)
    _compared: set[tuple[int, int]] = field(default_factory=set)

    def same(self, first: Origin, second: Origin) -> bool:
        """Whether both were made by the same calls on the same tensors, with the same numbers."""
        ahead = [(first, second)]
        while ahead:
            one, other = ahead.pop()
            pair = id(one), id(other)
            if one is other or pair in self._compared:
                continue
            self._compared.add(pair)
            if one.func != other.func or len(one.parents) != len(other.parents):
                self.difference = f"{_name(other)} where it was {_name(one)}{_at(other)}"
                return False
            if one.func is None and one.digest != other.digest:
                self.difference = "another tensor than before"
                return False
            if self.sizes[0] != self.sizes[1] and self._sums_up_the_batch(one, other):
                self.difference = f"{_name(other)} of a tensor with an entry for each record{_at(other)}"
                return False
            if self.sizes[0] != self.sizes[1] and self._is_chosen_by_size(one, other):
                self.difference = f"{_name(other)} by the number of records{_at(other)}"
                return False
            if not self._same_settings(one, other):
                self.difference = f"{self.difference} in {_name(other)}{_at(other)}"
                return False
            if one.sample is not None and other.sample is not None:
                self.tensors.append((one, other))
            ahead += zip(one.parents, other.parents, strict=True)
        return True

    def tells_the_size(self) -> bool:
        """Whether a public tensor has other values for another number of records, or for another place in the batch."""
        for one, other in self.tensors:
            samples = one.sample, other.sample, self.sizes
            by_place = differs_by_place(*samples) and not is_random_by_place(one)
            if by_place or (differs(*samples) and not is_random(one)):
                self.difference = f"other values of a public tensor ({_name(other)}{_at(other)})"
                return True
        return False

    def _sums_up_the_batch(self, one: Origin, other: Origin) -> bool:
        """Whether public entries, one per record, were reduced: torch.ones(len(x)).sum() is the size of the batch."""
        if not (_is_public_and_fixed(one) and _is_public_and_fixed(other)) or _is_first_of_equal_rows(other):
            return False
        parents = zip(one.parents, other.parents, strict=True)
        return any(a.lineage is b.lineage is PUBLIC and self._has_longer_axis(a.form, b.form) for a, b in parents)

    def _has_longer_axis(self, one: Any, other: Any) -> bool:
        """Whether an axis follows the number of records, and is no multiple of both numbers by chance."""
        if one is None or other is None:
            return False
        pairs = zip(one[1], other[1], strict=False)
        first, second = self.sizes
        return any(isinstance(a, tuple) and isinstance(b, tuple) and a[0] * first != b[0] * second for a, b in pairs)

    def _is_chosen_by_size(self, one: Origin, other: Origin) -> bool:
        """Whether the number of records chose an entry of a public tensor: table[len(x)]."""
        is_fixed = _is_public_and_fixed(one) and _is_public_and_fixed(other)
        return is_fixed and self._has_larger_number(one.settings, other.settings)

    def _has_larger_number(self, one: Any, other: Any) -> bool:
        """Whether a number of a description follows the number of records, and is no multiple of both by chance."""
        if _is_form(one) or not (isinstance(one, tuple) and isinstance(other, tuple)):
            return False
        if _is_size(one) and _is_size(other):
            return self._meant(one, 0) != self._meant(other, 1)
        return any(self._has_larger_number(a, b) for a, b in zip(one, other, strict=False))

    def _same_settings(self, one: Origin, other: Origin) -> bool:
        """Whole numbers that follow the number of records are sizes in some calls, and values in all others."""
        if one.func is Tensor.__setitem__ and one.settings and other.settings:
            (*places, value), (*other_places, other_value) = one.settings[0], other.settings[0]
            return self._alike(tuple(places), tuple(other_places)) and self._alike(value, other_value, sizes=False)
        # The values of public tensors are compared instead of their sizes.
        is_size = one.func in _SIZES or PUBLIC in (one.lineage, other.lineage)
        return self._alike(one.settings, other.settings, sizes=is_size)

    def _alike(self, one: Any, other: Any, *, sizes: bool = True) -> bool:
        if one == other and (sizes or self.sizes[0] == self.sizes[1] or not _grows_with(one)):
            return True
        if _is_form(one) and _is_form(other):
            # Sizes follow from the calls that made the tensors; only the record axis may tell the number of records.
            return not self._grows_elsewhere(one, other)
        if _is_size(one) and _is_size(other):
            a, b = self._meant(one, 0), self._meant(other, 1)
            follow = sizes and not type(one) is type(other) is int and a * self.sizes[1] == b * self.sizes[0]
            if a == b or follow:
                return True
            self.difference = f"the number {b} where it was {a}"
            return False
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            if one[:1] == other[:1] == ("float",):
                self.difference = f"the number {other[1]:.6g} where it was {one[1]:.6g}"
                return False
            return all(self._alike(a, b, sizes=sizes) for a, b in zip(one, other, strict=True))
        self.difference = "other settings"
        return False

    def _grows_elsewhere(self, one: Any, other: Any) -> bool:
        """Whether an axis of tensors that hold records, beside the record axis, follows the number of records."""
        first, second = self.sizes
        if first == second or not len(one) == len(other) == 4:
            return False
        for a, b in zip(one[3], other[3], strict=False):
            if type(a) is type(b) is int and a != b and a * second == b * first:
                self.difference = f"an axis of size {b} where it was {a}"
                return True
        return False

    def _meant(self, size: Any, which: int) -> int:
        """A whole number, or so many times the number of records."""
        return int(size if isinstance(size, int) else size[1] * self.sizes[which])


def _name(origin: Origin) -> str:
    return "a tensor that exists" if origin.func is None else readable(origin.func)


def _at(origin: Origin) -> str:
    if origin.where is None:
        return ""
    code, line = origin.where
    text = linecache.getline(code.co_filename, line).strip()
    return f" at {code.co_filename}:{line}" + (f" `{text}`" if text else "")


def _is_first_of_equal_rows(origin: Origin) -> bool:
    """Whether a public tensor was spread over the records, and its first row taken: row.expand(len(x), -1)[:1]."""
    if origin.func is not Tensor.__getitem__ or origin.settings[0][1:] != (("slice", None, 1, None),):
        return False
    spread = origin.parents[0]
    while spread.func is Tensor.to:
        spread = spread.parents[0]
    return spread.func is Tensor.expand and spread.parents[0].form is not None and not grows(spread.parents[0].form)


def _is_public_and_fixed(origin: Origin) -> bool:
    """Whether a public tensor has no axis that follows the number of records."""
    return origin.lineage is PUBLIC and origin.form is not None and not grows(origin.form)


def _grows_with(part: Any) -> bool:
    """Whether a description has a number that follows the number of records."""
    if _is_form(part) or not isinstance(part, tuple):
        return False
    return _is_size(part) or any(_grows_with(inner) for inner in part)


def _is_form(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) > 1 and isinstance(part[0], torch.dtype)


def _is_size(part: Any) -> bool:
    return type(part) is int or (isinstance(part, tuple) and len(part) == 2 and part[0] == "records")


@final
@dataclass
class _Program:
    """The way in which losses are made under one declared choice.

    first, records, state  the losses that showed it, for how many records and with which parameters
    digests                of losses that were compared with them
    sizes                  numbers of records that were compared
    """

    first: Origin
    records: int
    state: int
    digests: set[int]
    sizes: set[int]


@final
class KnownPrograms:
    """The way in which losses are made, for each choice that the user declares."""

    def __init__(self) -> None:
        self._programs: dict[tuple[Any, ...], _Program] = {}
        self.wants_another_size = True  # the newest way was not seen for two numbers of records yet

    def check(
        self, losses: Origin, records: int, read: tuple[int, str] | None, declared: tuple[Any, ...], *, state: int
    ) -> None:
        """Refuse losses that are made in another way than the first.

        read      when and where a value of the records was first read
        declared  choices of this step that the user declared public
        state     differs if the parameters do
        """
        known = self._programs.get(declared)
        if known is None:
            if not (declared and self._programs) and read is not None and read[0] < losses.clock:
                _refuse_reading(read[1])
            if len(self._programs) < _MOST_CHOICES:
                self._programs[declared] = _Program(losses, records, state, {losses.digest}, {records})
                self.wants_another_size = True
            return
        is_new_size = len(known.sizes) < 2 and records not in known.sizes
        if losses.digest not in known.digests or is_new_size:
            comparison = ProgramComparison((known.records, records))
            is_same = comparison.same(known.first, losses)
            if not is_same or (is_new_size and state == known.state and comparison.tells_the_size()):
                _refuse_difference(comparison)
            known.digests.add(losses.digest)
        known.sizes.add(records)
        self.wants_another_size = len(known.sizes) < 2


def _refuse_reading(where: str) -> None:
    refuse(
        "losses of the first batch that are made before a value of the records is read: what is read may decide what "
        "comes after",
        f"a value that was read at {where}, and calls on the way to the losses after it",
        "read it after private.step(losses), or after the last call that makes the losses",
    )


def _refuse_difference(comparison: ProgramComparison) -> None:
    first, second = comparison.sizes
    size = f" (batches of {first} and {second} records)" if first != second else ""
    refuse(
        "losses that every batch makes by the same calls with the same numbers",
        f"{comparison.difference}{size}",
        "if what changes does not come from the records (a schedule, a random choice), write discreet.public(value) "
        "around the number or the condition; do not divide by the number of records, which is private",
    )
