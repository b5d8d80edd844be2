"""`discreet.check`: what it says of models, and that it leaves them alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import Bare
from torch import Tensor, nn

import discreet
from discreet.core.check import Refused


def images() -> Tensor:
    return torch.randn(6, 3, 6, 6)


def mixing() -> nn.Module:
    return Bare(lambda own, x: own.head(x - x.mean()), head=nn.Linear(4, 2))


def test_a_model_that_can_be_trained() -> None:
    found = discreet.check(nn.Linear(4, 2), torch.randn(8, 4), batch=100)
    assert found.accepted
    assert (found.refusals, found.parameters, found.trained, found.records) == ((), 10, 10, 8)
    assert (found.micro_batch, found.batch) == (100, 100)
    assert found.private is not None
    assert found.setup is not None
    assert min(found.private.seconds, found.plain.seconds, found.setup) > 0
    told = repr(found)
    for part in ("Linear\n", "can be trained privately  yes", "times plain SGD", "100 records of a batch of 100"):
        assert part in told


def test_the_refusal_is_the_one_of_training() -> None:
    found = discreet.check(mixing(), torch.randn(8, 4))
    assert not found.accepted
    assert found.private is found.setup is found.micro_batch is None
    assert "moves entries of the others" in found.refusals[0]
    assert "refused" in repr(found)
    assert found.plain.seconds > 0


def test_after_batch_norm_the_check_goes_on() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 2))
    assert ["BatchNorm2d at 1" in refusal for refusal in discreet.check(layers, images()).refusals] == [True]
    both = Bare(lambda own, x: own.norm(own.first(x)) - x.mean(), first=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8))
    first, second = discreet.check(both, images()).refusals
    assert "BatchNorm2d at norm" in first
    assert second.startswith("After discreet.fix: ")


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(128, 2))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, draws = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for one in (model, discreet.fix(copy.deepcopy(model))[0]):
        kept = copy.deepcopy(one.state_dict())
        x = images()
        draws = torch.get_rng_state()
        discreet.check(one, x)
        assert torch.equal(torch.get_rng_state(), draws)
        assert all(torch.equal(value, kept[name]) for name, value in one.state_dict().items())
        assert not one._forward_hooks
        assert not one._forward_pre_hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters())


def test_inputs_and_loss_of_the_user() -> None:
    model: Any = Bare(lambda own, x, *, scale: own.head(x) * scale, head=nn.Linear(4, 3))
    seen: list[Any] = []

    def loss(output: Tensor, inputs: Any) -> Tensor:
        seen.append(inputs)
        return F.cross_entropy(output, inputs["scale"].flatten().long() % 3, reduction="none")

    named = {"x": torch.randn(8, 4), "scale": torch.rand(8, 1)}
    assert discreet.check(model, named, loss=loss).accepted
    assert {tuple(inputs) for inputs in seen} == {("x", "scale")}
    two = Bare(lambda own, x, y: own.head(x + y), head=nn.Linear(4, 3))
    assert discreet.check(two, (torch.randn(8, 4), torch.randn(8, 4))).accepted


def test_losses_that_mix_records() -> None:
    found = discreet.check(nn.Linear(4, 2), torch.randn(8, 4), loss=lambda output, x: output.sum(1) - output.mean())
    assert "mean" in found.refusals[0]


@pytest.mark.parametrize(
    ("model", "inputs", "match"),
    [
        (nn.Linear(4, 2), torch.randn(2, 4), "at least 3 records"),
        (nn.Linear(4, 2), (torch.randn(8, 4), torch.randn(4)), "one row per record"),
        (nn.Linear(4, 2), torch.randn(8, 5), "a model that runs on the given inputs, got RuntimeError"),
        (nn.Linear(4, 2).requires_grad_(False), torch.randn(8, 4), "trainable parameters"),
        (Bare(lambda own, x: own.head(x).mean(), head=nn.Linear(4, 2)), torch.randn(8, 4), "pass loss="),
    ],
)
def test_bad_input(model: nn.Module, inputs: Any, match: str) -> None:
    with pytest.raises(Refused, match=match):
        discreet.check(model, inputs)
