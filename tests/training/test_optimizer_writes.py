"""An optimizer moves the trained parameters alone: what its hooks write elsewhere may come from records."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import discreet
import loop
from discreet.core.check import Refused

OTHERS = "(moves the trained parameters alone|as private.step left them), got centre"


class Centred(nn.Module):
    """A model with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = loop.model()
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - self.centre)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("is_before", [False, True])
def test_a_hook_that_follows_the_mean_of_the_batches(by_hand: bool, is_before: bool) -> None:
    """As in self-distillation: leaving one record out would move the later gradients of all others."""
    net, seen = Centred(), list[Tensor]()
    optimizer = loop.sgd(net.parameters())
    register = optimizer.register_step_pre_hook if is_before else optimizer.register_step_post_hook

    def write(*_: Any) -> None:
        net.centre.mul_(0.9).add_(seen[-1].mean(0), alpha=0.1)

    register(write)
    run = loop.private(net, optimizer=lambda _: optimizer)

    def losses(batch: Any) -> Tensor:
        seen.append(batch[0].detach())
        return loop.losses(net, *batch)

    def train() -> None:
        for batch in () if by_hand else run:
            run.step(losses(batch))
        while run.release(losses):
            optimizer.step()

    with pytest.raises(Refused, match=OTHERS):
        train()


def test_a_hook_that_follows_the_parameters_is_declared() -> None:
    net = Centred()
    optimizer = loop.sgd(net.parameters())
    optimizer.register_step_post_hook(lambda *_: net.centre.data.fill_(float(net.inner[0].bias[0])))
    assert loop.train(loop.private(discreet.public(net), optimizer=lambda _: optimizer)) == loop.STEPS


def test_a_frozen_parameter_does_not_move_by_a_gradient_that_was_left() -> None:
    """An optimizer of all parameters, and a look at the gradient of a frozen one, on records."""
    net = loop.model()
    frozen = next(net.parameters()).requires_grad_(False)
    before = frozen.clone()
    run = loop.private(net, optimizer=lambda _: torch.optim.SGD(net.parameters(), lr=0.5))
    for x, y in run:
        run.step(loop.losses(net, x, y))
        frozen.requires_grad_(True)
        loop.losses(net, x, y).sum().backward(inputs=[frozen])
        frozen.requires_grad_(False)
    assert run.updates == loop.STEPS
    assert torch.equal(frozen, before)
