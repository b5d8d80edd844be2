"""Call a user's `collate_fn` for one record at a time, also where classes of records have code of their own.

Guarantee: the rows of a record in a batch depend on that record only, because no record of a batch comes out of a call
of the user's code on several records. What is no row is the same for all records, bit by bit. A function therefore
cannot pad to the longest record of a batch, standardise over a batch, or mix records. Because it would do something
else than its author meant, such a function is refused (`check_apart`).
"""

import copy
import warnings
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final, NoReturn, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from discreet.core.check import Refused, refuse
from discreet.core.secret_draws import seeded_generators
from discreet.engine.proof.lineage import RecordList, RecordTuple, places_in
from discreet.engine.trace.constants import is_same, is_same_tensor
from discreet.engine.trace.containers import (
    attributes_of,
    entries_of,
    holds_attributes_only,
    is_container,
    rebuilt,
    with_parts,
)

_PAD = "pad every record to one public length in collate_fn (or in the dataset), and mask"
_SIMPLE: Final = frozenset((str, bytes, int, bool, float, complex, type(None)))
_TORCHS: Final = frozenset((str, bytes, int, bool, float, Tensor, np.ndarray))


@final
class CollateEach:
    """Collates each record separately and joins the results. A batch of two equal records shows how to join them."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any], what: str = "collate_fn") -> None:
        self._collate_fn, self._what, self._is_checked = collate_fn, what, False

    def __call__(self, records: list[Any]) -> Any:
        if not self._is_checked and len(records) > 1:
            check_apart(self._collate_fn, records[:_POOL], self._what)
            self._is_checked = True
        alone = [kept(self._collate_fn([record])) for record in records]
        two = self._collate_fn([kept(records[0]), kept(records[0])])
        return _joined(alone, two)


@final
class CollateAlike:
    """Torch's own collation, of records that are built alike.

    Among others, one record would decide the type of all: a fraction turns the whole numbers of a batch into float32,
    in which large ones become others, and the first record says which keys there are, and in which order. Where
    torch's collation would run code of the records' classes, it is called for one record at a time.
    """

    def __init__(self) -> None:
        self._each = CollateEach(default_collate, _BY_DEFAULT)

    def __call__(self, records: list[Any]) -> Any:
        first = records[0]
        if _is_named(first) and all(type(one) is type(first) and not attributes_of(one) for one in records):
            return rebuilt(first, self([tuple(entries_of(one)) for one in records]), {})
        if not (_has_no_types_added() and _is_torchs_own(first)):
            for record in records:
                _require_known(record)
            return self._each(records)
        kind = _kind(first)
        if any(_kind(record) != kind for record in records[1:]):
            _refuse_kinds()
        return default_collate(records)


_BY_DEFAULT: Final = "collation of types of your own"


def _is_named(record: Any) -> bool:
    """Whether a record is a named tuple, which torch collates column by column unless its class is registered."""
    return bool(isinstance(record, tuple) and getattr(record, "_fields", ())) and _has_no_types_added()


def _has_no_types_added() -> bool:
    """Whether all functions in `default_collate_fn_map` are torch's: others would see all records of the batch."""
    return all(
        getattr(how, "__module__", None) == default_collate.__module__ for how in default_collate_fn_map.values()
    )


def _is_torchs_own(part: Any) -> bool:
    """Whether torch collates a record, or a part of it, without code of its class.

    A batch of another class is made by its constructor, which would see all records of the batch. And what an object
    holds beside its entries would be that of the first record.
    """
    kind = type(part)
    if kind in (tuple, list):
        return all(map(_is_torchs_own, part))
    if kind is dict:
        return all(map(_is_torchs_own, part.values()))
    return kind in _TORCHS or (isinstance(part, np.generic) and kind.__module__ == "numpy")


