"""Learning a forward pass on random inputs of the public shape: which calls, and which axis is the record.

Nothing here sees private data. The pass runs for two batch sizes and with single records replaced. An axis is
the record axis if its size follows the number of records and only the replaced record's entries move; a value
that moves with the number of records is refused, for that number is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.core.check import Refused, refuse, require
from discreet.stages.arguments import agreed, settings_of
from discreet.stages.axes import LARGE, SMALL, record_axis, same_for_every_size
from discreet.stages.capture import (
    Call,
    Marks,
    Script,
    Step,
    Tracked,
    Watch,
    name_of,
    tensors_in,
    track_derived,
)
from discreet.stages.decompose import DECOMPOSITIONS
from discreet.stages.draws import DRAWS, Draw
from discreet.stages.forbidden import FORBIDDEN, refuse_reading

PROBE_SEED = 20_011
_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
)


class UnclearError(Refused):
    """Nothing shows on these random inputs; on others it may."""


@dataclass
class Seen:
    """One call with tracked tensors, as one probe pass saw it."""

    func: Callable[..., Any]
    names: tuple[str, ...]
    settings: list[Any]
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
    """One probe pass: its calls, its other calls on records, and what the model gave."""

    seen: list[Seen]
    path: list[Step]
    outputs: list[Tensor]

    def tensors(self) -> Iterator[Tensor]:
        """Everything that was seen, in order."""
        for seen in self.seen:
            yield from seen.inputs
            yield from seen.outputs
        yield from self.outputs


@dataclass
class _Prober:
    """The follower of a probe pass. `spreads` are the calls known to spread a parameter over the records."""

    tracked: dict[int, Tracked]
    spreads: frozenset[int]
    marks: Marks
    quiet: bool
    seen: list[Seen] = field(default_factory=list)
    path: list[Step] = field(default_factory=list)

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if self.marks.on(tensors):
            refuse_reading(func)
        settings = settings_of((args, kwargs))
        if self.quiet and func in _DROPOUTS:
            return args[0].clone()
        if self.quiet and func is F.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs = {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs
        result = func(*args, **kwargs)
        if self.marks.follow(func, args, tensors, result):
            self.path.append(Step(func, settings))
        return result

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        tensors, settings = tensors_in((args, kwargs)), settings_of((args, kwargs))
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


class Probe:
    """Learns the script of one model for inputs of one shape.

    batched  for each tensor of `inputs`, whether its first axis is the record
    views    rows of each record, side by side
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Tracked],
        inputs: Any,
        batched: Sequence[bool],
        views: int = 1,
    ) -> None:
        self._model, self._parameters, self._views = model, parameters, views
        self._inputs, self._batched = inputs, tuple(batched)

    def learn(self) -> tuple[Script, Any]:
        """The script of a pass, and the random inputs for SMALL records that showed it.

        Refuses what cannot be proven. Random inputs that the model cannot take (it fails, or gives NaN, in
        which nothing shows) are drawn again from another distribution.
        """
        failures: list[Exception] = []
        for draw in DRAWS:
            saved = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
            try:
                return self._learn(draw)
            except UnclearError as unclear:
                _restore(self._model, saved)
                failures.insert(0, unclear)
            except Refused:
                _restore(self._model, saved)
                raise
            except Exception as error:  # the model's own: it wants other numbers, or fails on all
                _restore(self._model, saved)
                failures.append(error)
        raise failures[0]

    def _learn(self, draw: Draw) -> tuple[Script, Any]:
        generator = torch.Generator().manual_seed(PROBE_SEED)
        small = draw.inputs(self._inputs, self._batched, SMALL * self._views, generator)
        large = draw.extended(small, self._batched, (LARGE - SMALL) * self._views, generator)
        first, grown, spreads = self._settle(small, large)
        state = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        again = self._pass(small, spreads)
        require(
            _equal(first, again),
            "the same values from the same inputs",
            "a second pass that differs from the first",
            "remove state that a pass leaves behind, and draw randomness from torch's generator only",
        )
        moved = [
            self._pass(draw.replaced(large, self._batched, record, self._views, generator), spreads)
            for record in range(LARGE)
        ]
        reseeded = self._reseeded(small, first, spreads)
        _same_path(first, grown, *moved, *reseeded)
        _no_nan(first, grown, *moved)
        script = self._script(first, grown, moved, reseeded)
        if reseeded:
            self._same_without_dropout(small, large, spreads)
        else:
            _same_values(first, grown)
        _buffers_unchanged(self._model, state)
        return script, small

    def _settle(self, small: Any, large: Any) -> tuple[Passed, Passed, frozenset[int]]:
        """Passes of both sizes, once it is known which calls spread a parameter over the records."""
        spreads: frozenset[int] = frozenset()
        while True:
            first, grown = self._pass(small, spreads), self._pass(large, spreads)
            _same_path(first, grown)
            found = [
                i
                for i, (s, b) in enumerate(zip(first.seen, grown.seen, strict=True))
                if s.derives and [t.shape for t in s.outputs] != [t.shape for t in b.outputs]
            ]
            if not found:
                return first, grown, spreads
            spreads |= {found[0]}  # one at a time: the calls after it will be others

    def _reseeded(self, small: Any, first: Passed, spreads: frozenset[int]) -> list[Passed]:
        """Passes with other seeds of torch's generator; none if nothing is drawn from it."""
        passes = [self._pass(small, spreads, seed=seed) for seed in (1, 2, 3)]
        return passes if not all(_equal(first, other) for other in passes) else []

    def _same_without_dropout(self, small: Any, large: Any, spreads: frozenset[int]) -> None:
        first, grown = (self._pass(inputs, spreads, quiet=True) for inputs in (small, large))
        if _equal(first, self._pass(small, spreads, seed=1, quiet=True)):
            _same_values(first, grown)
        # else other randomness: batches of two sizes draw different numbers

    def _script(
        self, first: Passed, grown: Passed, moved: Sequence[Passed], reseeded: Sequence[Passed]
    ) -> Script:
        alike = (first, grown, *reseeded)
        calls = [
            _call(
                seen, grown.seen[i], [m.seen[i] for m in moved], agreed([p.seen[i].settings for p in alike])
            )
            for i, seen in enumerate(first.seen)
        ]
        path = [
            Step(step.func, agreed([p.path[i].settings for p in alike])) for i, step in enumerate(first.path)
        ]
        outputs = [
            record_axis(output, grown.outputs[i], [m.outputs[i] for m in moved], "the model's output")
            for i, output in enumerate(first.outputs)
        ]
        if not any(not _same(a, b) for m in moved for a, b in zip(m.outputs, grown.outputs, strict=True)):
            raise UnclearError(
                "Expected outputs that move with the inputs, got "
                f"{'the same for different random inputs' if outputs else 'no differentiable tensor'}. Remedy: "
                "return the predictions from forward() as tensors, in tuples, lists or dictionaries."
            )
        return Script(self._batched, calls, path, outputs)

    def _pass(self, inputs: Any, spreads: frozenset[int], seed: int = 0, quiet: bool = False) -> Passed:
        args, kwargs = inputs
        tracked = {id(root.tensor): root for root in self._parameters}
        records = [t for t, own in zip(tensors_in(inputs), self._batched, strict=True) if own]
        prober = _Prober(tracked, spreads, Marks(tracked, records), quiet)
        # The same dropout in every pass, and the caller's generator as it was.
        generator = forked_generator(self._parameters[0].tensor.device, PROBE_SEED + seed)
        with generator, torch.enable_grad(), Watch(prober, DECOMPOSITIONS, FORBIDDEN):
            result = self._model(*args, **kwargs)
        outputs = [tensor.detach().clone() for tensor in tensors_in(result) if tensor.requires_grad]
        return Passed(prober.seen, prober.path, outputs)


