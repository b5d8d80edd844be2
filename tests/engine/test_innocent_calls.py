"""Calls that were refused by mistake, each beside calls that look like it and mix records or tell places apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import Bare
from steps import classifier, train
from torch import Tensor, nn
from torch.distributions import Categorical

from discreet.core.check import Refused
from discreet.engine.record_watch import RecordWatch
from discreet.engine.trace.capture import RecordAxis

Make = Callable[[Any, Tensor], Tensor]
WEIGHTS = torch.tensor([0.2, 0.3, 0.5])


def column_added_in_place(own: Any, x: Tensor) -> Tensor:
    hidden = x * 2
    hidden[:, :2] += 1
    return hidden


def new_memory_filled(own: Any, x: Tensor) -> Tensor:
    return x + x.data.new(x.size()).normal_() + x.data.new(len(x), 6).fill_(1.0) + x.data.abs()


def new_values(own: Any, x: Tensor) -> Tensor:
    return x * x.new([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def samples_of_public_weights(own: Any, x: Tensor) -> Tensor:
    return x + torch.multinomial(torch.ones(5), len(x) * 2, True).view(len(x), 2).float().sum(1, keepdim=True)


def samples_of_a_distribution(own: Any, x: Tensor) -> Tensor:
    drawn = Categorical(WEIGHTS).sample((len(x), 1)) + Categorical(WEIGHTS).sample((len(x),)).unsqueeze(1)
    return x + drawn + Categorical(logits=x).sample().unsqueeze(1)


def moved(x: Tensor, theta: Tensor) -> Tensor:
    image = x.view(len(x), 1, 2, 3)
    grid = F.affine_grid(theta, [len(x), 1, 2, 3], align_corners=False)
    return F.grid_sample(image, grid, align_corners=False).flatten(1)


def random_moves(own: Any, x: Tensor) -> Tensor:
    return moved(x, torch.eye(2, 3).repeat(len(x), 1, 1) + 0.1 * torch.randn(len(x), 2, 3))


@pytest.mark.parametrize(
    "make",
    [
        *(column_added_in_place, new_memory_filled, new_values, samples_of_public_weights, samples_of_a_distribution),
        random_moves,
    ],
)
def test_innocent_calls_are_accepted(make: Make) -> None:
    assert train(classifier(make), steps=3, fixed=False).updates == 3


def memory_left_as_it_is(own: Any, x: Tensor) -> Tensor:
    return x + x.data.new(x.size()) * 0


def memory_of_another(own: Any, x: Tensor) -> Tensor:
    return x + x.new((x.detach() * 2).flip(0))  # type: ignore[call-overload]


def each_number_once(own: Any, x: Tensor) -> Tensor:
    return x + torch.multinomial(torch.ones(len(x)), len(x)).unsqueeze(1)


def samples_read_in_two_ways(own: Any, x: Tensor) -> Tensor:
    drawn = torch.multinomial(WEIGHTS, len(x) * 6, True).float()
    return x * drawn.view(len(x), 6) + x * drawn.view(6, len(x)).t()


def moves_by_place(own: Any, x: Tensor) -> Tensor:
    return moved(x, torch.arange(len(x)).view(-1, 1, 1) * torch.ones(len(x), 2, 3))


def weights_by_place(own: Any, x: Tensor) -> Tensor:
    return x * x.new_ones(len(x), 1).cumsum(0)


def weights_by_number(own: Any, x: Tensor) -> Tensor:
    return x * x.new_full((6,), 1.0 / len(x))


@pytest.mark.parametrize(
    "make",
    [
        *(memory_left_as_it_is, memory_of_another, each_number_once, samples_read_in_two_ways, moves_by_place),
        *(weights_by_place, weights_by_number),
    ],
)
def test_calls_that_look_alike_are_refused(make: Make) -> None:
    with pytest.raises(Refused):
        assert train(classifier(make), steps=3, fixed=False).updates == 3


def with_ones(own: Any, x: Tensor) -> Tensor:
    return x * x.new_ones(3) + (x @ x.new_ones(3, 2)).sum(1, keepdim=True)


@pytest.mark.parametrize("make", [with_ones, lambda own, x: x * x.new_full((1, 3), 2.0).cumsum(1)])
def test_sizes_that_happen_to_equal_the_number_of_records(make: Make) -> None:
    with closing(RecordWatch(nn.Linear(3, 3))) as watch:
        for records in (5, 3, 6, 3):
            x = torch.randn(records, 3)
            watch.open([(x, RecordAxis(0))], records)
            watch.finish(make(None, x).sum(1))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dropout_of_channels_that_are_records(axis: int) -> None:
    """F.dropout1d draws along two axes of three: a record along the third shares its numbers with others."""
    with closing(RecordWatch(nn.Linear(3, 3))) as watch:
        for records in (7, 5):
            x = torch.randn(records, 2, 3)
            watch.open([(x, RecordAxis(0))], records)
            turned = x.movedim(0, axis)
            watch.finish(F.dropout1d(turned, 0.5).movedim(axis, 0).flatten(1).sum(1))
            watch.close()
        assert (watch.generators.shared_at is None) == (axis < 2)


def test_dropout_of_channels_of_one_record() -> None:
    """Without an axis for the batch, F.dropout1d draws along the first axis alone."""
    with closing(RecordWatch(nn.Linear(3, 3))) as watch:
        x = torch.randn(7, 4)
        watch.open([(x, RecordAxis(0))], 7)
        watch.finish(F.dropout1d(x.t(), 0.5).t().sum(1))
        assert watch.generators.shared_at is not None


BY_NAME: dict[str, Callable[[Tensor, nn.Linear], Tensor]] = {
    "matmul": lambda x, layer: torch.matmul(input=x, other=layer.weight.t()),
    "mm": lambda x, layer: torch.mm(x, mat2=layer.weight.t()),
    "addmm": lambda x, layer: torch.addmm(input=layer.bias, mat1=x, mat2=layer.weight.t()),
    "add": lambda x, layer: torch.add(input=layer(x), other=layer.bias),
    "mul": lambda x, layer: torch.mul(layer(x), other=layer.bias),
}


@pytest.mark.parametrize("call", BY_NAME.values(), ids=BY_NAME)
def test_parameters_by_name(call: Callable[[Tensor, nn.Linear], Tensor]) -> None:
    """Rules for gradients have names of their own for what torch calls `other` or `mat2`."""
    model = Bare(lambda own, x: call(x, own.layer), layer=nn.Linear(6, 3))
    assert train(model).updates == 4
