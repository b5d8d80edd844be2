"""Frozen means frozen: what an optimizer does to coordinates that a step leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from discreet.stages.active import from_indices
from discreet.stages.selection import Frozen
from discreet.stages.update import COORDINATE_WISE, update
from discreet.stages.values import Layout, Mask, Released

LAYOUT = Layout(("w", "b", "c"), ((4, 5), (3,), (2, 2)))
Make = Callable[[Any], torch.optim.Optimizer]


class Halving(torch.optim.Optimizer):
    """Not coordinate-wise by any list: it halves everything, gradient or not."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.5)


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "halving": Halving,
}


def parameters() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in LAYOUT.shapes]


def mask(seed: int, share: float = 0.4) -> Mask:
    torch.manual_seed(seed)
    active = torch.rand(LAYOUT.size) < share
    active[23:] = seed % 2 == 0  # the last parameter is all on or all off
    return from_indices(active.nonzero().flatten(), LAYOUT)


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).clone()


def whole(one: Mask) -> Tensor:
    active = torch.ones(LAYOUT.size)
    one.apply_(LAYOUT.views(active))
    return active.bool()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_coordinates_stay_where_they_are(name: str) -> None:
    own = parameters()
    optimizer = OPTIMIZERS[name](own)
    for step in range(6):
        before, used = flat(own), mask(step)
        update(optimizer, own, Released.on(used, torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
        moved = flat(own) != before
        assert torch.equal(moved, whole(used))
        assert [tuple(p.shape) for p in own] == list(LAYOUT.shapes)
        assert all(p.grad is None for p in own)


@pytest.mark.parametrize("kind", [kind.__name__ for kind in COORDINATE_WISE])
def test_active_coordinates_move_as_if_they_were_alone(kind: str) -> None:
    """Beside a model that holds each coordinate as a parameter of its own, with a gradient only when active."""
    make = getattr(torch.optim, kind)
    own = parameters()
    singles = [torch.nn.Parameter(value.clone()) for value in flat(own)]
    optimizer, reference = make(own, lr=0.1), make(singles, lr=0.1)
    clocked = kind in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")  # their clock belongs to the parameter
    used = [mask(2 if clocked else seed) for seed in range(5)]
    for one in used:
        gradient, active = torch.randn(LAYOUT.size), whole(one)
        update(optimizer, own, Released.on(one, gradient.clone(), LAYOUT, 1.0), Frozen.STILL)
        for single, value, on in zip(singles, gradient, active, strict=True):
            single.grad = value.clone() if on else None
        reference.step()
    assert torch.allclose(flat(own), flat(list(singles)), rtol=1e-5, atol=1e-7)


def test_the_state_of_frozen_coordinates_is_not_touched() -> None:
    own = parameters()
    optimizer = OPTIMIZERS["adam"](own)
    update(optimizer, own, Released(torch.randn(LAYOUT.size), LAYOUT), Frozen.STILL)
    before = [{k: v.clone() for k, v in optimizer.state[p].items()} for p in own]
    used = mask(1)
    update(optimizer, own, Released.on(used, torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    for index, (parameter, old) in enumerate(zip(own, before, strict=True)):
        active = used.of(index, parameter)
        assert active is not None
        for name, value in optimizer.state[parameter].items():
            if value.shape == parameter.shape:
                assert torch.equal(value[~active], old[name][~active])


def test_coasting_is_the_optimizer_with_a_gradient_of_zero() -> None:
    own, other = parameters(), parameters()
    one, two = OPTIMIZERS["sgd"](own), OPTIMIZERS["sgd"](other)
    moved_while_frozen = False
    for step in range(4):
        gradient, used, before = torch.randn(LAYOUT.size), mask(step), flat(own)
        update(one, own, Released.on(used, gradient.clone(), LAYOUT, 1.0), Frozen.COASTING)
        used.apply_(LAYOUT.views(gradient))
        for parameter, view in zip(other, LAYOUT.views(gradient), strict=True):
            parameter.grad = view
        two.step()
        assert torch.equal(flat(own), flat(other))
        moved_while_frozen |= bool((flat(own) != before)[~whole(used)].any())
    assert moved_while_frozen


def test_an_error_leaves_whole_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    own = parameters()
    optimizer = OPTIMIZERS["sgd"](own)
    update(optimizer, own, Released(torch.randn(LAYOUT.size), LAYOUT), Frozen.STILL)
    before, buffers = flat(own), flat([optimizer.state[p]["momentum_buffer"] for p in own])

    def fail() -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(optimizer, "step", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        update(optimizer, own, Released.on(mask(1), torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    assert torch.equal(flat(own), before)
    assert torch.equal(flat([optimizer.state[p]["momentum_buffer"] for p in own]), buffers)
    assert all(p.grad is None for p in own)
