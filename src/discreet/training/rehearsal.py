"""Rehearsals: batches of made-up records, of public sizes, on which a training loop shows how it makes its losses.

A value of the records can reach Python in more ways than anyone can list (`item`, a string, an error, a size, a
thread), and Python can decide by it what comes next. So the calls that make the losses are fixed before a record is
seen: the loop gets two rehearsals before its first batch, and every batch after them must make its losses by the same
calls with the same numbers (engine/proof/program.py). Nothing of a rehearsal is added to a sum.

Guarantee: a rehearsal depends on the structure, the types and the shapes of a batch alone, apart from numbers and
strings of the whole batch (not one for each record).
"""

import datetime
import enum
from collections import UserDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from discreet.core.check import Refused, refuse, require
from discreet.engine.proof.lineage import PER_RECORD, places_in
from discreet.engine.trace.containers import (
    attributes_of,
    entries_of,
    holds_attributes_only,
    is_container,
    rebuilt,
    with_parts,
)

_SIZES: Final = (14, 9)  # even and odd, without a common factor, and seldom another size of a model
_SEED: Final = 7
_NONE: Final = -1  # no axis has as many rows
_SAME_FORM: Final = "give Private(rehearsal=...) a batch of the form in which the loop gets them"
_VALUES: Final = (str, bytes, int, float, complex, type(None))
_SETTINGS: Final = (torch.device, torch.dtype, torch.layout, torch.memory_format)
_TIMES: Final[dict[type, Any]] = {
    datetime.datetime: datetime.datetime(2001, 1, 1),
    datetime.date: datetime.date(2001, 1, 1),
    datetime.time: datetime.time(1),
    datetime.timedelta: datetime.timedelta(1),
}


def rehearsal_sizes(largest: int, *, is_fixed: bool = False) -> tuple[int, ...]:
    """How many made-up records rehearsals have, if at most `largest` fit in memory, or if every batch has as many.

    Two sizes show which numbers follow the number of records, also if only one of them comes again.

    >>> [rehearsal_sizes(largest) for largest in (512, 6, 2, 1)]
    [(14, 9), (6, 5), (2, 1), (1,)]
    >>> rehearsal_sizes(512, is_fixed=True)
    (512, 9)
    """
    if largest < _SIZES[0]:
        return (largest, largest - 1) if largest > 1 else (1,)
    return (largest, _SIZES[1]) if is_fixed else _SIZES


@final
@dataclass(frozen=True)
class Rehearsals:
    """The rehearsals of a run: of made-up records, or of public records that the user gives.

    sizes   how many records they have
    given   a batch of public records, as `collate_fn` returns it; None: records are made up
    number  how many records `given` has
    """

    sizes: tuple[int, ...]
    given: Any = None
    number: int = 0

    def like(self, batch: Any, records: int) -> Iterator[tuple[Any, int]]:
        """Rehearsals for a batch of the run, each with its number of records."""
        for size in self.sizes:
            yield self.of_size(batch, records, size), size

    def of_size(self, batch: Any, records: int, size: int) -> Any:
        """A rehearsal of `size` records for a batch of `records`."""
        return made_up(batch, records, size) if self.given is None else taken(self.given, self.number, size)


@final
class VacantRows:
    """Made-up records in the rows of a batch that hold none, for runs with fixed rows (`Slots` in draws.py).

    Guarantee: they depend on what a rehearsal depends on. What has no row for each record stays that of the batch,
    where it is the same for all records (collate.py). Rows without a record have weight 0.
    """

    def __init__(self, rehearsals: Rehearsals) -> None:
        self._rehearsals = rehearsals
        self._made: dict[tuple[tuple[Any, ...], ...], Any] = {}  # by the form of the batch, which seldom changes

    def filled(self, batch: Any, vacant: Tensor) -> Any:
        """A batch with a row for each entry of `vacant`, in which made-up records have replaced those of some rows."""
        form = tuple((tensor.shape, tensor.dtype) for tensor, _ in places_in(batch, 0))
        if form not in self._made:
            self._made = {form: self._rehearsals.of_size(batch, len(vacant), len(vacant))}
        return _chosen(batch, self._made[form], vacant)


