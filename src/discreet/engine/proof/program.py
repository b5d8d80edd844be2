"""Whether all batches make their losses by the same calls, with the same numbers.

A value of a record can reach Python (`item`, `numpy`, a string of the batch, an error, `len`, a thread) and come back
as a number in a call, or as the choice between two calls; neither can be seen. So there is one way to make losses, that
of the rehearsals, which hold no record: the same calls on the same tensors, with the same numbers, up to sizes that
follow the number of records. What else changes from batch to batch (a schedule, a random choice) must be declared with
`discreet.public`.

The number of records is private as well. Rehearsals have two public sizes, so that numbers that depend on the size are
refused before a record is read.
"""

from __future__ import annotations

import enum
import itertools
import linecache
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch
from torch import Tensor

from discreet.core.check import refuse
from discreet.engine.proof.draws.layouts import Layout
from discreet.engine.proof.forms.small_sizes import named
from discreet.engine.proof.lineage import GENERATOR_STATE, MIXED, PUBLIC, SPREAD_ROWS, Origin
from discreet.engine.proof.program_digest import digest_of
from discreet.engine.proof.verdicts import readable
from discreet.engine.trace.settings import ELEMENTWISE

_MOST_CHOICES: Final = 1000  # declared choices whose losses are remembered


@final
@dataclass
class ProgramComparison:
    """Two ways to make losses, side by side.

    sizes       their numbers of records
    is_shown    whether numbers and sizes may be told: those of rehearsals are public, those of records are not
    difference  the first difference, in words
    """

    sizes: tuple[int, int]
    is_shown: bool = True
    difference: str = ""
    _lost: set[int] = field(default_factory=set)  # axes of records that tensors of the call have lost, for one record
    _compared: set[tuple[int, int]] = field(default_factory=set)

    def same(self, first: Origin, second: Origin) -> bool:
        """Whether both were made by the same calls on the same tensors, with the same numbers."""
        ahead = [(first, second)]
        while ahead:
            one, other = self._bare(*ahead.pop())
            pair = id(one), id(other)
            if one is other or pair in self._compared:
                continue
            self._compared.add(pair)
            states = one.output == GENERATOR_STATE or other.output == GENERATOR_STATE
            if (one.func, one.output, len(one.parents)) != (other.func, other.output, len(other.parents)):
                self.difference = f"{_name(other)} where it was {_name(one)}{_at(other)}"
                if states:
                    self.difference = f"random numbers that follow other draws than before: {self.difference}"
                return False
            if one.func is None and one.digest != other.digest:
                self.difference = "another tensor than before"
                return False
            self._lost.clear()
            if not self.alike(one.settings, other.settings):
                self.difference = f"{self.difference} in {_name(other)}{_at(other)}"
                return False
            if self._lost and not _goes_by_no_axis(one, self._lost):
                self.difference = (
                    f"{_name(other)}{_at(other)} on a tensor that has lost the axis of its one record, so that other "
                    "axes have taken its place (write squeeze(-1), or the like, for squeeze())"
                )
                return False
            if self.sizes[0] != self.sizes[1] and not self._is_the_same_for_every_size(one, other):
                self.difference = f"{_name(other)} that depends on the number of records{_at(other)}"
                return False
            ahead += zip(one.parents, other.parents, strict=True)
        return True

    def _bare(self, one: Origin, other: Origin) -> tuple[Origin, Origin]:
        """Without the mark of rows that get gradients, and without `contiguous` of several records where the one record
        of the other batch has a contiguous tensor.

        The same call gave that back, as more memory is contiguous for one record. Any other copy is a choice of the
        program, and rounds otherwise: kernels go by strides.
        """
        pair, several = [one, other], int(self.sizes[0] == 1)
        while 1 in self.sizes and self.sizes[0] != self.sizes[1] and _is_contiguous(_unmarked(pair[several])):
            alone = pair[1 - several]
            if _is_contiguous(_unmarked(alone)) or alone.is_loose:
                break
            pair[several] = _unmarked(pair[several]).parents[0]
        return _unmarked(pair[0]), _unmarked(pair[1])

    def alike(self, one: Any, other: Any) -> bool:
        """Numbers are equal, or follow the number of records as they did in the proof of the call."""
        if one == other:
            return True
        if isinstance(one, Layout) and isinstance(other, Layout):
            return self._same_layout(one, other)
        if _is_form(one) and _is_form(other):  # sizes follow from the calls that made the tensors
            return self._same_form(one, other)
        if _is_size(one) and _is_size(other):
            a, b = self._meant(one, 0), self._meant(other, 1)
            follows = not type(one) is type(other) is int and a * self.sizes[1] == b * self.sizes[0]
            if a == b or follows:
                return True
            self.difference = self._told("number", b, a)
            return False
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            if one[:1] == other[:1] == ("float",):
                self.difference = self._told("number", other[1], one[1])
                return False
            return all(map(self.alike, one, other))
        is_text = isinstance(one, str) and isinstance(other, str)
        self.difference = self._told("text", repr(other), repr(one)) if is_text else "other settings"
        return False

    def _same_form(self, one: Any, other: Any) -> bool:
        """Whether two tensors have one type, and differ in size along the record axis at most."""
        if one[0] != other[0]:
            self.difference = f"{other[0]} where it was {one[0]}"
            return False
        if len(one) == len(other) == 4 and not isinstance(one[1], tuple) and not isinstance(other[1], tuple):
            if one[1] is None or other[1] is None:
                return self._same_for_one_record(one, other)
            shapes = one[3], other[3]
            if len(shapes[0]) != len(shapes[1]):
                self.difference = self._told("number of axes", len(shapes[1]), len(shapes[0]))
                return False
            for a, b in zip(*shapes, strict=False):
                if type(a) is type(b) is int and a != b:
                    self.difference = self._told("size of an axis", b, a)
                    return False
        return True

    def _same_for_one_record(self, one: Any, other: Any) -> bool:
        """Whether the tensor of one record has all axes of the other, or all but that of the record, in their order.

        Other axes of size 1 are told apart as well: softmax(-1) of sizes (K, 1) is not that of (1, K).
        """
        several, single = (other, one) if one[1] is None else (one, other)
        sizes, alone = _plain(several[3]), _plain(single[3])
        axis = several[1]
        if sizes == alone:
            return True
        if axis is not None and sizes[axis] == 1 and sizes[:axis] + sizes[axis + 1 :] == alone:
            self._lost.add(axis)
            return True
        self.difference = self._told("shape for one record", _plain(other[3]), _plain(one[3]))
        return False

    def _told(self, what: str, now: object, before: object) -> str:
        return f"the {what} {now} where it was {before}" if self.is_shown else f"another {what} than before"

    def _same_layout(self, one: Layout, other: Layout) -> bool:
        """Whether two draws give their numbers to entries in one order."""
        if not one.agrees(other, is_sole=1 in self.sizes):
            self.difference = "numbers in another order, that of the strides of a tensor,"
            return False
        return self.alike(one.sizes, other.sizes)

    def _is_the_same_for_every_size(self, one: Origin, other: Origin) -> bool:
        """Whether those arguments of a call on public tensors that follow the batch were proven to tell no more."""
        if not one.lineage is other.lineage is PUBLIC:  # which numbers follow is in the settings
            given = [(own.rows.proven or (), which) for which, own in enumerate((one, other)) if own.rows is not None]
            changed = [(self._followed(one.settings, other.settings, which)[0], proven) for proven, which in given]
            return all(any(axes <= known for known, _ in proven) for axes, proven in changed)
        known = [(own.rows.proven, which) for which, own in enumerate((one, other)) if own.rows is not None]
        if any(proven is None for proven, _ in known):
            return True
        return any(
            (followed := self._followed(one.settings, other.settings, which)) == (frozenset(), frozenset())
            or (proven is not None and followed in proven)
            for proven, which in known or [(None, 0)]
        )

    def _followed(self, one: Any, other: Any, which: int) -> tuple[frozenset[tuple[int, int]], frozenset[int]]:
        """The tensors, and the multiples of the number of records, that differ in size; counted in one of the two."""
        tensors, numbers, found = itertools.count(), itertools.count(), (set[tuple[int, int]](), set[int]())

        def walk(a: Any, b: Any) -> None:
            if _is_form(a) and _is_form(b):
                place, shapes = next(tensors), [own[1] for own in (a, b)]
                if all(isinstance(own, tuple) for own in shapes):
                    sizes = zip(*([self._size(size, i) for size in own] for i, own in enumerate(shapes)), strict=False)
                    found[0].update((place, axis) for axis, (first, second) in enumerate(sizes) if first != second)
            elif _is_size(a) or _is_size(b):
                if isinstance((a, b)[which], tuple):
                    place = next(numbers)
                    if self._meant(a, 0) != self._meant(b, 1):
                        found[1].add(place)
            elif isinstance(a, tuple) and isinstance(b, tuple):
                for parts in zip(a, b, strict=True):
                    walk(*parts)

        walk(one, other)
        return frozenset(found[0]), frozenset(found[1])

    def _size(self, size: Any, which: int) -> int:
        return int(size[0] * self.sizes[which] if isinstance(size, tuple) else size)

    def _meant(self, size: Any, which: int) -> int:
        """A whole number, or so many times the number of records."""
        return int(size if isinstance(size, int) else size[1] * self.sizes[which])


