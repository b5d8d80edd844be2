"""A gradient that somebody left on a parameter, exact and unbounded, never reaches the optimizer."""

from __future__ import annotations

import pytest
import torch

from discreet.engine.layout import Layout, Mask
from discreet.stages.selection import Frozen
from discreet.stages.update import update
from discreet.stages.values import Released


@pytest.mark.parametrize("frozen", list(Frozen))
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.ASGD])
def test_leftovers_are_gone_before_the_step(kind: type[torch.optim.Optimizer], masked: bool, frozen: Frozen) -> None:
    parameters = [torch.zeros(3, requires_grad=True), torch.zeros(2, requires_grad=True)]
    layout = Layout(("a", "b"), ((3,), (2,)))
    mask = Mask((True, False)) if masked else None
    optimizer = kind(parameters, lr=1.0)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e6)
    released = Released(torch.zeros(3 if masked else 5), layout, mask)
    update(optimizer, parameters, released, frozen)
    for parameter in parameters:
        assert not bool(parameter.any())
        assert parameter.grad is None


@pytest.mark.parametrize("frozen", list(Frozen))
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.ASGD])
def test_leftovers_on_parameters_that_are_not_trained(
    kind: type[torch.optim.Optimizer], masked: bool, frozen: Frozen
) -> None:
    trained, other = [torch.zeros(3, requires_grad=True), torch.zeros(2, requires_grad=True)], torch.zeros(4)
    optimizer = kind([*trained, other], lr=1.0)
    other.grad = torch.full_like(other, 1e6)
    mask = Mask((True, False)) if masked else None
    released = Released(torch.ones(3 if masked else 5), Layout(("a", "b"), ((3,), (2,))), mask)
    update(optimizer, trained, released, frozen)
    assert bool(trained[0].all())
    assert not bool(other.any())
