"""Places and numbers of records that stand beside something large, or that samples without replacement tell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from steps import classifier, each, train
from torch import Tensor, nn

from discreet import Private
from discreet.core.check import Refused
from discreet.engine.proof.forms.moderate_numbers import with_moderate_numbers

Signs = Callable[[Tensor], Tensor]
UNEQUAL = 1000.0 ** -torch.arange(24.0, dtype=torch.float64)
MANY = 10**6


def column(x: Tensor) -> Tensor:
    return torch.arange(len(x), dtype=torch.float32).unsqueeze(1)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


HIDDEN: dict[str, Signs] = {
    "count, first of many": lambda x: torch.linspace(len(x), 10**9, 3, dtype=torch.float64)[0],
    "count, first of a range": lambda x: torch.arange(len(x), 10**9, 5 * 10**8, dtype=torch.float64)[0],
    "count, beside a product": lambda x: (
        torch.addmm(ones(1, 1), ones(1, len(x)), ones(len(x), 1), beta=1e9).squeeze() - 1e9
    ),
    "place, in a narrow range": lambda x: torch.linspace(10**9, 10**9 + 1000, len(x), dtype=torch.float64) - 10**9,
    "place, beside a product": lambda x: 1e6 * (torch.addmm(column(x), x, torch.eye(6), beta=1e-6) - x)[:, 0],
    "place, beside a whole multiple": lambda x: (
        torch.addmm(column(x).double(), x.double(), torch.eye(6).double(), alpha=MANY) - MANY * x.double()
    )[:, 0],
    "place, in half precision": lambda x: torch.add(column(x).half(), x.half() * 0, alpha=999)[:, 0].float(),
    "place, by a number of NumPy": lambda x: 1e6 * (torch.add(x, column(x), alpha=np.float32(1e-6)) - x)[:, 0],
    "place, by the next number": lambda x: torch.nextafter(x[:, 0] * 0 + 5.5, column(x)[:, 0]) - 5.5,
    "place, by what was drawn before": lambda x: torch.multinomial(UNEQUAL, len(x)),
    "count, by the law of a draw": lambda x: torch.zeros(len(x)).normal_(mean=len(x), std=1e-3),
    "count, by the bounds of a draw": lambda x: (
        torch.randint(low=len(x) * MANY, high=len(x) * (MANY + 1), size=(len(x),)) // MANY
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_refused(name: str) -> None:
    """Each gives a number that changes the sign of losses: leaving one record out moved the sum by many clips."""

    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * (1 - 2 * (HIDDEN[name](x).round() % 2)).float())

    with pytest.raises(Refused, match=r"in which each record stands alone|that depends on the number of records"):
        train(classifier(), body, steps=1, fixed=False)


INNOCENT: dict[str, Signs] = {
    "a small factor": lambda x: torch.addmm(x, x, torch.eye(6), beta=1e-6, alpha=100.0)[:, 0],
    "draws by name": lambda x: torch.normal(mean=0.0, std=1e-3, size=(len(x),)),
    "whole draws by name": lambda x: torch.randint(low=0, high=2000, size=(len(x),)),
    "a number of NumPy": lambda x: torch.add(x, torch.ones(6), alpha=np.float32(1e-6))[:, 0],
    "rows of one number": lambda x: torch.full((len(x),), 1e9),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_numbers_out_of_scale_are_accepted(name: str) -> None:
    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * INNOCENT[name](x))

    assert train(classifier(), body, steps=2, fixed=False).updates == 2


def test_moderate_numbers() -> None:
    assert with_moderate_numbers((1, 2.0, 0.0, float("inf"), True), whole=True) is None
    assert with_moderate_numbers(((5000, -1e-9), {"eps": 1e9}), whole=True) == ((2, -0.875), {"eps": 1.0})
    assert with_moderate_numbers((5000, 1e-9), whole=False) == (5000, 0.75)
