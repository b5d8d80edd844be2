"""Public tensors with a row for each record: what differs only in large batches is refused in small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, train
from torch import Tensor, nn

from discreet.core.check import Refused

TABLE = torch.zeros(100)
TABLE[40:] = 1.0
Run = Callable[[Any, Tensor], Tensor]


def beside(x: Tensor, column: Tensor) -> Tensor:
    """The last column of the inputs replaced."""
    return torch.cat([x[:, :5], column.reshape(-1, 1).float()], 1)


class CountedBackward(torch.autograd.Function):
    """Divides gradients by the number of records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / len(gradients[0])


def _far_away(x: Tensor) -> Tensor:
    """Each record takes what lies 90 records before and after it."""
    return F.conv1d(x.t()[:, None], torch.ones(1, 1, 3), padding=90, dilation=90)[:, 0].t()


def _written_to_one_address(x: Tensor) -> Tensor:
    signs = torch.zeros(1).expand(len(x))
    signs[torch.arange(len(x))] = x[:, 0].sign()
    return x * signs[:, None]


# Batches have 12 records: none of these gives two records different values.
ATTACKS: dict[str, Run] = {
    "places in a column": lambda own, x: beside(x, torch.arange(len(x)) >= 20),
    "a slice of a table": lambda own, x: beside(x, TABLE[: len(x)]),
    "a slice of a table, times noise": lambda own, x: beside(x, TABLE[: len(x)] + 1e-9 * torch.rand(len(x))),
    "weights from a table": lambda own, x: x * TABLE[: len(x), None],
    "rows of a matrix": lambda own, x: torch.stack([x, (torch.eye(len(x)).argmax(1) >= 20)[:, None] * x], 2).sum(2),
    "the end of a table": lambda own, x: beside(x, TABLE[len(x) : 2 * len(x)]),
    "softmax below a threshold": lambda own, x: x * (torch.ones(len(x)).softmax(0) < 0.05)[:, None],
    "the count above a threshold": lambda own, x: x * (torch.full((len(x), 1), len(x)) >= 20),
    "the sum above a threshold": lambda own, x: x * (torch.ones(len(x)).sum() >= 20),
    "a law by the count": lambda own, x: x * torch.randint(0, len(x), (len(x), 1)),
    "noise with a deviation by place": lambda own, x: torch.normal(x, 1.0 + TABLE[: len(x), None].expand_as(x)),
    "random rows with a sum of one": lambda own, x: x * torch.rand(len(x), 1).softmax(0),
    "sorted random rows": lambda own, x: x * torch.rand(len(x), 1).sort(0).values,
    "the largest of random rows": lambda own, x: x * (torch.rand(len(x)).max() > 0.999),
    "the product of equal rows": lambda own, x: x * (torch.full((len(x),), 0.99).prod() < 0.8),
    "a permutation": lambda own, x: x * (torch.randperm(len(x))[:, None] >= 20),
    "a column chosen by the count": lambda own, x: F.pad(x, (0, 100))[:, len(x)][:, None] * x,
    "a search for the count": lambda own, x: x * torch.searchsorted(torch.arange(9.0), len(x)),
    "a comparison with the count": lambda own, x: x * torch.greater(torch.ones(1), len(x)),
    "a threshold by the count": lambda own, x: F.threshold(x, len(x), 0.0),
    "a count from NumPy": lambda own, x: x * torch.full((), np.int64(len(x))),
    "a draw around the count": lambda own, x: x * torch.zeros(len(x), 1).normal_(len(x), 1e-9),
    "a matrix of ones": lambda own, x: x * torch.ones(len(x), len(x)).sum(1, keepdim=True),
    "a contraction over the count": lambda own, x: x * torch.einsum("nd,k->nd", torch.ones_like(x), torch.ones(len(x))),
    "entries that are true": lambda own, x: x * torch.ones(len(x), dtype=torch.bool).sum(),
    "later rows": lambda own, x: x * torch.ones(len(x), 8).tril(-6).sum(1, keepdim=True),
    "a sign by the count": lambda own, x: x * torch.copysign(torch.ones(()), -0.0 if len(x) % 2 else 0.0),
    "one of two outputs": lambda own, x: torch.stack([x, -x], 1).unbind(1)[len(x) % 2],
    "a convolution over records": lambda own, x: F.conv1d(x.t()[:, None], torch.ones(1, 1, 3), padding=90, dilation=90)[
        :, 0
    ].t(),
    "written to one address": lambda own, x: _written_to_one_address(x),
    "by address": lambda own, x: torch.as_strided_copy(x.t().contiguous().t(), (len(x), 6), (6, 1)),
    "every second of a copy": lambda own, x: torch.cat([x, x])[torch.arange(0, 2 * len(x), step=2)],
    "a fill by the count": lambda own, x: x * x.new_full((len(x), 1), len(x)),
    "gradients of other rows": lambda own, x: x + _rare(x) * own.head.weight[0].expand(len(x), 6).flip(0),
    "gradients of rows before": lambda own, x: x + _rare(x) * (torch.zeros_like(x) + own.head.weight[0]).roll(1, 0),
    "gradients of rows written": lambda own, x: x + _rare(x) * torch.zeros(len(x), 6).add_(own.head.weight[0]).flip(0),
    "gradients of two rows": lambda own, x: (
        x + _rare(x) * F.embedding(torch.zeros(2 * len(x), dtype=torch.long), own.head.weight).view(2, len(x), 6).sum(0)
    ),
    "gradients by the count": lambda own, x: CountedBackward.apply(own.head.bias.sum() * x),
}


