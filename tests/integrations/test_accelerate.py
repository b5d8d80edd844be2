"""Accelerate: what `prepare` returns goes into `Private` as it is."""

from __future__ import annotations

from collections.abc import Iterator

import accelerate
import pytest
import torch

import loop
from discreet import Private, Streams


@pytest.fixture
def accelerator() -> Iterator[accelerate.Accelerator]:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("by_hand", [False, True])
def test_same_certificate_and_weights_as_private(accelerator: accelerate.Accelerator, by_hand: bool) -> None:
    net = loop.model()
    own = loop.sgd(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(own, 3, 0.5)
    model, optimizer, scheduler = accelerator.prepare(net, own, schedule)
    private = Private(model, optimizer, loop.plan(), loop.data(), streams=Streams.seeded(7))
    if by_hand:
        while private.release(lambda batch: loop.losses(model, *batch)):
            optimizer.step()
            scheduler.step()
    else:
        for x, y in private:
            if private.step(loop.losses(model, x, y)):
                scheduler.step()
    run = loop.private()
    alone = torch.optim.lr_scheduler.StepLR(run.optimizer, 3, 0.5)
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            alone.step()
    assert private.spent() == run.spent()
    assert torch.allclose(loop.weights(net), loop.weights(run.model), rtol=0, atol=1e-6)