def _require_known(part: Any) -> None:
    """Refuse what `default_collate` cannot collate, in words of its own."""
    if isinstance(part, tuple(default_collate_fn_map)):
        return
    if not isinstance(part, (Mapping, Sequence)):
        expected = "records of tensors, NumPy arrays, numbers and texts, or of dictionaries, tuples and lists of them"
        remedy = "leave it out in dataset[i], write a value in its place (such as -1), or pass collate_fn="
        refuse(expected, f"a part that is {'None' if part is None else type(part).__name__}", remedy)
    for one in part.values() if isinstance(part, Mapping) else part:
        _require_known(one)


def _kind(part: Any) -> Any:
    """How a record, or a part of it, is built: types and keys, no values."""
    if isinstance(part, (Tensor, np.ndarray)):
        return type(part), part.dtype
    if isinstance(part, Mapping):
        return type(part), tuple((type(key), key, _kind(value)) for key, value in part.items())
    if isinstance(part, (tuple, list)):
        return type(part), tuple(map(_kind, part))
    return type(part)


def _refuse_kinds() -> NoReturn:
    remedy = "convert them in dataset[i], such as float(value) for every record, and return all keys in one order"
    refuse("records of one type, with the same keys", "records that differ in it", remedy)


def kept(batch: Any) -> Any:
    """A record or a batch with memory of its own: code of the user's may fill one buffer, or one object, again.

    Tensors and arrays become contiguous, as those of rehearsals are. The strides of one record would else decide those
    of the batch, and strides decide in which order numbers are added.
    """
    if isinstance(batch, Tensor):
        is_strided = batch.layout is torch.strided
        return batch.clone(memory_format=torch.contiguous_format) if is_strided else batch.clone()
    if type(batch) in _SIMPLE:
        return batch
    if isinstance(batch, np.ndarray) and not batch.dtype.hasobject:
        return batch.copy()
    if is_container(batch):
        return with_parts(batch, kept)
    own: dict[int, Any] = {id(tensor): kept(tensor) for tensor, _ in places_in(batch, 0)}  # a row, without its storage
    try:
        return copy.deepcopy(batch, own)
    except Exception as error:
        expected = "records that can be copied, because an object may be filled again with the next record"
        kind = type(batch)
        got = f"{kind.__module__}.{kind.__qualname__}, for which copy.deepcopy raises {type(error).__name__}"
        refuse(expected, got, "return tensors, arrays, numbers and texts: read files and open handles in dataset[i]")


def _joined(alone: Sequence[Any], two: Any) -> Any:
    """Join batches of one record. `two` is a batch of two records and shows which axes grow with the batch."""
    first = alone[0]
    if all(is_same(one, first) for one in (*alone[1:], two)):
        return first
    if any(type(one) is not type(first) for one in (*alone, two)):
        _refuse_kinds()
    if isinstance(first, Tensor):
        return _joined_tensors(alone, two)
    if isinstance(first, np.ndarray):
        arrays = _joined_tensors([torch.from_numpy(one) for one in alone], torch.from_numpy(two))
        return arrays.numpy()
    if isinstance(first, dict):
        keys = [(type(key), key) for key in first]
        if any([(type(key), key) for key in one] != keys for one in (*alone, two)):
            refuse("the same keys in every record, in one order", "others", "return all keys for every record")
        return rebuilt(two, _joined_parts(list(map(entries_of, alone)), entries_of(two)), _joined_notes(alone, two))
    if isinstance(first, (tuple, list)):
        columns, both = list(map(entries_of, alone)), entries_of(two)
        if len(both) == 2 * len(columns[0]):  # one entry per record
            entries = [entry for column in columns for entry in column]
            kind = {list: RecordList, tuple: RecordTuple}.get(type(first))
            return rebuilt(two, entries, _joined_notes(alone, two)) if kind is None else kind(entries)
        if any(len(column) != len(both) for column in columns):
            _refuse("a list whose length is neither constant nor the number of records")
        joined = [_joined(column, part) for *column, part in zip(*columns, both, strict=True)]
        return rebuilt(two, joined, _joined_notes(alone, two))
    if is_container(first) or holds_attributes_only(first):
        parts = _joined_parts(list(map(_fields_of, alone)), _fields_of(two))
        return rebuilt(two, (), parts | _joined_notes(alone, two))
    return _refuse(f"{type(first).__name__} values that differ between records")


