"""Call a user's `collate_fn` for one record at a time.

Guarantee: the rows of a record in a batch depend on that record only, because no record of a batch comes out of a call
of `collate_fn` on several records. It therefore cannot pad to the longest record of a batch, standardise over a batch,
or mix records. Because it would do something else than its author meant, such a function is refused (`check_apart`).
"""

import copy
import random
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NoReturn, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from discreet.core.check import Refused, refuse
from discreet.engine.proof.lineage import RecordList, RecordTuple

_PAD = "pad every record to one public length in collate_fn (or in the dataset), and mask"


@final
class CollateEach:
    """Collates each record separately and joins the results. A batch of two equal records shows how to join them."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._collate_fn, self._is_checked = collate_fn, False

    def __call__(self, records: list[Any]) -> Any:
        if not self._is_checked and len(records) > 1:
            check_apart(self._collate_fn, records[:_POOL], "collate_fn")
            self._is_checked = True
        alone = [kept(self._collate_fn([record])) for record in records]
        two = self._collate_fn([copy.deepcopy(records[0]), copy.deepcopy(records[0])])
        return _joined(alone, two)


def collate_alike(records: list[Any]) -> Any:
    """Torch's own collation, of records that are built alike.

    Among others, one record would decide the type of all: a fraction turns the whole numbers of a batch into float32,
    in which large ones become others, and the first record says which keys there are, and in which order.
    """
    first = _kind(records[0])
    if any(_kind(record) != first for record in records[1:]):
        _refuse_kinds()
    return default_collate(records)


def _kind(part: Any) -> Any:
    """How a record, or a part of it, is built: types and keys, no values."""
    if isinstance(part, (Tensor, np.ndarray)):
        return type(part), part.dtype
    if isinstance(part, Mapping):
        return type(part), tuple((key, _kind(value)) for key, value in part.items())
    if isinstance(part, (tuple, list)):
        return type(part), tuple(map(_kind, part))
    return type(part)


def _refuse_kinds() -> NoReturn:
    remedy = "convert them in dataset[i], such as float(value) for every record, and return all keys in one order"
    refuse("records of one type, with the same keys", "records that differ in it", remedy)


def kept(batch: Any) -> Any:
    """A record or a batch with memory of its own: code of the user's may fill one buffer again and again."""
    if isinstance(batch, Tensor):
        return batch.clone()
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if type(batch) in (tuple, list):
        return type(batch)([kept(part) for part in batch])
    if isinstance(batch, (dict, UserDict)):
        return with_entries(batch, {key: kept(part) for key, part in batch.items()})
    if is_dataclass(batch):
        return with_fields(batch, {name: kept(part) for name, part in fields_of(batch).items()})
    return batch


def _joined(alone: Sequence[Any], two: Any) -> Any:
    """Join batches of one record. `two` is a batch of two records and shows which axes grow with the batch."""
    first = alone[0]
    if isinstance(first, Tensor):
        return _joined_tensors(alone, two)
    if isinstance(first, np.ndarray):
        arrays = _joined_tensors([torch.from_numpy(one) for one in alone], torch.from_numpy(two))
        return arrays.numpy()
    if isinstance(first, Mapping):
        if any(list(one) != list(first) for one in alone):
            refuse("the same keys in every record, in one order", "others", "return all keys for every record")
        parts = {key: _joined([one[key] for one in alone], two[key]) for key in first}
        if type(first) is dict:
            return parts
        return with_entries(with_attributes(two, _joined_notes(alone, two)), parts)
    if is_dataclass(first):
        each, growing = [fields_of(one) for one in alone], fields_of(two)
        joined = {name: _joined([one[name] for one in each], growing[name]) for name in growing}
        return with_fields(with_attributes(two, _joined_notes(alone, two)), joined)
    if isinstance(first, (tuple, list)):
        if len(two) == 2 * len(first):  # one entry per record
            kind = {list: RecordList, tuple: RecordTuple}.get(type(first), type(first))
            return kind(entry for one in alone for entry in one)
        if any(len(one) != len(first) for one in alone) or len(two) != len(first):
            _refuse("a list whose length is neither constant nor the number of records")
        branches = [_joined([one[i] for one in alone], two[i]) for i in range(len(first))]
        named = isinstance(first, tuple) and type(first) is not tuple
        return type(first)(*branches) if named else type(first)(branches)
    if any(one != first for one in alone) or two != first:
        _refuse(f"{type(first).__name__} values that differ between records")
    return first


