"""Places and numbers of records that a call tells on few values alone: on equal ones, on fractions, on conditions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, train
from torch import Tensor, nn

from discreet import Private
from discreet.core.check import Refused

Told = Callable[[Tensor], Tensor]
IS_EVEN = torch.arange(200) % 2 == 0


def zeros(x: Tensor) -> Tensor:
    return x[:, 0].detach() * 0


def ones(x: Tensor) -> Tensor:
    return torch.ones(len(x))


def column(x: Tensor) -> Tensor:
    return torch.arange(len(x)) * 1


def is_true(x: Tensor) -> Tensor:
    return ones(x).bool()


HIDDEN: dict[str, Told] = {
    "count, by a sum that drops fractions": lambda x: ones(x).sum(dtype=torch.int64),
    "place, by a sum that drops fractions": lambda x: ones(x).cumsum(0, dtype=torch.int64),
    "count, by a product that drops fractions": lambda x: (3 * ones(x)).prod(dtype=torch.int64),
    "count, of what lies in a band": lambda x: torch.histc(5000 * ones(x), 1, 4000, 6000),
    "count, of what lies in a narrow band": lambda x: torch.histc(1.5 * ones(x), 1, 1.49, 1.51),
    "count, of what is smaller": lambda x: torch.bucketize(torch.tensor(2.0), ones(x)),
    "count, by a table of conditions": lambda x: IS_EVEN[len(x)].float(),
    "place, by a table of conditions": lambda x: IS_EVEN[: len(x)].float(),
    "count, by a sum that is too large": lambda x: (2e37 * ones(x)).mean().isinf(),
    "count, by a sum of differences": lambda x: F.l1_loss(2e37 * ones(x), 0 * ones(x)).isinf(),
    "count, by a sum of squares": lambda x: F.mse_loss(4e18 * ones(x), 0 * ones(x)).isinf(),
    "count, by the last digit of a mean": lambda x: 1e9 * ((0.1 * ones(x)).mean() - 0.1),
    "count, by a formula for many rows": lambda x: torch.cdist(1e4 * ones(x)[:, None], torch.ones(1, 1))[:, 0],
    "place, by equality": lambda x: zeros(x) == column(x) - 3.0,
    "place, by equality of whole numbers": lambda x: zeros(x).long() == column(x) - 3,
    "place, by nearly equal": lambda x: torch.isclose(zeros(x), column(x) - 3.0),
    "place, where a record is 0": lambda x: torch.heaviside(zeros(x), column(x).float()),
    "place, unless a record is true": lambda x: torch.logical_or(zeros(x), column(x) - 3.0),
    "place, if a record is true": lambda x: torch.logical_and(zeros(x) + 1, column(x) - 3.0),
    "place, by bits": lambda x: torch.bitwise_right_shift(zeros(x).long() + 4096, column(x)) % 4096,
    "place, by a mask that leaves nothing out": lambda x: zeros(x).masked_scatter(is_true(x), column(x).float()),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_refused(name: str) -> None:
    """Each gives numbers that change losses: leaving one record out moved the sum by many clips."""

    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * (1 - 2 * (HIDDEN[name](x) % 2)).float())

    with pytest.raises(Refused, match=r"in which each record stands alone|that depends on the number of records"):
        train(classifier(), body, steps=1, fixed=False)


INNOCENT: dict[str, Told] = {
    "the largest of equal rows": lambda x: ones(x).amax(),
    "whether all are true": lambda x: is_true(x).all(),
    "equality with equal rows": lambda x: zeros(x) == ones(x),
    "equality with a number of each record": lambda x: x.round() == torch.arange(6.0),
    "bits of each record": lambda x: torch.bitwise_right_shift(zeros(x).long() + 4096, ones(x).long()),
    "a table of conditions": lambda x: IS_EVEN[(x[:, 0].abs() * 10).long()],
    "a function without a gradient": lambda x: (x // 0.5).sum(1) + torch.heaviside(x, torch.ones(6)).sum(1),
    "whole numbers of equal rows": lambda x: (ones(x) * 1.5).to(torch.int64),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_calls_that_look_alike_are_accepted(name: str) -> None:
    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        told = INNOCENT[name](x).float()
        private.step(each(model(x), y) * (1 + (told if told.dim() < 2 else told.sum(1))))

    assert train(classifier(), body, steps=2, fixed=False).updates == 2