def _joined_parts(each: Sequence[Mapping[str, Any]], two: Mapping[str, Any]) -> dict[str, Any]:
    if any(one.keys() != two.keys() for one in each):
        _refuse_kinds()
    return {name: _joined([one[name] for one in each], value) for name, value in two.items()}


def _joined_notes(alone: Sequence[Any], two: Any) -> dict[str, Any]:
    """Attributes beside the entries of a dictionary or the fields of a dataclass: `two` holds those of one record."""
    each, joined = [_notes_of(one) for one in alone], {}
    for name, value in _notes_of(two).items():
        if any(name not in one for one in each):
            _refuse(f"an attribute `{name}` of {type(two).__name__} that some records lack")
        try:
            joined[name] = _joined([one[name] for one in each], value)
        except Refused:
            if isinstance(two, UserDict):
                joined[name] = None  # a tokeniser's own notes beside its tensors
                continue
            expected = "attributes of a batch that are the same for every record, or hold a row for each"
            got = f"`{name}` of {type(two).__name__}, which differs between records or is made of several"
            remedy = "return it as an entry: a tensor with the records along the first axis"
            refuse(expected, got, remedy)
    return joined


def _fields_of(one: Any) -> dict[str, Any]:
    """What an object without entries holds by declaration; all that it holds, if it declares nothing."""
    held = attributes_of(one)
    if isinstance(one, UserDict):
        return {"data": held["data"]}
    return {field.name: held[field.name] for field in fields(one)} if is_dataclass(one) else held


def _notes_of(one: Any) -> dict[str, Any]:
    """What an object holds beside its entries and fields."""
    held = {} if isinstance(one, (tuple, list, dict)) else _fields_of(one)
    return {name: value for name, value in attributes_of(one).items() if name not in held}


def _joined_tensors(alone: Sequence[Tensor], two: Tensor) -> Tensor:
    first = alone[0]
    if any(one.dtype != first.dtype for one in alone):
        _refuse_kinds()
    if first.dim() and two.shape == (2 * first.shape[0], *first.shape[1:]):
        if any(one.shape != first.shape for one in alone):
            refuse("records of one shape", f"shapes {sorted({tuple(one.shape) for one in alone})}", _PAD)
        return torch.cat(list(alone))
    if not all(is_same_tensor(one, first) for one in (*alone[1:], two)):
        _refuse("a tensor without one row for each record")
    return first


def _refuse(came: str) -> NoReturn:
    expected = "a collate_fn that makes each record's rows from that record alone"
    refuse(expected, came, "return tensors with the records along the first axis; create constants inside forward()")


