"""Run the optimizer on a released gradient: on all coordinates, or on the active ones only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import SGD, Adadelta, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from discreet.engine.active import Active
from discreet.engine.layout import Mask
from discreet.engine.shards.local import gradient_like
from discreet.stages.selection import Frozen
from discreet.stages.values import Released

# Optimizers that update every coordinate independently and initialise their state with zeros.
COORDINATE_WISE: Final = (SGD, Adam, AdamW, NAdam, RAdam, RMSprop, Adadelta, Adamax)


@torch.no_grad()
def update(optimizer: Optimizer, parameters: Sequence[Tensor], released: Released, frozen: Frozen) -> None:
    """Run one optimizer step. Frozen coordinates do not move, unless `frozen` is COASTING.

    A coordinate-wise optimizer sees the active coordinates only, so time and state changes are limited to them. After
    a step of any other optimizer the frozen coordinates are restored.

    Guarantee: the optimizer sees the release only. Gradients that are already stored on parameters are not private,
    so they are cleared first, also those of frozen parameters that the optimizer holds.
    """
    for parameter in (*parameters, *held_by(optimizer)):
        parameter.grad = None
    try:
        if released.mask is None or frozen is Frozen.COASTING:
            unpack(optimizer)
            give(parameters, released)
            optimizer.step()
        elif type(optimizer) in COORDINATE_WISE and all(p.is_contiguous() for p in parameters):
            with _narrowed(optimizer, parameters, released):
                optimizer.step()
        else:
            give(parameters, released)
            before = [parameter.detach().clone() for parameter in parameters]
            optimizer.step()
            for index, (parameter, old) in enumerate(zip(parameters, before, strict=True)):
                active = released.mask.of(index, parameter)
                if active is not None:
                    parameter.copy_(parameter.where(active, old))
    finally:
        for parameter in parameters:
            parameter.grad = None


def held_by(optimizer: Optimizer) -> list[Tensor]:
    """Every parameter that a step of the optimizer may move."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def give(parameters: Sequence[Tensor], released: Released) -> None:
    """Write the release to `.grad`, with zeros on frozen coordinates."""
    for parameter, gradient in zip(parameters, released.views(), strict=True):
        parameter.grad = gradient_like(parameter, gradient.to(parameter.dtype))


# While a mask is in use, the optimizer state of its active coordinates is packed into contiguous vectors. Reading
# scattered coordinates takes as long as reading all of them, so packing is what makes a sparse step fast. The state is
# unpacked before `state_dict`, `load_state_dict` and any step outside this module: see `_unpack_on_access`.


@final
@dataclass(eq=False)
class _Packed:
    """The packed state of an optimizer while one mask is in use.

    indices   active coordinates of each partly active parameter
    unpacked  full state of these parameters, current on frozen coordinates only
    """

    mask: Mask
    indices: dict[Tensor, Tensor] = field(default_factory=dict)
    unpacked: dict[Tensor, dict[str, Tensor]] = field(default_factory=dict)
    stepping: bool = False


_PACKED: WeakKeyDictionary[Optimizer, _Packed] = WeakKeyDictionary()
_HOOKED: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()


@contextmanager
def _narrowed(optimizer: Optimizer, parameters: Sequence[Tensor], released: Released) -> Iterator[None]:
    """Replace parameters and their state by vectors of the active coordinates; restore the parameters on exit."""
    assert released.mask is not None
    active = Active.of(released.mask, released.layout, released.active.device)
    packed = _pack(optimizer, parameters, released.mask, active)
    whole: dict[Tensor, Tensor] = {}
    try:
        for parameter, values in zip(parameters, active.split(released.active), strict=True):
            if not len(values):
                continue  # optimizers skip a parameter without a gradient
            index = packed.indices.get(parameter)
            if index is None:
                parameter.grad = values.view(parameter.shape).to(parameter.dtype)
                continue
            whole[parameter] = parameter.data
            parameter.data = parameter.data.reshape(-1).index_select(0, index)
            parameter.grad = values.to(parameter.dtype)
        packed.stepping = True
        yield
        packed.stepping = False
    finally:
        for parameter, data in whole.items():
            parameter.grad = None  # it has the packed shape
            part, parameter.data = parameter.data, data
            _scatter(data, packed.indices[parameter], part)
        if packed.stepping:  # the step raised an error
            unpack(optimizer)


def _scatter(whole: Tensor, index: Tensor, part: Tensor) -> None:
    """Write `part` to the coordinates `index` of a tensor in any memory format."""
    if whole.is_contiguous():
        whole.view(-1).scatter_(0, index, part)
    else:
        whole.copy_(whole.reshape(-1).scatter_(0, index, part).view(whole.shape))


def _pack(optimizer: Optimizer, parameters: Sequence[Tensor], mask: Mask, active: Active) -> _Packed:
    """Return the packed state for this mask; pack it if the mask is new."""
    current = _PACKED.get(optimizer)
    if current is not None and current.mask is mask:
        return current
    unpack(optimizer)
    _unpack_on_access(optimizer)
    packed = _PACKED[optimizer] = _Packed(mask)
    for parameter, index, count in zip(parameters, active.parts, active.counts, strict=True):
        if index is None or not count:
            continue
        state = optimizer.state[parameter]
        full = {name: value for name, value in state.items() if _is_like(value, parameter.shape)}
        packed.indices[parameter], packed.unpacked[parameter] = index, full
        state.update({name: value.reshape(-1).index_select(0, index) for name, value in full.items()})
    return packed


@torch.no_grad()
def unpack(optimizer: Optimizer) -> None:
    """Restore the full state of an optimizer, if it is packed."""
    packed = _PACKED.pop(optimizer, None)
    if packed is None:
        return
    for parameter, index in packed.indices.items():
        state, full = optimizer.state[parameter], packed.unpacked[parameter]
        for name, value in state.items():
            if not _is_like(value, index.shape):
                continue
            if name not in full:  # state that the optimizer created while the mask was in use
                full[name] = torch.zeros_like(parameter, dtype=value.dtype)
            _scatter(full[name], index, value)
        state.update(full)


def _unpack_on_access(optimizer: Optimizer) -> None:
    """Register hooks that unpack the state before it is read, replaced or stepped outside this module."""
    if optimizer in _HOOKED:
        return
    _HOOKED[optimizer] = True

    def before_step(stepping: Optimizer, *_: Any) -> None:
        packed = _PACKED.get(stepping)
        if packed is not None and not packed.stepping:
            unpack(stepping)

    optimizer.register_state_dict_pre_hook(unpack)
    optimizer.register_load_state_dict_pre_hook(lambda loading, _: unpack(loading))
    optimizer.register_step_pre_hook(before_step)


def _is_like(value: object, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape
