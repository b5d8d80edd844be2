"""Frozen means frozen: what an optimizer does to coordinates that a step leaves out."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from discreet.engine.active import from_indices
from discreet.engine.layout import Layout, Mask
from discreet.stages import update as module
from discreet.stages.selection import Frozen
from discreet.stages.update import COORDINATE_WISE, unpack, update
from discreet.stages.values import Released

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
    before = state_of(optimizer)
    used = mask(1)
    update(optimizer, own, Released.on(used, torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    seen = 0
    for index, (parameter, old, new) in enumerate(zip(own, before, state_of(optimizer), strict=True)):
        active = used.of(index, parameter)
        assert active is not None
        for name, value in new.items():
            if value.shape == parameter.shape:
                assert torch.equal(value[~active], old[name][~active])
                assert not active.any() or not torch.equal(value[active], old[name][active])
                seen += 1
    assert seen == 3 * len(own)  # Adam with amsgrad keeps three


# The packed state ------------------------------------------------------------------------------------------


def state_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """The state of each parameter, as the optimizer tells it to anybody."""
    return [
        {name: value.clone() for name, value in state.items()}
        for _, state in sorted(optimizer.state_dict()["state"].items())
    ]


def same(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> bool:
    return [state.keys() for state in one] == [state.keys() for state in other] and all(
        torch.equal(value, theirs[name])
        for ours, theirs in zip(one, other, strict=True)
        for name, value in ours.items()
    )


@pytest.mark.parametrize("kind", [kind.__name__ for kind in COORDINATE_WISE])
def test_packing_changes_nothing_that_can_be_seen(kind: str) -> None:
    """Beside an optimizer that is made whole after every step; masks come, stay, change and go."""
    make = getattr(torch.optim, kind)
    own, other = parameters(), parameters()
    packed, plain = make(own, lr=0.1), make(other, lr=0.1)
    first, second = mask(1), mask(2)
    for used in (first, first, None, first, second, second, first, None, second):
        gradient = torch.randn(LAYOUT.size)
        update(packed, own, Released.on(used, gradient.clone(), LAYOUT, 1.0), Frozen.STILL)
        update(plain, other, Released.on(used, gradient.clone(), LAYOUT, 1.0), Frozen.STILL)
        unpack(plain)
        assert torch.equal(flat(own), flat(other))
    assert same(state_of(packed), state_of(plain))
    shapes = {tuple(value.shape) for state in state_of(packed) for value in state.values()}
    assert shapes <= {*LAYOUT.shapes, ()}


def test_state_is_packed_once_for_a_mask() -> None:
    own = parameters()
    optimizer = OPTIMIZERS["sgd"](own)
    first, second = mask(1), mask(2)
    held = []
    for used in (first, first, second, second, first):
        update(optimizer, own, Released.on(used, torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
        held.append(module._PACKED[optimizer])
        size = optimizer.state[own[0]]["momentum_buffer"].shape
        assert size == module._PACKED[optimizer].indices[own[0]].shape
    assert held[0] is held[1] is not held[2]
    assert held[2] is held[3] is not held[4]


def test_a_checkpoint_of_packed_state_goes_on_as_the_run_does() -> None:
    used = mask(2)
    own, again = parameters(), parameters()
    optimizer = OPTIMIZERS["adam"](own)
    for _ in range(3):
        update(optimizer, own, Released.on(used, torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    resumed = OPTIMIZERS["adam"](again)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for parameter, value in zip(again, own, strict=True):
        parameter.data.copy_(value.data)
    for _ in range(2):
        gradient = torch.randn(LAYOUT.size)
        for which, held in ((optimizer, own), (resumed, again)):
            update(which, held, Released.on(used, gradient.clone(), LAYOUT, 1.0), Frozen.STILL)
    assert torch.equal(flat(own), flat(again))
    assert same(state_of(optimizer), state_of(resumed))


def test_loading_replaces_packed_state() -> None:
    own = parameters()
    optimizer = OPTIMIZERS["adam"](own)
    update(optimizer, own, Released(torch.randn(LAYOUT.size), LAYOUT), Frozen.STILL)
    saved, held = copy.deepcopy(optimizer.state_dict()), state_of(optimizer)
    update(optimizer, own, Released.on(mask(2), torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    optimizer.load_state_dict(saved)
    assert same(state_of(optimizer), held)


def test_a_step_past_the_update_finds_whole_state() -> None:
    own, other = parameters(), parameters()
    one, two = OPTIMIZERS["adam"](own), OPTIMIZERS["adam"](other)
    used, gradient = mask(2), torch.randn(LAYOUT.size)
    for optimizer, held in ((one, own), (two, other)):
        update(optimizer, held, Released.on(used, gradient.clone(), LAYOUT, 1.0), Frozen.STILL)
    unpack(two)
    for optimizer, held in ((one, own), (two, other)):
        for parameter in held:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert torch.equal(flat(own), flat(other))
    assert same(state_of(one), state_of(two))


def test_an_optimizer_that_is_gone_leaves_nothing_behind() -> None:
    own = parameters()
    optimizer = OPTIMIZERS["adam"](own)
    update(optimizer, own, Released.on(mask(2), torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    packed, gone = weakref.ref(module._PACKED[optimizer]), weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert packed() is None


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

    used = mask(1)

    def fail() -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(optimizer, "step", fail)
    for _ in range(2):  # the second finds the mask in use
        with pytest.raises(RuntimeError, match="no memory"):
            update(optimizer, own, Released.on(used, torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    assert torch.equal(flat(own), before)
    assert torch.equal(flat([optimizer.state[p]["momentum_buffer"] for p in own]), buffers)
    assert all(p.grad is None for p in own)


def test_an_error_after_new_state_leaves_whole_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state begins inside the step that fails."""
    own = parameters()
    optimizer = OPTIMIZERS["sgd"](own)
    real = optimizer.step

    def fail() -> None:
        real()
        raise RuntimeError("no memory")

    monkeypatch.setattr(optimizer, "step", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        update(optimizer, own, Released.on(mask(2), torch.randn(LAYOUT.size), LAYOUT, 1.0), Frozen.STILL)
    assert [tuple(p.shape) for p in own] == list(LAYOUT.shapes)
    assert [tuple(optimizer.state[p]["momentum_buffer"].shape) for p in own] == list(LAYOUT.shapes)
