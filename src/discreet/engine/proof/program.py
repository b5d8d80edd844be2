"""Whether two steps made their losses by the same calls, with the same numbers, for batches of two sizes.

A value of a record that was read (`item`, `numpy`, a branch, a log) can come back as a number in a call, or as the
choice between two calls; neither can be seen. So once something was read, the calls that lead to the losses must be
calls that led to losses before, with the same numbers, up to sizes that follow the number of records.

The number of records is private as well. Losses of two batches of different sizes, made by the same calls, must not
differ by a number that is a function of the size, nor by the values of a public tensor.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, final

import torch
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.engine.proof.lineage import PUBLIC, Origin
from discreet.engine.proof.positions import difference, differs_by_place, follows, is_proportional, is_random
from discreet.engine.proof.verdicts import readable
from discreet.engine.trace.capture import name_of
from discreet.engine.trace.settings import ELEMENTWISE

PIECES: Final = 4  # micro-batches of two sizes in which a number shows whether it follows the size
_MOST: Final = 20

_SIZES: Final = frozenset(
    getattr(room, name)
    for name in (
        *("view", "reshape", "expand", "broadcast_to", "repeat", "repeat_interleave", "tile", "split", "chunk"),
        *("split_with_sizes", "tensor_split", "narrow", "select", "__getitem__", "unflatten", "as_strided"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "conv1d", "conv2d", "conv3d"),
    )
    for room in (torch, Tensor, torch.nn.functional)
    if getattr(room, name, None) is not None
)
"""Functions on records whose whole numbers are sizes, axes and positions, never values."""


@final
@dataclass
class Comparison:
    """Two programs side by side: numbers that differ, and the first call that does.

    sizes         their numbers of records
    same_state    whether the parameters were the same
    drew          whether the numbers may be random
    numbers       values that differ
    positions     whole numbers that differ, where they are sizes, axes or positions
    """

    sizes: tuple[int, int]
    same_state: bool = False
    drew: bool = False
    numbers: list[tuple[float, float]] = field(default_factory=list)
    positions: list[tuple[float, float]] = field(default_factory=list)
    call: str = ""
    _tensors: list[tuple[Origin, Origin]] = field(default_factory=list)
    _compared: set[tuple[int, int]] = field(default_factory=set)

    def same(self, first: Origin, second: Origin) -> bool:
        """Whether both were made alike, but for the numbers that are collected."""
        ahead = [(first, second)]
        while ahead:
            one, other = ahead.pop()
            pair = id(one), id(other)
            if one is other or pair in self._compared:
                continue
            self._compared.add(pair)
            if one.func is None and one.digest == other.digest:
                continue
            before = len(self.numbers)
            if _sums_up_the_batch(one) and _sums_up_the_batch(other):
                self.numbers.append((float(self.sizes[0]), float(self.sizes[1])))
            if one.func != other.func or len(one.parents) != len(other.parents):
                self.call = "another value" if other.func is None else name_of(other.func)
                return False
            if one.sample is not None and other.sample is not None:
                self._tensors.append((one, other))
            if not self._alike_settings(one, other):
                self.call = name_of(other.func) if other.func is not None else ""
                return False
            if before == 0 < len(self.numbers):
                self.call = readable(other.func) if other.func is not None else ""
            ahead += zip(one.parents, other.parents, strict=True)
        return True

    @property
    def differs(self) -> bool:
        return bool(self.numbers or self.positions)

    def _alike_settings(self, one: Origin, other: Origin) -> bool:
        kind = _Numbers.of(one, other)
        if one.func is Tensor.__setitem__ and one.settings and other.settings:
            (target, at, value), (target_2, at_2, value_2) = one.settings[0], other.settings[0]
            index = self._alike((target, at), (target_2, at_2), _Numbers.SIZES)
            return self._alike(value, value_2, kind) and index
        return self._alike(one.settings, other.settings, kind)

    def _alike(self, one: Any, other: Any, numbers: _Numbers) -> bool:
        if one == other and not (numbers is _Numbers.VALUES_OR_SIZES and _grows_with(one)):
            return True
        if _is_form(one) and _is_form(other):
            return True  # sizes of tensors follow from the calls that made them
        if _is_size(one) and _is_size(other):
            pairs = [(k, n) for k in self._sizes(one, 0) for n in self._sizes(other, 1)]
            first, second = self._sizes(one, 0)[0], self._sizes(other, 1)[0]
            if any(a == b for a, b in pairs):
                return True
            if self._linear(one, other) and numbers is _Numbers.SIZES:
                return True
            (self.positions if numbers is _Numbers.SIZES else self.numbers).append((first, second))
            return True
        if _is_float(one) and _is_float(other):
            self.numbers.append((float(one[1]), float(other[1])))
            return True
        if (_is_float(one) and _is_size(other)) or (_is_size(one) and _is_float(other)):  # len(x) / 2 may be whole
            a, b = (part[1] if _is_float(part) else self._sizes(part, i)[0] for i, part in enumerate((one, other)))
            self.numbers.append((float(a), float(b)))
            return True
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            found = [self._alike(a, b, numbers) for a, b in zip(one, other, strict=True)]  # all numbers that differ
            return all(found)
        return False

    def _sizes(self, size: Any, which: int) -> list[int]:
        """What a size may have meant: a number, or so many times the number of records."""
        return [size] if isinstance(size, int) else [size[1] * self.sizes[which]]

    def _linear(self, one: Any, other: Any) -> bool:
        """Both the same multiple of the number of records, which one of them may not show."""
        if isinstance(one, int) and isinstance(other, int):
            return False
        return self._sizes(one, 0)[0] * self.sizes[1] == self._sizes(other, 1)[0] * self.sizes[0]

    def by_place(self) -> bool:
        """Whether a public tensor gives records different numbers by their places in the batch."""
        return any(differs_by_place(one.sample, other.sample) and not is_random(one) for one, other in self._tensors)

    def follows_the_batch(self) -> bool:
        """Whether a number, or a public tensor, is a function of the number of records."""
        if self.sizes[0] == self.sizes[1]:
            return False
        pairs = list(self.numbers)
        for one, other in self._tensors if self.same_state else ():
            if is_random(one):
                continue
            found = difference(one.sample, other.sample)
            if found is not None and not self.differs:
                return True
            pairs += [found] if found is not None else []
        proportional = not self.drew and any(is_proportional(pair, self.sizes) for pair in self.positions)
        return proportional or any(follows(pair, self.sizes, drew=self.drew) for pair in pairs)


class _Numbers(enum.Enum):
    """What the whole numbers of a call are."""

    VALUES = "values"
    SIZES = "sizes, axes, positions"
    VALUES_OR_SIZES = "values or sizes"

    @staticmethod
    def of(one: Origin, other: Origin) -> _Numbers:
        if one.func in ELEMENTWISE:
            return _Numbers.VALUES
        if one.func in _SIZES or PUBLIC in (one.lineage, other.lineage):
            return _Numbers.SIZES  # the values of public tensors are compared instead
        return _Numbers.VALUES_OR_SIZES


def _grows_with(part: Any) -> bool:
    """Whether a description has a size that follows the number of records."""
    if _is_form(part) or not isinstance(part, tuple):
        return False
    return _is_size(part) or any(_grows_with(inner) for inner in part)


def _sums_up_the_batch(origin: Origin) -> bool:
    """Whether public entries, one per record, were reduced: torch.ones(len(x)).sum() is the size of the batch."""
    if origin.lineage is not PUBLIC or origin.form is None or _grows(origin.form):
        return False
    return any(parent.lineage is PUBLIC and _grows(parent.form) for parent in origin.parents)


def _grows(form: Any) -> bool:
    return form is not None and any(isinstance(size, tuple) for size in form[1])


def _is_form(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) > 1 and isinstance(part[0], torch.dtype)


def _is_size(part: Any) -> bool:
    return type(part) is int or (isinstance(part, tuple) and len(part) == 2 and part[0] == "records")


def _is_float(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and part[0] == "float" and isinstance(part[1], float)


@final
@dataclass(frozen=True)
class _Program:
    """One way in which losses were made: for how many records, and with which parameters."""

    losses: Origin
    records: int
    state: int


@final
class KnownPrograms:
    """The ways in which losses were made so far."""

    def __init__(self) -> None:
        self._digests: set[int] = set()
        self._programs: list[_Program] = []
        self._declared: set[tuple[Any, ...]] = set()
        self._sizes: dict[int, set[int]] = {}
        self._repeats: dict[int, list[Origin]] = {}
        self._checks_left = PIECES
        self.wants_another_size = True  # the newest way was not seen for two numbers of records yet

    @property
    def is_comparing(self) -> bool:
        """Whether the losses that come are compared with others by the values of public tensors."""
        return self.wants_another_size or self._checks_left > 0

    def check(
        self,
        losses: Origin,
        records: int,
        read: tuple[int, str] | None,
        declared: tuple[Any, ...],
        *,
        state: int = 0,
        drew: bool = False,
    ) -> None:
        """Refuse losses made in another way than before, if a value of the records was read before they were made.

        read      when and where a value of the records was first read
        declared  choices of this step that the user declared public
        state     differs if the parameters do
        drew      whether the step may have used random numbers that no watched call made
        """
        self._checks_left -= 1
        if not drew and self.is_comparing:
            self._check_repeats(losses, records, state)
        if losses.digest in self._digests and not self._is_new_size(losses.digest, records):
            return
        differing: Comparison | None = None
        is_paired = False
        for program in self._programs:
            comparison = Comparison((program.records, records), state == program.state, drew)
            if comparison.same(program.losses, losses):
                is_paired |= program.records != records
                if comparison.follows_the_batch():
                    _refuse_size(comparison)
                require(
                    not comparison.by_place(),
                    "losses in which each record stands alone, call by call",
                    "public numbers that differ from record to record: what they give a record depends on the record's "
                    "place in the batch",
                    "give every record the same numbers, or random ones",
                )
                if not comparison.differs:
                    self._digests.add(losses.digest)
                    self._note(is_paired)
                    return
            differing = differing or comparison
        self._note(is_paired)
        if losses.digest in self._digests:
            return
        if read is not None and read[0] < losses.clock and not (declared and declared not in self._declared):
            self._refuse(read[1], differing)
        self._digests.add(losses.digest)
        self._is_new_size(losses.digest, records)
        self._declared.add(declared)
        if len(self._programs) < _MOST:
            self._programs.append(_Program(losses, records, state))

    def _note(self, is_paired: bool) -> None:
        """Losses made in a new way are wanted for a second number of records, as far as they can be remembered."""
        if is_paired or len(self._programs) >= _MOST:
            self.wants_another_size = False
        else:
            self.wants_another_size, self._checks_left = True, PIECES

    def _check_repeats(self, losses: Origin, records: int, state: int) -> None:
        """Refuse numbers that return whenever the number of records returns, and differ where it does."""
        known = self._repeats.setdefault(records, [])
        known.append(losses)
        if len(known) < 2 or len({one.digest for one in known}) > 1:
            return
        for size, others in self._repeats.items():
            if size != records and len(others) > 1 and len({one.digest for one in others}) == 1:
                comparison = Comparison((size, records), same_state=True)
                if others[0].digest != losses.digest and comparison.same(others[0], losses) and comparison.differs:
                    _refuse_size(comparison)

    def _is_new_size(self, digest: int, records: int) -> bool:
        """Whether losses made this way are seen for their second number of records, which shows what follows it."""
        sizes = self._sizes.setdefault(digest, set())
        if len(sizes) > 1 or records in sizes:
            return False
        sizes.add(records)
        return len(sizes) == 2

    def _refuse(self, where: str, differing: Comparison | None) -> None:
        if differing is None:
            refuse(
                "losses that are made before a value of the records is read: what is read may decide what comes after",
                f"a value that was read at {where}, and calls on the way to the losses after it",
                "read it after private.step(losses), or after the last call that makes the losses",
            )
        came = (
            "the number {1:.6g} where it was {0:.6g}".format(*(differing.numbers + differing.positions)[0])
            if differing.differs
            else f"another call ({differing.call})"
        )
        refuse(
            "losses that are made by the same calls with the same numbers in every step, since values of the records "
            f"were read ({where})",
            came,
            "if what changes does not come from the records, write discreet.public(value) around the number or the "
            "condition; else do not use it",
        )


def _refuse_size(comparison: Comparison) -> NoReturn:
    refuse(
        "losses that do not know how many records were drawn",
        f"a number that follows the size of the batch{' in ' + comparison.call if comparison.call else ''}; "
        "if steps were released before this one, their certificate does not hold",
        "leave the division out: sums are divided by the public `batch`; if the number does not come from the batch, "
        "write discreet.public(number)",
    )
