"""Gradients that a function of the user's own hands to tensors: their records must lie where its results have them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from steps import each, train
from torch import Tensor, nn

from discreet.core.check import Refused

STEPS, UNITS = 2, 3  # positions of a record, and what each of them has


class InAnotherOrder(torch.autograd.Function):
    """Rows by position, and their gradients left in that order: one record's go to another."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.view(-1, STEPS, UNITS).transpose(0, 1).reshape(-1, UNITS)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clone()


class BackInOrder(InAnotherOrder):
    """The same, with gradients in the order of the input."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].view(STEPS, -1, UNITS).transpose(0, 1).reshape(-1, UNITS)


class ToBoth(torch.autograd.Function):
    """Its result shows nothing of the second tensor, which gets a gradient all the same."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        return one * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0] * 100


class SumOverBatch(torch.autograd.Function):
    """Written in place, with a gradient that depends on all records."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        rows.mul_(1.0)
        ctx.mark_dirty(rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * gradients[0].sum(0)


class Repeated(torch.autograd.Function):
    """Autograd sums its gradient over the axis in front of the records."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows[None].expand(4, -1, -1).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def reordered(function: Any) -> Any:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        by_position = function.apply(model(x).view(-1, UNITS)).view(STEPS, -1, UNITS)
        private.step(each(by_position.sum(0), y))

    return body


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, STEPS * UNITS)


def test_gradients_in_another_order() -> None:
    """Rows of one record side by side, and of one position side by side, are of one size: a difference of 3 clips."""
    with pytest.raises(Refused, match="backward pass of InAnotherOrder: the gradient of one record depends on others"):
        train(wide(), reordered(InAnotherOrder))
    assert train(wide(), reordered(BackInOrder)).progress.step == 4


def to_mixed(*, detached: bool) -> Any:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        other = (outputs.detach() if detached else outputs).flip(0)
        private.step(each(ToBoth.apply(outputs, other), y))

    return body


def test_a_gradient_to_a_tensor_that_mixes_records() -> None:
    """No value of the mixed tensor reaches the losses, but gradients go back through it: 5 clips."""
    with pytest.raises(Refused, match="backward pass of ToBoth"):
        train(body=to_mixed(detached=False))
    assert train(body=to_mixed(detached=True)).progress.step == 4


def test_a_function_that_writes_to_a_view() -> None:
    """Autograd hides its node behind that of the whole tensor."""

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x) * 1.0
        SumOverBatch.apply(outputs[:, :2])
        private.step(each(outputs, y))

    with pytest.raises(Refused, match=r"writes to a view of another tensor, at .*SumOverBatch.apply\(outputs"):
        train(body=body)


def test_gradients_that_are_summed_in_front_of_the_records() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(Repeated.apply(model(x)).sum(0), y))

    assert train(body=body).progress.step == 4


def test_hooks_that_are_set_as_an_attribute() -> None:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x) * 1.0
        outputs._backward_hooks = OrderedDict({1: lambda gradient: gradient * gradient.sum(0)})
        private.step(each(outputs, y))

    with pytest.raises(Refused, match="a hook changes gradients out of sight"):
        train(body=body)
