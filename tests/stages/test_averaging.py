"""The average of released iterates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from discreet.core.check import Refused
from discreet.training.averaging import Average


def moved(model: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def test_the_average_is_the_recursion_with_the_start_divided_out() -> None:
    model, decay = nn.Linear(3, 2), 0.8
    average = Average(model, decay)
    total, weight = torch.zeros_like(model.weight), 0.0
    for step in range(5):
        moved(model, 1.0 + step)
        average.update(model)
        total = decay * total + (1 - decay) * model.weight.detach()
        weight = decay * weight + (1 - decay)
    own = model.weight.detach().clone()
    with average.applied_to(model):
        torch.testing.assert_close(model.weight.detach(), total / weight)
    torch.testing.assert_close(model.weight.detach(), own, rtol=0, atol=0)


def test_the_average_of_equal_iterates_is_the_iterate() -> None:
    model = nn.Linear(3, 2)
    average, own = Average(model, 0.99), model.weight.detach().clone()
    average.update(model)
    with average.applied_to(model):
        torch.testing.assert_close(model.weight.detach(), own)


def test_before_the_first_update_the_model_stays() -> None:
    model = nn.Linear(3, 2)
    own = model.weight.detach().clone()
    with Average(model, 0.9).applied_to(model):
        assert torch.equal(model.weight, own)


def test_an_error_inside_puts_the_own_weights_back() -> None:
    model = nn.Linear(3, 2)
    average = Average(model, 0.9)
    average.update(model)
    moved(model, 1.0)
    own = model.weight.detach().clone()
    with pytest.raises(KeyError), average.applied_to(model):
        raise KeyError
    assert torch.equal(model.weight, own)


def test_frozen_parameters_are_left_alone() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    average = Average(model, 0.9)
    average.update(model)
    assert set(average.state_dict()["sums"]) == {"weight"}


def test_state_survives_and_is_a_copy() -> None:
    model = nn.Linear(3, 2)
    first, second = Average(model, 0.9), Average(model, 0.9)
    first.update(model)
    second.load_state_dict(first.state_dict())
    moved(model, 1.0)
    first.update(model)
    own = {name: value.clone() for name, value in second.state_dict()["sums"].items()}
    second.load_state_dict(second.state_dict())
    assert second.state_dict()["updates"] == 1
    assert all(torch.equal(own[name], value) for name, value in second.state_dict()["sums"].items())


def test_another_decay_or_model_is_refused() -> None:
    state = Average(nn.Linear(3, 2), 0.9).state_dict()
    with pytest.raises(Refused, match="with this decay"):
        Average(nn.Linear(3, 2), 0.8).load_state_dict(state)
    with pytest.raises(Refused, match="an average of this model"):
        Average(nn.Linear(3, 2, bias=False), 0.9).load_state_dict(state)


@pytest.mark.parametrize("decay", [0, 1, -0.1, 1.1, float("nan")])
def test_decays_lie_inside_the_unit_interval(decay: float) -> None:
    with pytest.raises(Refused):
        Average(nn.Linear(1, 1), decay)