def _joined_notes(alone: Sequence[Any], two: Any) -> dict[str, Any]:
    """Attributes beside the entries of a dictionary or the fields of a dataclass: `two` holds those of one record."""
    each, joined = [attributes_of(one) for one in alone], {}
    for name, value in attributes_of(two).items():
        if any(name not in one for one in each):
            _refuse(f"an attribute `{name}` of {type(two).__name__} that some records lack")
        try:
            joined[name] = _joined([one[name] for one in each], value)
        except Refused:
            if isinstance(two, UserDict):
                joined[name] = None  # a tokeniser's own notes beside its tensors
                continue
            expected = "attributes of a batch that are the same for every record, or hold a row for each"
            got = f"`{name}` of {type(two).__name__}, which collate_fn makes of the records"
            remedy = "return it as an entry: a tensor with the records along the first axis"
            refuse(expected, got, remedy)
    return joined


def attributes_of(one: Any) -> dict[str, Any]:
    """What an object holds beside the entries of a dictionary and the fields of a dataclass."""
    held = {field.name for field in fields(one)} if is_dataclass(one) else set[str]()
    held |= {"data"} if isinstance(one, UserDict) else set()
    return {name: value for name, value in getattr(one, "__dict__", {}).items() if name not in held}


def with_attributes(like: Any, values: dict[str, Any]) -> Any:
    """A copy with other attributes."""
    made = copy.copy(like)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def with_entries(like: Any, entries: Mapping[Any, Any]) -> Any:
    """A dictionary of the same class with other values."""
    made = copy.copy(like)
    for key, value in entries.items():
        made[key] = value
    return made


def fields_of(one: Any) -> dict[str, Any]:
    """What a dataclass holds, by name."""
    return {field.name: getattr(one, field.name) for field in fields(one)}


def with_fields(like: Any, values: dict[str, Any]) -> Any:
    """A dataclass with other values, also a frozen one; its constructor is not run again."""
    made = copy.copy(like)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _joined_tensors(alone: Sequence[Tensor], two: Tensor) -> Tensor:
    first = alone[0]
    if first.dim() and two.shape == (2 * first.shape[0], *first.shape[1:]):
        if any(one.shape != first.shape for one in alone):
            refuse("records of one shape", f"shapes {sorted({tuple(one.shape) for one in alone})}", _PAD)
        if any(one.dtype != first.dtype for one in alone):
            _refuse_kinds()
        return torch.cat(list(alone))
    if two.shape != first.shape or any(not torch.equal(one, first) for one in alone):
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
        check_apart(collate_fn, [data[number] for number in numbers], "collate_fn")


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


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators inside the block, and restore them after."""
    state: Any = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])


def _seeded(function: Callable[[list[Any]], Any], records: list[Any], seed: int) -> Any:
    try:
        with seeded_generators(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function([copy.deepcopy(record) for record in records])
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
    """All that a dictionary or a dataclass holds, by name; a tokeniser's own notes are left out."""
    if not isinstance(batch, Mapping) and not is_dataclass(batch):
        return batch
    notes = {} if isinstance(batch, UserDict) else attributes_of(batch)
    held = dict(batch) if isinstance(batch, Mapping) else fields_of(batch)
    return {**held, **{f".{name}": value for name, value in notes.items()}}


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
    refuse(expected, got, "standardise with public constants, do not mix records, and return no statistic of the batch")


@final
class OneByOne(Dataset[Any]):
    """A dataset that fetches records one by one, because a batched fetch could mix them."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return kept(self._data[index])