def _chosen(batch: Any, other: Any, from_other: Tensor) -> Any:
    """A batch with some rows of another one of the same structure."""
    rows, kind = len(from_other), type(batch)
    has_rows = _MakingUp(rows, rows).has_rows

    def both(one: Any, second: Any) -> Any:
        return _chosen(one, second, from_other)

    require(isinstance(batch, type(other)), f"a {kind.__name__} in the rehearsal", type(other).__name__, _SAME_FORM)
    if isinstance(batch, (Tensor, np.ndarray)):
        if batch.ndim == 0 or batch.shape[0] != rows:
            return batch
        require(batch.shape == other.shape, f"rows of shape {list(batch.shape)}", list(other.shape), _SAME_FORM)
        at = from_other.view(-1, *[1] * (batch.ndim - 1))
        if isinstance(batch, np.ndarray):
            return np.where(at.numpy(), other, batch)
        return torch.where(at.to(batch.device), other.to(batch), batch)
    if isinstance(batch, (tuple, list)):
        pairs = zip(entries_of(batch), entries_of(other), strict=True)
        if isinstance(batch, PER_RECORD) or (len(batch) == rows and not any(map(has_rows, batch))):
            entries: Any = [second if take else one for (one, second), take in zip(pairs, from_other, strict=True)]
        else:
            entries = [both(one, second) for one, second in pairs]
    elif isinstance(batch, (*_VALUES, np.generic, enum.Enum, *_TIMES, *_SETTINGS)):
        return batch
    else:
        seconds = dict(entries_of(other))
        entries = {name: both(part, seconds[name]) for name, part in dict(entries_of(batch)).items()}
    seconds = attributes_of(other)
    attributes = {name: both(part, seconds[name]) for name, part in attributes_of(batch).items()}
    return rebuilt(batch, entries, attributes)


def taken(batch: Any, records: int, size: int) -> Any:
    """The first `size` records of a batch; if there are fewer, they come again.

    >>> taken((torch.arange(3), ["a", "b", "c"], 7), 3, 5)
    (tensor([0, 1, 2, 0, 1]), ['a', 'b', 'c', 'a', 'b'], 7)
    """
    rows = [row % records for row in range(size)]

    def walk(tree: Any) -> Any:
        if isinstance(tree, (Tensor, np.ndarray)):
            return tree[rows] if tree.ndim and tree.shape[0] == records else tree
        if isinstance(tree, (tuple, list)) and len(tree) == records and not any(map(has_rows, tree)):
            entries = entries_of(tree)
            return rebuilt(tree, [entries[row] for row in rows], attributes_of(tree))
        if is_container(tree):
            return with_parts(tree, walk)
        return tree

    has_rows = _MakingUp(records, size).has_rows
    return walk(batch)


def made_up(batch: Any, records: int, size: int) -> Any:
    """A batch like this one of `size` records, with values that most loops take.

    Whole numbers are 1, which is a class, a token, a length and a mask; fractions lie between 0 and 1, and are 1 where
    a record has a single one; strings are "1". A sequence with one entry for each record holds copies of one entry,
    made up by the structure of the first.
    """
    return _MakingUp(records, size).walk(batch, of_record=False)


