"""The optimizer's step on a release: dense, or on the active coordinates alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from discreet.engine.layout import Mask
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

    Guarantee: the optimizer sees the release and nothing else; a gradient that somebody left on a parameter, exact
    and unbounded, is gone before it steps.
    """
    for parameter in parameters:
        parameter.grad = None
    try:
        if released.mask is None or frozen is Frozen.COASTING:
            unpack(optimizer)
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


# While a mask serves, the state of its active coordinates is packed: vectors, one after another in memory. Reading
# scattered coordinates costs as much as reading all of them, so this is what makes a sparse step cheap. Whoever asks
# for the state (`state_dict`), replaces it or steps past this module finds it whole: see `_watch`.


@final
@dataclass(eq=False)
class _Packed:
    """The state of an optimizer while one mask serves.

    indices  the active coordinates of each parameter of which a part is active
    wide     the whole state of those parameters: up to date where they are frozen
    """

    mask: Mask
    indices: dict[Tensor, Tensor] = field(default_factory=dict)
    wide: dict[Tensor, dict[str, Tensor]] = field(default_factory=dict)
    stepping: bool = False


_PACKED: WeakKeyDictionary[Optimizer, _Packed] = WeakKeyDictionary()
_WATCHED: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()


@contextmanager
def _narrowed(optimizer: Optimizer, parameters: Sequence[Tensor], released: Released) -> Iterator[None]:
    """Inside, parameters and their state are vectors of the active coordinates; afterwards parameters are whole."""
    assert released.mask is not None
    active = Active.of(released.mask, released.layout, released.active.device)
    packed = _pack(optimizer, parameters, released.mask, active)
    whole: dict[Tensor, Tensor] = {}
    try:
        for parameter, values in zip(parameters, active.split(released.active), strict=True):
            if not len(values):
                continue  # no gradient: optimizers pass over it
            index = packed.indices.get(parameter)
            if index is None:
                parameter.grad = values.view(parameter.shape).to(parameter.dtype)
                continue
            whole[parameter] = parameter.data
            parameter.data = parameter.data.view(-1).index_select(0, index)
            parameter.grad = values.to(parameter.dtype)
        packed.stepping = True
        yield
        packed.stepping = False
    finally:
        for parameter, data in whole.items():
            parameter.grad = None  # of the narrow shape
            part, parameter.data = parameter.data, data
            data.view(-1).scatter_(0, packed.indices[parameter], part)
        if packed.stepping:  # an error cut the step short
            unpack(optimizer)


def _pack(optimizer: Optimizer, parameters: Sequence[Tensor], mask: Mask, active: Active) -> _Packed:
    """The packed state of this mask, made when the mask is new."""
    held = _PACKED.get(optimizer)
    if held is not None and held.mask is mask:
        return held
    unpack(optimizer)
    _watch(optimizer)
    packed = _PACKED[optimizer] = _Packed(mask)
    for parameter, index, count in zip(parameters, active.parts, active.counts, strict=True):
        if index is None or not count:
            continue
        state = optimizer.state[parameter]
        wide = {name: value for name, value in state.items() if _is_like(value, parameter.shape)}
        packed.indices[parameter], packed.wide[parameter] = index, wide
        state.update({name: value.view(-1).index_select(0, index) for name, value in wide.items()})
    return packed


@torch.no_grad()
def unpack(optimizer: Optimizer) -> None:
    """Make the state of an optimizer whole, if it is not."""
    packed = _PACKED.pop(optimizer, None)
    if packed is None:
        return
    for parameter, index in packed.indices.items():
        state, wide = optimizer.state[parameter], packed.wide[parameter]
        for name, value in state.items():
            if not _is_like(value, index.shape):
                continue
            if name not in wide:  # state that began while the mask served
                wide[name] = torch.zeros_like(parameter, dtype=value.dtype)
            wide[name].view(-1).scatter_(0, index, value)
        state.update(wide)


def _watch(optimizer: Optimizer) -> None:
    """Unpack for everyone who looks: once for each optimizer."""
    if optimizer in _WATCHED:
        return
    _WATCHED[optimizer] = True

    def before_step(stepping: Optimizer, *_: Any) -> None:
        packed = _PACKED.get(stepping)
        if packed is not None and not packed.stepping:
            unpack(stepping)

    optimizer.register_state_dict_pre_hook(unpack)
    optimizer.register_load_state_dict_pre_hook(lambda loading, _: unpack(loading))
    optimizer.register_step_pre_hook(before_step)


def _is_like(value: object, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape
