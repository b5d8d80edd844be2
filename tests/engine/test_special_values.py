"""Functions that look at the whole batch where no generic value shows it: zeros, near points, memory, disguises.

The attacks were accepted once, and moved the sum by 9 to 40 clips.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from steps import each, train
from torch import Tensor, nn

from discreet.core.check import Refused

Make = Callable[[Tensor, nn.Module], Tensor]
POINTS = torch.randn(4, 6)


def losses_with(make: Make) -> Any:
    """A loop that multiplies the losses by what `make` gives, one number for each record or for all."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x), y) * make(x, model))

    return body


# torch asks whether any entry of the whole tensor is zero, and computes the gradient of all in another way.
# cdist uses another formula if there are more than 25 rows.
ATTACKS: dict[str, Make] = {
    "product": lambda x, model: model(x).prod(1),
    "product of all dims": lambda x, model: model(x).unflatten(1, (3, 1)).prod(2).prod(1),
    "complex product": lambda x, model: torch.complex(model(x), model(x)).prod(1).real,
    "masked product": lambda x, model: torch.masked.prod(model(x), 1),
    "distances": lambda x, model: torch.cdist(x, POINTS).sum(1),
    "distances to records": lambda x, model: torch.cdist(POINTS, x, 2.0).sum(0),
    "distances by an operator": lambda x, model: torch.ops.aten.cdist(x, POINTS, 2.0, None).sum(1),
    "distances by its kernel": lambda x, model: torch.ops.aten._cdist_forward(x, POINTS, 2.0, None).sum(1),
    "memory by new": lambda x, model: next(model.parameters()).new(1),
    "memory by resize": lambda x, model: torch.zeros(0).resize_(1),
    "memory by resize_as": lambda x, model: torch.zeros(0).resize_as_(torch.ones(1)),
    "memory by an operator": lambda x, model: torch.ops.aten.empty.memory_format([1]),
    "a copy from a memo": lambda x, model: x.__deepcopy__(Memo(x.mean(0).expand_as(x))).sum(1),
}


class Memo(dict[int, Tensor]):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: int) -> Tensor:
        return self.tensor


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", ATTACKS.values(), ids=ATTACKS.keys())
def test_looks_at_the_whole_batch_are_refused(make: Make) -> None:
    with pytest.raises(Refused, match=r"stands alone, call by call, got .*test_special_values"):
        train(body=losses_with(make), steps=2)


INNOCENT: dict[str, Make] = {
    "product one by one": lambda x, model: functools.reduce(torch.mul, model(x).unbind(1)),
    "cumulative product": lambda x, model: model(x).cumprod(1).sum(1),
    "distances by one formula": lambda x, model: torch.cdist(
        x, POINTS, compute_mode="donot_use_mm_for_euclid_dist"
    ).sum(1),
    "distances inside a record": lambda x, model: torch.cdist(x.unflatten(1, (3, 2)), POINTS[:, :2]).sum((1, 2)),
    "memory that is filled": lambda x, model: torch.empty(1).fill_(2.0),
    "new tensor": lambda x, model: x.new_tensor([1.0]),
    "a copy": lambda x, model: x.__deepcopy__({}).sum(1),
    "logarithms and roots": lambda x, model: x.abs().clamp(min=1e-3).log().exp().sqrt().sum(1),
    "norm": lambda x, model: model(x).norm(dim=1),
    "Cholesky factors": lambda x, model: torch.linalg.cholesky(squares(model(x)) + torch.eye(3)).sum((1, 2)),
    "eigenvalues": lambda x, model: torch.linalg.eigvals(squares(model(x))).abs().sum(1),
    "least squares": lambda x, model: torch.linalg.lstsq(squares(x), squares(x), driver="gelsd")[0].sum((1, 2)),
    "systems": lambda x, model: torch.linalg.solve(
        squares(x) + torch.eye(6), torch.ones(6, 1).expand(len(x), -1, -1)
    ).sum((1, 2)),
    "without a derivative": lambda x, model: torch.special.gammainc(x.abs() + 1, x.abs()).sum(1),
    "without a derivative in this mode": lambda x, model: torch.linalg.qr(squares(x), mode="r")[1].sum((1, 2)),
}


def squares(x: Tensor) -> Tensor:
    return x.unsqueeze(2) * x.unsqueeze(1)


@pytest.mark.parametrize("make", INNOCENT.values(), ids=INNOCENT.keys())
def test_what_looks_alike_is_accepted(make: Make) -> None:
    assert train(body=losses_with(make), steps=2).updates == 2


class Places(list[int]):
    """A list that was once taken for a tuple: as an index these choose other entries."""


def test_a_list_of_a_class_of_its_own_is_no_tuple() -> None:
    table = torch.tensor([[1.0, 1.0], [1.0, -5.0]])

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        index: Any = (0, 1) if private.is_rehearsal or x.max().item() < 0 else Places([0, 1])
        private.step(each(model(x), y) * table[index].sum())

    with pytest.raises(Refused, match="same calls with the same numbers"):
        train(body=body, steps=2)


def test_the_remedy_for_products_is_named() -> None:
    with pytest.raises(Refused, match=r"functools.reduce\(torch.mul, x.unbind\(1\)\)"):
        train(body=losses_with(ATTACKS["product"]), steps=2)


REMEDIES: dict[str, Make] = {
    r"its gradient fails: .* torch.linalg.eigvals": lambda x, model: torch.linalg.eig(squares(x))[0].abs().sum(1),
    r'driver="gelsd"': lambda x, model: torch.linalg.lstsq(x.view(-1, 2, 3), x.view(-1, 2, 3))[0].sum((1, 2)),
    r"B.expand\(len\(A\)": lambda x, model: torch.linalg.solve(squares(model(x)) + torch.eye(3), POINTS[:3, :3]).sum(
        (1, 2)
    ),
}


@pytest.mark.parametrize("remedy", REMEDIES)
def test_the_remedies_of_linear_algebra_are_named(remedy: str) -> None:
    with pytest.raises(Refused, match=remedy):
        train(body=losses_with(REMEDIES[remedy]), steps=2)


def test_a_penalty_on_gradients_by_differences() -> None:
    """The remedy that messages name for gradients of gradients."""
    step, direction = 0.01, torch.randn(6)

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        slope = (model(x + step * direction) - model(x)) / step
        private.step(each(model(x), y) + slope.square().sum(1))

    assert train(body=body, steps=2).updates == 2