def check_data_apart(data: Any, collate_fn: Callable[[list[Any]], Any] | None) -> None:
    """Refuse a `collate_fn`, or a batched fetch, that gives a record other entries beside other records."""
    size = len(data)
    numbers = sorted({(size * part // _POOL + part) % size for part in range(_POOL)})  # odd ones, too
    fetch = getattr(data, "__getitems__", None)
    if fetch is not None:
        check_apart(fetch, numbers, "__getitems__")
    if collate_fn is not None:
        check_apart(collate_fn, _fetched(data, numbers), "collate_fn")
    elif not (_has_no_types_added() and _is_torchs_own(data[0])):
        _require_known(data[0])
        check_apart(default_collate, _fetched(data, numbers), _BY_DEFAULT)


def _fetched(data: Any, numbers: list[int]) -> list[Any]:
    return [kept(data[number]) for number in numbers]


def check_apart(function: Callable[[list[Any]], Any], pool: list[Any], what: str) -> None:
    """Call a function on a few of `pool` together, and again with others in their place: entries of one may not move.

    Random numbers are drawn from the same seeds, and the generators are restored. A function whose results are not
    repeatable even so, or that fails, is not judged: the batches of a run come from one record at a time.
    """
    few = min(_FEW, len(pool))
    if few < 2:
        return
    shift = few if len(pool) >= 2 * few else 1
    own, others = pool[:few], [pool[(index + shift) % len(pool)] for index in range(few)]
    try:
        first, again, reseeded = (_seeded(function, own, seed) for seed in (0, 0, 1))
        alone = _seeded(function, own[:1], 0)
        if _difference(first, again) is not None:
            return
        is_random = _difference(first, reseeded) is not None
        for seed in range(_SEEDS if is_random else 1):
            before = _seeded(function, own, seed)
            for company in (others[1:], own[:1] * (few - 1)):
                after = _seeded(function, [own[0], *company], seed)
                _require_same(_part(before, alone, few, 0), _part(after, alone, few, 0), function, what)
        if not is_random:  # what one record draws may shift the draws of the next
            after = _seeded(function, [others[0], *own[1:]], 0)
            for index in range(1, few):
                _require_same(_part(first, alone, few, index), _part(after, alone, few, index), function, what)
                copies = _seeded(function, own[index : index + 1] * few, 0)
                _require_same(_part(first, alone, few, index), _part(copies, alone, few, index), function, what)
    except _FailedError:
        return


_FEW, _POOL, _SEEDS = 3, 6, 8


class _FailedError(Exception):
    """The user's function failed on the records of the check."""


def _seeded(function: Callable[[list[Any]], Any], records: list[Any], seed: int) -> Any:
    try:
        with seeded_generators(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function([kept(record) for record in records])
    except Exception as error:
        raise _FailedError from error


def _part(batch: Any, alone: Any, records: int, index: int) -> Any:
    """What belongs to one record of a batch; `alone` is a batch of a single record and shows which axes grow."""
    batch, alone = _contents(batch), _contents(alone)
    if isinstance(batch, (Tensor, np.ndarray, list, tuple)):
        each = 0 if isinstance(alone, (Tensor, np.ndarray)) and alone.ndim == 0 else len(alone)
        if each and len(batch) == records * each:
            return batch[each * index : each * (index + 1)]
    if isinstance(batch, Mapping) and set(batch) == set(alone):
        return {key: _part(part, alone[key], records, index) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)) and len(batch) == len(alone):
        return [_part(part, one, records, index) for part, one in zip(batch, alone, strict=True)]
    return batch


def _contents(batch: Any) -> Any:
    """All that a dictionary or an object holds, by name; a tokeniser's own notes are left out."""
    if isinstance(batch, (tuple, list)) or not (is_container(batch) or holds_attributes_only(batch)):
        return batch
    if isinstance(batch, UserDict):
        return batch.data
    return {**dict(entries_of(batch)), **{f".{name}": value for name, value in attributes_of(batch).items()}}


def _difference(one: Any, other: Any) -> str | None:
    """What differs between two results, "shape" or "values"; None if nothing does."""
    one, other = _contents(one), _contents(other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.dtype.kind in "biufc":
        one, other = torch.from_numpy(one), torch.from_numpy(other)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return "shape"
        return None if torch.allclose(one, other, rtol=1e-6, atol=0.0, equal_nan=True) else "values"
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if set(one) != set(other):
            return "values"
        one, other = [one[key] for key in one], [other[key] for key in one]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return "shape"
        return next(filter(None, map(_difference, one, other)), None)
    return None if bool(np.all(one == other)) else "values"


def _require_same(one: Any, other: Any, function: Any, what: str) -> None:
    difference = _difference(one, other)
    if difference is None:
        return
    called = function.func if isinstance(function, partial) else function
    code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
    where = f"{what} at {code.co_filename}:{code.co_firstlineno}" if code is not None else what
    if difference == "shape":
        got = f"{where}, in which a record's shape moves with the other records, as with padding to the longest"
        refuse(f"a {what} that gives a record one shape, whatever the other records of the batch are", got, _PAD)
    expected = f"a {what} that makes each record's entries from that record alone"
    got = f"{where}, in which a record's entries move with the other records"
    remedy = "standardise with public constants, do not mix records, return no statistic of the batch"
    refuse(expected, got, f"{remedy}, and return a property of a record as an entry of it, not as an attribute")


@final
class OneByOne(Dataset[Any]):
    """A dataset that fetches records one by one, because a batched fetch could mix them."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return kept(self._data[index])
