"""Public values that are written into a tensor beside values of the records: they may not tell the places apart.

The attacks were accepted once. Signs by the place turn all later gradients around when one record is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from steps import each, train
from torch import Tensor, nn

from discreet.core.check import Refused

Make = Callable[[Tensor], Tensor]


def signs(x: Tensor) -> Tensor:
    return 1.0 - 2.0 * (torch.arange(len(x)) % 2)


def column_of_new_memory(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[:, 0], made[:, 1] = signs(x), x[:, 0]
    return made[:, 0]


def every_other_row(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[::2, 0], made[1::2, 0], made[:, 1] = 1.0, -1.0, x[:, 0]
    return made[:, 0]


def views_of_zeros(x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 2)
    one, other = made.unbind(1)
    one.copy_(signs(x))
    other.copy_(x[:, 0])
    return made.sum(1)


def views_of_zeros_the_other_way_round(x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 2)
    one, other = made[:, 0], made[:, 1]
    other.copy_(x[:, 0])
    one.copy_(signs(x))
    return made.sum(1)


def rows_that_overlap(x: Tensor) -> Tensor:
    made = torch.empty(2 * len(x)).unfold(0, 2, 1)[: len(x)]
    made.copy_(x[:, :2])
    return made.sum(1)


ATTACKS = (
    *(column_of_new_memory, every_other_row, views_of_zeros, views_of_zeros_the_other_way_round),
    rows_that_overlap,
)


def weighted_by(make: Make) -> Any:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * make(x))

    return body


@pytest.mark.parametrize("make", ATTACKS, ids=lambda make: make.__name__)
def test_writes_by_place_are_refused(make: Make) -> None:
    with pytest.raises(Refused, match="each record stands alone"):
        train(body=weighted_by(make), steps=2)


def constant_column(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[:, 0], made[:, 1] = 1.0, x[:, 0]
    return made.sum(1)


def constant_row(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 3)
    made[:, :2], made[:, 2] = torch.tensor([1.0, 2.0]), x[:, 0]
    return made.sum(1)


def constant_view_of_zeros(x: Tensor) -> Tensor:
    made = torch.zeros(len(x), 2)
    made[:, 1].copy_(x[:, 0])
    made[:, 0].fill_(2.0)
    return made.sum(1)


def drawn_column(x: Tensor) -> Tensor:
    made = torch.empty(len(x), 2)
    made[:, 0], made[:, 1] = torch.rand(len(x)), x[:, 0]
    return made.sum(1)


INNOCENT = constant_column, constant_row, constant_view_of_zeros, drawn_column


@pytest.mark.parametrize("make", INNOCENT, ids=lambda make: make.__name__)
def test_writes_that_are_alike_for_all_records_are_accepted(make: Make) -> None:
    assert train(body=weighted_by(make), steps=2).updates == 2