@contextmanager
def forked_generator(device: torch.device, seed: int) -> Iterator[None]:
    """Torch's global generators, seeded inside the block and restored after it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _restore(model: nn.Module, saved: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if name in saved and buffer.shape == saved[name].shape:
            buffer.copy_(saved[name])


def _same_path(first: Passed, *others: Passed) -> None:
    for other in others:
        calls = [(seen.func, seen.names, len(seen.inputs)) for seen in first.seen]
        if (
            [(seen.func, seen.names, len(seen.inputs)) for seen in other.seen] != calls
            or [step.func for step in other.path] != [step.func for step in first.path]
            or len(other.outputs) != len(first.outputs)
        ):
            refuse(
                "the forward pass to make the same calls for every batch",
                "calls that differ between random batches",
                "remove control flow that depends on the data or on the batch size",
            )


def _same_values(first: Passed, grown: Passed) -> None:
    """Refuse values of a record that move with the number of records."""
    for a, b in zip(first.tensors(), grown.tensors(), strict=True):
        same_for_every_size(a, b)


def _no_nan(*passes: Passed) -> None:
    if any(bool(tensor.isnan().any()) for one in passes for tensor in one.tensors()):
        raise UnclearError(
            "Expected numbers from the model on random inputs, got NaN, in which nothing shows. Remedy: make "
            "the model take any floats and any small whole numbers, for example by clamping its inputs."
        )


def _equal(first: Passed, second: Passed) -> bool:
    a, b = list(first.tensors()), list(second.tensors())
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def _same(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _buffers_unchanged(model: nn.Module, state: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        require(
            name in state and _same(buffer, state[name]),
            "buffers that stay as they are in the forward pass",
            f"buffer {name} changes",
            "turn off running statistics: they store private records in the model",
        )


def _call(small: Seen, large: Seen, moved: Sequence[Seen], settings: list[Any]) -> Call:
    if small.derives:
        require(
            all(_same(a, b) for m in moved for a, b in zip(m.outputs, large.outputs, strict=True)),
            f"{small.where} to depend on parameters alone",
            "a result that moves with the records",
            "keep the records on an axis of their own: this looks like a statistic of the batch",
        )
        return Call(small.func, small.names, settings, derives=True)
    require(
        len(small.outputs) == 1 and small.is_single,
        "a call with one output",
        f"{small.where} with several",
        "split the parameter's part into a call of its own",
    )
    axes = tuple(
        None
        if small.is_tracked[i]
        else record_axis(tensor, large.inputs[i], [m.inputs[i] for m in moved], f"an input of {small.where}")
        for i, tensor in enumerate(small.inputs)
    )
    output = record_axis(
        small.outputs[0], large.outputs[0], [m.outputs[0] for m in moved], f"the output of {small.where}"
    )
    if output is None:
        refuse(
            "an output with one row of entries per record",
            f"{small.where} gives one value for all records",
            "keep the records apart until the per-sample losses",
        )
    return Call(small.func, small.names, settings, derives=False, axes=axes, output=output)
