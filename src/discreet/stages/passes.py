"""One pass of a model on random inputs: what it called, with what settings, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.stages.arguments import ELEMENTWISE, settings_of
from discreet.stages.capture import Marks, Step, Tracked, name_of, tensors_in, track_derived
from discreet.stages.forbidden import refuse_reading

_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
)
_NOISES = (
    *(torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.bernoulli, Tensor.bernoulli),
    *(Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_),
)


@dataclass
class Seen:
    """One call with tracked tensors, as one probe pass saw it."""

    func: Callable[..., Any]
    names: tuple[str, ...]
    settings: tuple[Any, ...]
    derives: bool
    inputs: list[Tensor]
    is_tracked: list[bool]
    outputs: list[Tensor]
    is_single: bool

    @property
    def where(self) -> str:
        return f"{name_of(self.func)} with {', '.join(self.names)}"


@dataclass
class Passed:
    """One probe pass: its calls, its other calls on records, what the model gave, and whether it drew at random."""

    seen: list[Seen]
    path: list[Step]
    outputs: list[Tensor]
    draws: bool

    @property
    def settings(self) -> list[tuple[Any, ...]]:
        """Of the calls, then of the path."""
        return [seen.settings for seen in self.seen] + [step.settings for step in self.path]

    def tensors(self) -> Iterator[Tensor]:
        """Everything that was seen, in order."""
        for seen in self.seen:
            yield from seen.inputs
            yield from seen.outputs
        yield from self.outputs


@dataclass
class Prober:
    """The follower of a probe pass.

    spreads  the calls known to spread a parameter over the records
    quiet    without dropout, and with one value in the place of noise
    """

    tracked: dict[int, Tracked]
    spreads: frozenset[int]
    marks: Marks
    quiet: bool
    seen: list[Seen] = field(default_factory=list)
    path: list[Step] = field(default_factory=list)

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if self.marks.on(tensors):
            refuse_reading(func)
        settings = settings_of(func, args, kwargs)
        args, kwargs = _nothing_hidden(func, args, kwargs, tensors)
        if self.quiet and func in _DROPOUTS:
            return args[0].clone()
        if self.quiet and func is F.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs = {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs
        result = func(*args, **kwargs)
        if self.quiet and func in _NOISES:
            with torch.no_grad():
                result.fill_(0.5)
        if self.marks.follow(func, args, tensors, result):
            self.path.append(Step(func, settings))
        return result

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        tensors, settings = tensors_in((args, kwargs)), settings_of(func, args, kwargs)
        args, kwargs = _nothing_hidden(func, args, kwargs, tensors)
        inputs = [tensor.detach().clone() for tensor in tensors]
        on_records = self.marks.on(tensors)
        if on_records:
            refuse_reading(func)
        result = func(*args, **kwargs)
        outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
        if not outputs:
            if self.marks.follow(func, args, tensors, result):
                self.path.append(Step(func, settings))
            return result
        derives = not on_records and len(self.seen) not in self.spreads
        names = tuple(tracked.name for tracked in found)
        is_tracked = [id(tensor) in self.tracked for tensor in tensors]
        copies = [tensor.detach().clone() for tensor in outputs]
        is_single = isinstance(result, Tensor)
        self.seen.append(Seen(func, names, settings, derives, inputs, is_tracked, copies, is_single))
        if derives:
            track_derived(self.tracked, func, args, kwargs, result, found)
        return result


def _nothing_hidden(
    func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]
) -> tuple[Any, Any]:
    """Zeros hide what they multiply, and may grow later, as in a warm-up: the probe has 0.1 in their place."""
    if func not in ELEMENTWISE or not any(tensor.is_floating_point() for tensor in tensors):
        return args, kwargs
    return tuple(map(_not_zero, args)), {name: _not_zero(value) for name, value in kwargs.items()}


def _not_zero(value: Any) -> Any:
    return 0.1 if type(value) in (int, float) and value == 0 else value
