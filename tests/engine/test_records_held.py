"""The tensors of a dataset are private wherever it holds them."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import loop
from discreet.core.check import Refused
from discreet.engine.records_held import tensors_held_by


class Slots:
    __slots__ = ("__hidden", "shown")

    def __init__(self, held: Any) -> None:
        self.shown, self.__hidden = 1, held


class Box:
    def __init__(self, held: Any) -> None:
        self.held = held


class Cycle:
    def __init__(self, held: Any) -> None:
        self.me, self.held = self, held


def _deep(held: Any) -> Any:
    for _ in range(50):
        held = Box([held])
    return held


def _rows(held: Any) -> Any:
    yield from held


TABLE = UNRELATED = torch.zeros(1)  # the first is set by tests


class ReadsGlobal:
    unrelated = 1

    def __getitem__(self, index: int) -> Any:
        return next(TABLE[i] for i in [index]), self.UNRELATED  # type: ignore[attr-defined]


def _reads_global(held: Any) -> Any:
    global TABLE
    TABLE = held
    return ReadsGlobal()


def _reads_global_by_a_function(held: Any) -> Any:
    return Box(_row_of(_reads_global(held)))


def _row_of(inner: Any) -> Any:
    return lambda index: inner[index]


def _generates_from_global(held: Any) -> Iterator[Any]:
    _reads_global(held)
    return (TABLE[index] for index in range(3))


def _class_attribute(held: Any) -> Any:
    class Holds:
        rows = held

    class Inherits(Holds):
        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    return Inherits()


def _default(held: Any) -> Any:
    def row(index: int, rows: Any = held, *, more: Any = None) -> Any:
        return rows[index], more

    return Box(row)


@functools.lru_cache
def _cached(name: str) -> Any:
    return _TABLES[name]


_TABLES: dict[str, Any] = {}


def _in_a_cache(held: Any) -> Any:
    _cached.cache_clear()
    _TABLES["a"] = held
    _cached("a")
    _TABLES.clear()
    return lambda index: _cached("a")[index]


def _loader(held: Any) -> Any:
    return DataLoader(TensorDataset(held), batch_size=2)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "subsets": lambda t: Subset(Subset(Subset(TensorDataset(t), range(3)), range(3)), range(2)),
    "concatenated": lambda t: ConcatDataset([Subset(TensorDataset(t), range(2)), TensorDataset(torch.zeros(1))]),
    "slots": Slots,
    "mapping": lambda t: {"a": ({"b": [t]},)},
    "set": lambda t: frozenset([t]),
    "cycle": Cycle,
    "deep": _deep,
    "objects": lambda t: np.array([None, Box(t)], dtype=object),
    "generator": _rows,
    "global": _reads_global,
    "global, by a function": _reads_global_by_a_function,
    "global, by a generator": _generates_from_global,
    "class attribute": _class_attribute,
    "closure": lambda t: Box(lambda index: t[index]),
    "default": _default,
    "partial": lambda t: Box(functools.partial(lambda rows, index: rows[index], t)),
    "partial, by name": lambda t: functools.partial(max, key=t),
    "bound method": lambda t: Box(TensorDataset(t).__getitem__),
    "bound method of C": lambda t: [t].__getitem__,
    "cache": _in_a_cache,
    "islice": lambda t: itertools.islice(_loader(t), 9),
    "map": lambda t: map(tuple, _loader(t)),
    "zip": lambda t: (batch for batch, _ in zip(_loader(t), itertools.count(), strict=False)),
    "enumerate": lambda t: enumerate(_loader(t)),
    "chain": lambda t: itertools.chain(_loader(t), _loader(t)),
    "cycle of C": lambda t: itertools.cycle(iter([t])),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_tensors_are_found_at_any_depth(name: str) -> None:
    tensor, other = torch.ones(3, 2), torch.ones(3, 2)
    found = tensors_held_by(WRAPPERS[name](tensor), [tensor, other])
    assert any(one is tensor for one in found)
    assert not any(one is other for one in found)
    assert not any(one is UNRELATED for one in found)  # a global that no code of the dataset reads


def test_tensors_in_the_memory_of_an_array_are_found() -> None:
    array = np.ones((6, 4), dtype=np.float32)
    alias, part, other = torch.from_numpy(array), torch.from_numpy(array[2:, ::-1].copy()), torch.ones(6, 4)
    for held in (array, array[1:3], array[::-1], torch.from_numpy(array)[2]):
        found = tensors_held_by(Box(Box(Box(Box(held)))), [alias, part, other])
        assert any(one is alias for one in found)
        assert not any(one is part or one is other for one in found)


class FromArrays(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, x: np.ndarray[Any, Any], y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.x[index]), self.y[index]


def train_with(data: Any, scaled: Callable[[Tensor], Tensor], **options: Any) -> int:
    run = loop.private(dataset=data, **options)
    for rows, labels in run:
        run.step(F.cross_entropy(run.model(scaled(rows)), labels, reduction="none"))
    return run.updates


@pytest.mark.parametrize("by_array", [False, True])
def test_the_whole_data_in_the_losses_is_refused(by_array: bool) -> None:
    x, y = loop.data().tensors
    everything = range(len(x))
    inner = FromArrays(x.numpy(), y) if by_array else TensorDataset(x, y)
    data = Subset(Subset(Subset(inner, everything), everything), everything)
    table = torch.from_numpy(x.numpy()) if by_array else x
    with pytest.raises(Refused, match="each record stands alone"):
        train_with(data, lambda rows: rows / table.abs().max())


def test_tensors_beside_the_data_stay_public() -> None:
    x, y = loop.data().tensors
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    data = Subset(Subset(TensorDataset(x, y), range(60)), range(60))
    assert train_with(data, lambda rows: rows / scale) == loop.STEPS


class FromOutOfSight(Dataset[tuple[Tensor, Tensor]]):
    """Its records are views of tensors that nothing in its code names."""

    def __len__(self) -> int:
        return loop.RECORDS

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return vars(sys.modules[__name__])["HIDDEN"][index], loop.data()[index][1]


HIDDEN: Any = None


@pytest.mark.parametrize("by_array", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_record_is_a_view_of_is_not_public(
    by_array: bool, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = loop.data().tensors[0].clone()
    monkeypatch.setattr(f"{__name__}.HIDDEN", table.numpy() if by_array else table)
    with pytest.raises(Refused, match="each record stands alone"):
        train_with(FromOutOfSight(), lambda rows: rows - table.mean(0), num_workers=num_workers)


def test_globals_that_the_dataset_does_not_read_stay_public() -> None:
    global TABLE
    TABLE = loop.data().tensors[0]
    labels = loop.data().tensors[1]

    class Labelled(ReadsGlobal):
        UNRELATED = 1

        def __len__(self) -> int:
            return loop.RECORDS

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[0], labels[index]

    assert train_with(Labelled(), lambda rows: rows - UNRELATED) == loop.STEPS
    with pytest.raises(Refused, match="each record stands alone"):
        train_with(Labelled(), lambda rows: rows - TABLE.mean(0))
