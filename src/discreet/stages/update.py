"""The optimizer's step on a release: dense, or on the active coordinates alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from discreet.stages.active import Active
from discreet.stages.selection import Frozen
from discreet.stages.values import Released

# Optimizers that treat every coordinate on its own and start their state at zero.
COORDINATE_WISE: Final = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.Adamax,
)


@torch.no_grad()
def update(optimizer: Optimizer, parameters: Sequence[Tensor], released: Released, frozen: Frozen) -> None:
    """One step of the optimizer, in which frozen coordinates stay where they are unless they may coast.

    Coordinate-wise optimizers see the active coordinates only: they cost, and touch the state of, nothing else.
    Others step as they like, and frozen parameters are put back.
    """
    try:
        if released.mask is None or frozen is Frozen.COASTING:
            _give(parameters, released)
            optimizer.step()
        elif type(optimizer) in COORDINATE_WISE and all(p.is_contiguous() for p in parameters):
            with _narrowed(optimizer, parameters, released):
                optimizer.step()
        else:
            _give(parameters, released)
            before = [parameter.detach().clone() for parameter in parameters]
            optimizer.step()
            for index, (parameter, old) in enumerate(zip(parameters, before, strict=True)):
                active = released.mask.of(index, parameter)
                if active is not None:
                    parameter.copy_(parameter.where(active, old))
    finally:
        for parameter in parameters:
            parameter.grad = None


def _give(parameters: Sequence[Tensor], released: Released) -> None:
    for parameter, gradient in zip(parameters, released.views(), strict=True):
        parameter.grad = gradient.to(parameter.dtype)


@contextmanager
def _narrowed(optimizer: Optimizer, parameters: Sequence[Tensor], released: Released) -> Iterator[None]:
    """Inside, parameters and their state are vectors of the active coordinates; afterwards whole again."""
    assert released.mask is not None
    active = Active.of(released.mask, released.layout, released.active.device)
    narrow: list[tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]] = []
    pieces = zip(parameters, active.parts, active.split(released.active), strict=True)
    try:
        for parameter, index, values in pieces:
            if not len(values):
                continue  # no gradient: optimizers pass over it
            if index is None:
                parameter.grad = values.view(parameter.shape).to(parameter.dtype)
                continue
            state, whole = optimizer.state[parameter], parameter.data
            wide = {name: value for name, value in state.items() if _is_like(value, whole)}
            narrow.append((parameter, index, whole, wide))
            state.update({name: value.view(-1).index_select(0, index) for name, value in wide.items()})
            parameter.data = whole.view(-1).index_select(0, index)
            parameter.grad = values.to(whole.dtype)
        yield
    finally:
        for parameter, index, whole, wide in narrow:
            _widen(optimizer, parameter, index, whole, wide)


def _widen(
    optimizer: Optimizer, parameter: Tensor, index: Tensor, whole: Tensor, wide: dict[str, Tensor]
) -> None:
    state, part = optimizer.state[parameter], parameter.data
    parameter.grad = None  # of the narrow shape
    parameter.data = whole
    whole.view(-1).scatter_(0, index, part)
    for name, value in state.items():
        if not _is_like(value, part):
            continue
        if name not in wide:  # state that began in this step
            wide[name] = torch.zeros_like(whole, dtype=value.dtype)
        wide[name].view(-1).scatter_(0, index, value)
    state.update(wide)


def _is_like(value: object, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == tensor.shape
