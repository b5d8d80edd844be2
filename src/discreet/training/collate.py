"""Call a user's `collate_fn` for one record at a time.

Guarantee: the rows of a record in a batch depend on that record only, because `collate_fn` never sees several records
together. It therefore cannot pad to the longest record of a batch, standardise over a batch, or mix records.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from discreet.core.check import refuse

_PAD = "pad every record to one public length in collate_fn (or in the dataset), and mask"


@final
class CollateEach:
    """Collates each record separately and joins the results. A batch of two equal records shows how to join them."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, records: list[Any]) -> Any:
        alone = [self._collate_fn([record]) for record in records]
        two = self._collate_fn([copy.deepcopy(records[0]), copy.deepcopy(records[0])])
        return _joined(alone, two)


def _joined(alone: Sequence[Any], two: Any) -> Any:
    """Join batches of one record. `two` is a batch of two records and shows which axes grow with the batch."""
    first = alone[0]
    if isinstance(first, Tensor):
        return _joined_tensors(alone, two)
    if isinstance(first, np.ndarray):
        arrays = _joined_tensors([torch.from_numpy(one) for one in alone], torch.from_numpy(two))
        return arrays.numpy()
    if isinstance(first, Mapping):
        if any(set(one) != set(first) for one in alone):
            refuse("the same keys in every record", "different keys", "return all keys for every record")
        parts = {key: _joined([one[key] for one in alone], two[key]) for key in first}
        if type(first) is dict:
            return parts
        whole: Any = copy.copy(two)
        for key, part in parts.items():
            whole[key] = part
        return whole
    if isinstance(first, (tuple, list)):
        if len(two) == 2 * len(first):  # one entry per record
            return type(first)(entry for one in alone for entry in one)
        if any(len(one) != len(first) for one in alone) or len(two) != len(first):
            _refuse("a list whose length is neither constant nor the number of records")
        joined = [_joined([one[i] for one in alone], two[i]) for i in range(len(first))]
        named = isinstance(first, tuple) and type(first) is not tuple
        return type(first)(*joined) if named else type(first)(joined)
    if any(one != first for one in alone) or two != first:
        _refuse(f"{type(first).__name__} values that differ between records")
    return first


def _joined_tensors(alone: Sequence[Tensor], two: Tensor) -> Tensor:
    first = alone[0]
    if first.dim() and two.shape == (2 * first.shape[0], *first.shape[1:]):
        if any(one.shape != first.shape for one in alone):
            refuse("records of one shape", f"shapes {sorted({tuple(one.shape) for one in alone})}", _PAD)
        return torch.cat(list(alone))
    if two.shape != first.shape or any(not torch.equal(one, first) for one in alone):
        _refuse("a tensor without one row for each record")
    return first


def _refuse(came: str) -> NoReturn:
    refuse(
        "a collate_fn that makes each record's rows from that record alone",
        came,
        "return tensors with the records along the first axis; create constants inside forward()",
    )


@final
class OneByOne(Dataset[Any]):
    """A dataset that fetches records one by one, because a batched fetch could mix them."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]

    def __iter__(self) -> Iterator[Any]:
        return (self._data[index] for index in range(len(self)))