def _is_contiguous(origin: Origin) -> bool:
    """Whether a tensor was made by `contiguous`, of the usual format and with no mode around, which may cut the graph.

    The mode would be the third part of the settings.
    """
    return origin.func is Tensor.contiguous and [*map(len, origin.settings)] == [1, 0]


def _plain(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes of a tensor for one record."""
    return tuple(size[0] if isinstance(size, tuple) else size for size in sizes)


_BY_ENTRIES: Final = ELEMENTWISE | named(
    *("view", "reshape", "squeeze", "unsqueeze", "linear", "clone", "detach", "contiguous", "to", "float", "dropout"),
    *("relu", "gelu", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "square", "abs", "neg", "softplus"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "leaky_relu"),
    *("poisson_nll_loss", "layer_norm"),  # whose axes are the last ones, behind that of the record
)
_FROM_THE_END: Final = named("sum", "mean", "amax", "amin", "softmax", "log_softmax", "logsumexp", "norm", "var", "std")


def _unmarked(origin: Origin) -> Origin:
    return origin.parents[0] if origin.output == SPREAD_ROWS else origin


def _goes_by_no_axis(origin: Origin, lost: set[int]) -> bool:
    """Whether a call gives the same if its tensors have no axis for their one record.

    lost  where that axis would be; axes may count from the end if it would be the first
    """
    return origin.func in _BY_ENTRIES or (
        origin.func in _FROM_THE_END and lost == {0} and not _has_place(origin.settings)
    )


def _has_place(part: Any) -> bool:
    """Whether settings hold a whole number that is not negative, outside of the sizes of tensors."""
    if type(part) is tuple and not _is_form(part):
        return any(map(_has_place, part))
    return type(part) is int and part >= 0


def _name(origin: Origin) -> str:
    if origin.func is None and origin.lineage is MIXED:
        return "none"  # the generator stands where the batch began
    return "a tensor that exists" if origin.func is None else readable(origin.func)


def described(origin: Origin) -> str:
    """A call and its line."""
    return f"{_name(origin)}{_at(origin)}"


def _at(origin: Origin) -> str:
    if origin.where is None:
        return ""
    code, line = origin.where
    text = linecache.getline(code.co_filename, line).strip()
    return f" at {code.co_filename}:{line}" + (f" `{text}`" if text else "")


def _is_form(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) > 1 and isinstance(part[0], torch.dtype)


def _is_size(part: Any) -> bool:
    return type(part) is int or (isinstance(part, tuple) and len(part) == 2 and part[0] == "records")


class BatchKind(enum.Enum):
    """What a batch may show of the way in which losses are made."""

    REHEARSAL = "made-up records, which show it"
    REHEARSED = "records, whose losses are made as in rehearsals"
    FREE = "public records, which show it themselves"


@final
@dataclass
class _Program:
    """The way in which losses are made under one declared choice.

    first, records  the losses that showed it, and for how many records
    seen            digests of losses that were compared with them, and their numbers of records
    common          a number that other processes have for it, too; None before it is rehearsed
    """

    first: Origin
    records: int
    seen: set[tuple[int, int]]
    common: int | None = None


@final
class KnownPrograms:
    """The way in which losses are made, for each choice that the user declares."""

    def __init__(self) -> None:
        self._programs: dict[tuple[Any, ...], _Program] = {}
        self.sizes: frozenset[int] = frozenset()  # numbers of records that rehearsals have
        self.needs_rehearsal = False  # whether the newest way was not rehearsed yet
        self.way: int | None = None  # of the losses that were checked last, the number that all processes have for it

    def check(self, losses: Origin, records: int, declared: tuple[Any, ...], kind: BatchKind) -> None:
        """Refuse losses that are made in another way than the first.

        declared  choices of this step that the user declared public
        """
        known, self.way = self._programs.get(declared), None
        if known is None:
            if kind is BatchKind.REHEARSED:
                self.needs_rehearsal = True
                return
            if len(self._programs) >= _MOST_CHOICES:
                del self._programs[next(iter(self._programs))]  # it is compared anew when it comes back
            known = self._programs[declared] = _Program(losses, records, {(losses.digest, records)})
        if known.common is None and kind is BatchKind.REHEARSAL:
            known.common = digest_of(losses)
        self.way = known.common
        seen = losses.digest, records
        if seen not in known.seen:
            comparison = ProgramComparison((known.records, records), is_shown=kind is BatchKind.REHEARSAL)
            if not comparison.same(known.first, losses):
                _refuse_difference(comparison)
            known.seen.add(seen)
        if kind is not BatchKind.FREE:
            self.needs_rehearsal = not self.sizes <= {size for _, size in known.seen}


def _refuse_difference(comparison: ProgramComparison) -> None:
    first, second = comparison.sizes
    size = f" (batches of {first} and {second} records)" if first != second and comparison.is_shown else ""
    refuse(
        "losses that every batch makes by the same calls with the same numbers",
        f"{comparison.difference}{size}",
        "if what changes does not come from the records (a schedule, a random choice), write discreet.public(value) "
        "around the number or the condition; do not divide by the number of records, which is private",
    )