@final
class _MakingUp:
    def __init__(self, records: int, size: int) -> None:
        self._records, self._size = records, size
        self._generator = torch.Generator().manual_seed(_SEED)

    def walk(self, tree: Any, *, of_record: bool) -> Any:
        """`of_record`: numbers and strings may be those of one record, and are made up."""
        kind = type(tree)
        if isinstance(tree, Tensor):
            return _values(tree, self._records, self._size, self._generator)
        if isinstance(tree, np.ndarray):
            return self._array(tree)
        if isinstance(tree, (*_VALUES, np.generic, enum.Enum)):
            return _value(tree) if of_record else tree
        if isinstance(tree, (tuple, list)):
            return self._sequence(tree, of_record)
        if isinstance(tree, dict):
            return self._dictionary(tree, of_record)
        if kind in _TIMES:
            return _TIMES[kind]
        if kind in _SETTINGS:
            return tree
        require(
            is_container(tree) or (holds_attributes_only(tree) and not callable(tree)),
            "a batch of tensors, NumPy arrays, numbers, strings, times, dictionaries, lists and tuples",
            f"{kind.__module__}.{kind.__qualname__}",
            "have collate_fn return one of these: rehearsals are batches of the same structure without your records",
        )
        return rebuilt(tree, (), self._attributes(tree, of_record))

    def _sequence(self, tree: Any, of_record: bool) -> Any:
        kind = type(tree)
        is_by_record = len(tree) == self._records
        if isinstance(tree, PER_RECORD) or (is_by_record and not any(map(self.has_rows, tree))):
            branches = [_MakingUp(_NONE, self._size).walk(tree[0], of_record=True)] * self._size
            return kind(branches) if kind in (tuple, list, *PER_RECORD) else tuple(branches)
        branches = [self.walk(branch, of_record=of_record or is_by_record) for branch in entries_of(tree)]
        return rebuilt(tree, branches, self._attributes(tree, of_record))

    def has_rows(self, tree: Any) -> bool:
        """Whether a part of a batch has a row for each record, so that what it lies in is no list of records."""
        if isinstance(tree, (Tensor, np.ndarray)):
            return tree.ndim > 0 and tree.shape[0] == self._records
        if isinstance(tree, Mapping):
            return any(map(self.has_rows, tree.values()))
        return isinstance(tree, (tuple, list)) and (len(tree) == self._records or any(map(self.has_rows, tree)))

    def _dictionary(self, tree: dict[Any, Any], of_record: bool) -> Any:
        for key in tree:
            require(
                isinstance(key, str),
                "dictionaries with strings as keys in a batch",
                f"a key of type {type(key).__name__}",
                "have collate_fn return values of the records as tensors: keys are the same in every batch",
            )
        entries = {key: self.walk(branch, of_record=of_record) for key, branch in entries_of(tree).items()}
        return rebuilt(tree, entries, self._attributes(tree, of_record))

    def _attributes(self, tree: Any, of_record: bool) -> dict[str, Any]:
        made = dict[str, Any]()
        for name, value in attributes_of(tree).items():
            if isinstance(tree, defaultdict) and name == "default_factory":
                made[name] = value
                continue
            try:
                made[name] = self.walk(value, of_record=of_record)
            except Refused:
                if not isinstance(tree, UserDict) or name == "data":
                    raise
                made[name] = None  # a tokeniser's own notes beside its tensors
        return made

    def _array(self, like: Any) -> Any:
        if like.dtype.kind in "biufc":
            return _values(torch.from_numpy(like), self._records, self._size, self._generator).numpy()
        has_rows = like.ndim > 0 and like.shape[0] == self._records
        made = np.ones((self._size, *like.shape[1:]) if has_rows else like.shape, dtype=like.dtype)
        if like.dtype.kind == "O":
            for place in np.ndindex(made.shape):
                made[place] = self.walk(like.flat[0], of_record=True)
        elif like.dtype.kind not in "USMm":
            refuse("a NumPy array of numbers, strings or times", f"one of {like.dtype}", "split it into plain arrays")
        return made


def _value(like: Any) -> Any:
    kind = type(like)
    if isinstance(like, enum.Enum):
        return next(iter(type(like)))
    if isinstance(like, np.generic):
        return np.ones((), dtype=like.dtype)[()]
    return None if like is None else b"1" if kind is bytes else kind(1)


def _values(like: Tensor, records: int, size: int, generator: torch.Generator) -> Tensor:
    has_rows = like.dim() > 0 and like.shape[0] == records
    shape = (size, *like.shape[1:]) if has_rows else like.shape
    is_fraction = like.is_floating_point() or like.is_complex()
    if is_fraction and shape[1:].count(1) < len(shape[1:]):
        return torch.rand(shape, generator=generator).to(like)
    if like.dtype == torch.uint8:
        return torch.randint(0, 2, shape, generator=generator).to(like)
    return torch.ones(shape, dtype=like.dtype, device=like.device)
