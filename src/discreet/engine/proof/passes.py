"""One pass of a model on random inputs: how they are drawn, what it called, with what settings, and what came out."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.engine.proof.forbidden import refuse_bounds, refuse_reading
from discreet.engine.trace.capture import Marks, TracedStep, Tracked, name_of, replace, tensors_in, track_derived
from discreet.engine.trace.settings import settings_of

_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
)
_NOISES = (
    *(torch.rand_like, torch.randn_like, torch.bernoulli, Tensor.bernoulli),
    *(Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_),
)


class ProbeMode(enum.Enum):
    """How a probe pass runs."""

    PLAIN = "as it is"
    QUIET = "without dropout, and with one value in the place of noise on records"


@dataclass
class SeenCall:
    """One call with tracked tensors, as one probe pass saw it."""

    func: Callable[..., Any]
    names: tuple[str, ...]
    settings: tuple[Any, ...]
    derives: bool
    inputs: list[Tensor | None]  # None for a parameter, or what was derived from parameters alone
    outputs: list[Tensor]
    is_single: bool

    @property
    def where(self) -> str:
        return f"{name_of(self.func)} with {', '.join(self.names)}"


@dataclass
class Passed:
    """What one probe pass showed.

    seen     its calls with parameters
    path     its other calls on records
    outputs  what the model gave
    draws    whether torch's generator was used
    """

    seen: list[SeenCall]
    path: list[TracedStep]
    outputs: list[Tensor]
    draws: bool

    @property
    def settings(self) -> list[tuple[Any, ...]]:
        """Of the calls, then of the path."""
        return [seen.settings for seen in self.seen] + [step.settings for step in self.path]

    def tensors(self) -> Iterator[Tensor]:
        """Everything that was seen, in order."""
        for seen in self.seen:
            yield from (tensor for tensor in seen.inputs if tensor is not None)
            yield from seen.outputs
        yield from self.outputs


@dataclass
class Prober:
    """The follower of a probe pass. `spreads` are the calls known to spread a parameter over the records.

    copies  what calls take and give is copied, because the model writes into some of it
    """

    tracked: dict[int, Tracked]
    spreads: frozenset[int]
    marks: Marks
    manner: ProbeMode
    copies: bool
    seen: list[SeenCall] = field(default_factory=list)
    path: list[TracedStep] = field(default_factory=list)
    _lent: list[tuple[Tensor, int]] = field(default_factory=list)

    @property
    def is_overwritten(self) -> bool:
        """Whether a later call wrote into a tensor that was to be kept as it was."""
        return any(tensor._version != version for tensor, version in self._lent)

    def _kept(self, tensor: Tensor) -> Tensor:
        """The values of a tensor; its own memory unless `copies`, as new memory takes longer than to fill it."""
        own = tensor.detach()
        if self.copies:
            return own.clone()
        self._lent.append((own, own._version))
        return own

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        on_records = self.marks.on(tensors)
        if on_records:
            refuse_reading(func)
            refuse_bounds(func, args, self.marks.on)
        settings = settings_of(func, args, kwargs)
        if self.manner is ProbeMode.QUIET:
            if func in _DROPOUTS:
                return args[0].clone()
            args, kwargs = _without_dropout(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.manner is ProbeMode.QUIET and on_records and func in _NOISES:
            with torch.no_grad():
                result.fill_(0.5)
        if self.marks.follow(func, args, tensors, result):
            self.path.append(TracedStep(func, settings))
        return result

    def has_records(self, tensor: Tensor) -> bool:
        return self.marks.on([tensor])

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        tensors = tensors_in((args, kwargs))
        inputs = [None if id(tensor) in self.tracked else self._kept(tensor) for tensor in tensors]
        on_records = self.marks.on(tensors)
        if on_records:
            refuse_reading(func)
            refuse_bounds(func, args, self.marks.on)
        settings = settings_of(func, args, kwargs)
        result = func(*args, **kwargs)
        outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
        if not outputs:
            if self.marks.follow(func, args, tensors, result):
                self.path.append(TracedStep(func, settings))
            return result
        derives = not on_records and len(self.seen) not in self.spreads
        names = tuple(tracked.name for tracked in found)
        kept, is_single = [self._kept(tensor) for tensor in outputs], isinstance(result, Tensor)
        self.seen.append(SeenCall(func, names, settings, derives, inputs, kept, is_single))
        if derives:
            track_derived(self.tracked, func, args, kwargs, result, found)
        return result


def _without_dropout(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    if func is not F.scaled_dot_product_attention:
        return args, kwargs
    args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
    return args, {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs


# -- random inputs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """How inputs are drawn: standard normal or uniform on (0, 1); `span` whole numbers from `low` on.

    A model may want positive numbers, indices above zero, or whole numbers that are the same along the last axis: the
    corners of a box are in order then.
    """

    positive: bool
    low: int
    span: int
    is_level: bool = False

    def inputs(self, tree: Any, batched: Sequence[bool], rows: int, generator: torch.Generator) -> Any:
        """`tree` with random tensors of `rows` rows where it holds tensors of records."""
        return _where(tree, batched, lambda tensor: self._random(tensor, rows, generator))

    def extended(self, tree: Any, batched: Sequence[bool], rows: int, generator: torch.Generator) -> Any:
        """`tree` with more random rows after its own."""
        return _where(tree, batched, lambda t: torch.cat([t, self._random(t, rows, generator)]))

    def replaced(self, tree: Any, batched: Sequence[bool], record: int, views: int, generator: torch.Generator) -> Any:
        """`tree` with one record drawn anew: floats four times as large, and no whole number as it was, if
        there is another one."""
        own = slice(record * views, (record + 1) * views)

        def changed(tensor: Tensor) -> Tensor:
            tensor = tensor.clone()
            if tensor.is_floating_point() or tensor.is_complex():
                tensor[own] = 4 * self._random(tensor, views, generator)
            elif tensor.dtype == torch.bool:
                tensor[own] = ~tensor[own]
            elif self.span > 1:
                steps = self._whole(1, self.span - 1, tensor[own].shape, generator).to(tensor)
                tensor[own] = (tensor[own] - self.low + steps) % self.span + self.low
            return tensor

        return _where(tree, batched, changed)

    def _random(self, like: Tensor, rows: int, generator: torch.Generator) -> Tensor:
        shape = (rows, *like.shape[1:])
        if like.is_floating_point() or like.is_complex():
            dtype = torch.complex64 if like.is_complex() else torch.float32
            kind = torch.rand if self.positive else torch.randn
            return kind(shape, generator=generator, dtype=dtype).to(like)
        if like.dtype == torch.bool:
            return torch.randint(2, shape, generator=generator).to(like)
        return self._whole(self.low, self.span, shape, generator).to(like)

    def _whole(self, low: int, span: int, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """`span` whole numbers from `low` on."""
        drawn = (*shape[:-1], 1) if self.is_level and len(shape) > 1 else shape
        return torch.randint(low, low + span, drawn, generator=generator).expand(shape)


# Token ids may have to lie below 2 or to be 0, lengths above 0; some models take logarithms.
DRAWS = (
    *(Draw(positive, low, span) for low, span in ((0, 4), (0, 2), (1, 2)) for positive in (False, True)),
    *(Draw(False, 0, span, is_level=True) for span in (4, 2)),
    *(Draw(positive, 0, 1) for positive in (False, True)),
)


def _where(tree: Any, chosen: Sequence[bool], change: Any) -> Any:
    """The same structure with the chosen tensors changed."""
    flags = iter(chosen)
    return replace(tree, lambda tensor: change(tensor) if next(flags) else tensor)


def rows_of(tree: Any, other: Any, batched: Sequence[bool], chosen: Tensor, views: int) -> Any:
    """`tree` with the rows of the records that are not chosen from `other`, which has the same structure."""
    rows, others = chosen.repeat_interleave(views), iter(tensors_in(other))

    def mixed(tensor: Tensor, own: bool) -> Tensor:
        rest = next(others)
        return torch.where(rows.view(-1, *[1] * (tensor.dim() - 1)).to(tensor.device), tensor, rest) if own else tensor

    flags = iter(batched)
    return replace(tree, lambda tensor: mixed(tensor, next(flags)))
