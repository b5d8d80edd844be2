"""The tensors of a dataset are private wherever it holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

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
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_tensors_are_found_at_any_depth(name: str) -> None:
    tensor, other = torch.ones(3, 2), torch.ones(3, 2)
    found = tensors_held_by(WRAPPERS[name](tensor), [tensor, other])
    assert any(one is tensor for one in found)
    assert not any(one is other for one in found)


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


def train_with(data: Any, scaled: Callable[[Tensor], Tensor]) -> int:
    run = loop.private(dataset=data)
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