def _rare(x: Tensor) -> Tensor:
    """Zero for all inputs of a self-check."""
    return F.relu(x.mean(1, keepdim=True) - 1000)


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors")
@pytest.mark.parametrize("run", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed size", "poisson"])
def test_rows_that_depend_on_the_place_or_the_count_are_refused(run: Run, fixed: bool) -> None:
    steps: list[bool] = []

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        steps.append(private.step(each(model(x), y)))

    with pytest.raises(Refused):
        train(classifier(run), body, steps=1, fixed=fixed)
    assert not any(steps)


def test_a_batch_of_one_record_shows_how_many_there_were() -> None:
    """Two equal rows in every batch but those of one record."""
    with pytest.raises(Refused, match="number of records"):
        train(classifier(lambda own, x: x * torch.ones(1).expand(len(x))[:2].sum()), micro_batch=2, fixed=False)


class Token(nn.Module):
    """A class token, a learned initial state, random depth and a position table, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.start = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(2, 1, 6))
        self.cell, self.head = nn.GRU(6, 6, 2, batch_first=True), nn.Linear(6, 3)
        self.register_buffer("table", torch.randn(7, 6))

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        h = torch.cat([self.token.expand(n, -1, -1), x.unsqueeze(1) * torch.ones(n, 1, 1)], 1)
        ids = torch.arange(h.shape[1]).unsqueeze(0).repeat(n, 1)
        h = h + self.table[ids] * torch.bernoulli(torch.full((n, 1, 1), 0.5))
        h, _ = self.cell(h, self.start.expand(2, n, 6).contiguous())
        h = h + self.table[:1].expand(n, 6)[:1]
        steps = torch.randint(0, 7, (n,))
        return self.head(h[:, -1] + torch.zeros(n, 6) + F.embedding(steps, self.table))


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed size", "poisson"])
@pytest.mark.parametrize("micro_batch", [2, 3, 6, 7, 100])
def test_rows_that_people_write_are_accepted(fixed: bool, micro_batch: int) -> None:
    """Also where the number of records equals another size of the model: 2 layers, 3 classes, 6 features, 7 rows."""
    torch.manual_seed(0)
    assert train(Token(), steps=4, fixed=fixed, micro_batch=micro_batch).updates == 4
