"""Learning a forward pass on random inputs of the public shape: which calls, and which axis is the record.

Nothing here sees private data. The pass runs for two batch sizes and with single records replaced; an axis is
the record axis if its size follows the number of records and only the replaced record's entries move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from discreet.core.check import refuse
from discreet.stages.capture import Call, RecordAxis, Tracked, Watch, name_of, replace, tensors_in
from discreet.stages.decompose import DECOMPOSITIONS
from discreet.stages.ops import FORBIDDEN
from discreet.stages.recorder import track_derived

SMALL, LARGE = 3, 5  # records in a probe; coprime, so that no fixed size can follow both
PROBE_SEED = 20_011


@dataclass
class Seen:
    """One call with tracked tensors, as one probe pass saw it."""

    func: Callable[..., Any]
    names: tuple[str, ...]
    derives: bool
    inputs: list[Tensor]
    is_tracked: list[bool]
    outputs: list[Tensor]


@dataclass
class Passed:
    """One probe pass: its calls and what the model gave."""

    seen: list[Seen]
    outputs: list[Tensor]


@dataclass
class _Prober:
    """The follower of a probe pass. `spreads` are the calls known to spread a parameter over the records."""

    tracked: dict[int, Tracked]
    spreads: frozenset[int]
    batched: dict[int, Tensor]
    seen: list[Seen] = field(default_factory=list)

    def other(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if any(id(tensor) in self.batched for tensor in tensors_in((args, kwargs))):
            self._mark(result)
        return result

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, found: list[Tracked]) -> Any:
        tensors = list(tensors_in((args, kwargs)))
        inputs = [tensor.detach().clone() for tensor in tensors]
        result = func(*args, **kwargs)
        outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
        if not outputs:
            return result
        mixes = any(id(tensor) in self.batched for tensor in tensors)
        derives = not mixes and len(self.seen) not in self.spreads
        names = tuple(tracked.name for tracked in found)
        is_tracked = [id(tensor) in self.tracked for tensor in tensors]
        copies = [tensor.detach().clone() for tensor in outputs]
        self.seen.append(Seen(func, names, derives, inputs, is_tracked, copies))
        if derives:
            track_derived(self.tracked, func, args, result, found)
        else:
            self._mark(result)
        return result

    def _mark(self, result: Any) -> None:
        self.batched.update({id(tensor): tensor for tensor in tensors_in(result)})


def randomised(tree: Any, records: int, like: int | None, generator: torch.Generator) -> Any:
    """Random tensors in the shape of `tree`; those whose first axis is `like` long get `records` rows."""

    def random(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or (like is not None and tensor.shape[0] != like):
            return tensor
        shape = (records, *tensor.shape[1:])
        if tensor.is_floating_point():
            return torch.randn(shape, generator=generator).to(tensor)
        if tensor.is_complex():
            return torch.randn(shape, generator=generator, dtype=torch.cfloat).to(tensor)
        return torch.randint(0, 2, shape, generator=generator).to(tensor)

    return replace(tree, random)


def replaced(tree: Any, record: int, other: Any, views: int = 1) -> Any:
    """`tree` with one record's entries taken from `other`; whole numbers are flipped, so that they change."""
    sources = iter(list(tensors_in(other)))

    def swap(tensor: Tensor) -> Tensor:
        source = next(sources)
        if tensor is source:
            return tensor
        changed, own = tensor.clone(), slice(record * views, (record + 1) * views)
        continuous = tensor.is_floating_point() or tensor.is_complex()
        fresh = source[own] if continuous else 1 - tensor[own].long()
        changed[own] = fresh.to(tensor.dtype)
        return changed

    return replace(tree, swap)


@dataclass
class Script:
    """What a forward pass does: its calls in order, and the record axis of each output."""

    calls: list[Call]
    outputs: list[RecordAxis | None]
    loss_checked: bool = False


class Probe:
    """Learns the script of one model for inputs of one shape."""

    def __init__(
        self, model: nn.Module, parameters: Sequence[Tracked], inputs: Any, rows: int, views: int = 1
    ) -> None:
        self._model, self._parameters, self._views = model, parameters, views
        generator = torch.Generator().manual_seed(PROBE_SEED)
        self.small = randomised(inputs, SMALL * views, rows, generator)
        self.large = randomised(inputs, LARGE * views, rows, generator)
        self._other = randomised(inputs, SMALL * views, rows, generator)
        self._inputs = inputs

    def learn(self) -> Script:
        """The calls of a pass, each with its record axes; refuses what cannot be proven."""
        spreads: frozenset[int] = frozenset()
        while True:
            small, large = self._pass(self.small, spreads), self._pass(self.large, spreads)
            if [s.func for s in small.seen] != [s.func for s in large.seen]:
                _refuse_path()
            found = frozenset(
                i
                for i, (s, b) in enumerate(zip(small.seen, large.seen, strict=True))
                if s.derives and [t.shape for t in s.outputs] != [t.shape for t in b.outputs]
            )
            if not found:
                break
            spreads = spreads | found
        moved = [self._pass(replaced(self.small, j, self._other, self._views), spreads) for j in range(SMALL)]
        if any([s.func for s in m.seen] != [s.func for s in small.seen] for m in moved):
            _refuse_path()
        indices = range(len(small.seen))
        calls = [_call(small.seen[i], large.seen[i], [m.seen[i] for m in moved]) for i in indices]
        outputs = [
            record_axis(output, large.outputs[i], [m.outputs[i] for m in moved], "the model's output")
            for i, output in enumerate(small.outputs)
        ]
        return Script(calls, outputs)

    def _pass(self, inputs: Any, spreads: frozenset[int]) -> Passed:
        args, kwargs = inputs
        prober = _Prober(
            {id(root.tensor): root for root in self._parameters},
            spreads,
            {
                id(t): t
                for t, old in zip(tensors_in(inputs), tensors_in(self._inputs), strict=True)
                if t is not old
            },
        )
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(
                PROBE_SEED
            )  # the same dropout in every pass; the caller's generator is restored
            with Watch(prober, DECOMPOSITIONS, FORBIDDEN):
                result = self._model(*args, **kwargs)
        return Passed(
            prober.seen, [tensor.detach().clone() for tensor in tensors_in(result) if tensor.requires_grad]
        )


def _refuse_path() -> NoReturn:
    refuse(
        "the forward pass to make the same calls for every batch",
        "calls that differ between random batches",
        "remove control flow that depends on the data or on the batch size",
    )


def _call(small: Seen, large: Seen, moved: Sequence[Seen]) -> Call:
    if small.derives:
        return Call(small.func, small.names, derives=True)
    where = f"{name_of(small.func)} with {', '.join(small.names)}"
    if len(small.outputs) != 1:
        refuse("a call with one output", f"{len(small.outputs)} outputs of {where}", "split after the call")
    axes = tuple(
        None
        if small.is_tracked[i]
        else record_axis(tensor, large.inputs[i], [m.inputs[i] for m in moved], f"an input of {where}")
        for i, tensor in enumerate(small.inputs)
    )
    output = record_axis(
        small.outputs[0], large.outputs[0], [m.outputs[0] for m in moved], f"the output of {where}"
    )
    if output is None:
        refuse(
            "an output with one row of entries per record",
            f"{where} gives one value for all records",
            "keep the records apart until the per-sample losses",
        )
    return Call(small.func, small.names, derives=False, axes=axes, output=output)


def record_axis(small: Tensor, large: Tensor, moved: Sequence[Tensor], what: str) -> RecordAxis | None:
    """The axis that follows the number of records, or None for a constant; refuses what mixes records."""
    followers = [
        axis
        for axis, (a, b) in enumerate(zip(small.shape, large.shape, strict=True))
        if a != b and a * LARGE == b * SMALL
    ]
    if len(followers) > 1 or any(
        a != b and axis not in followers
        for axis, (a, b) in enumerate(zip(small.shape, large.shape, strict=True))
    ):
        _refuse_mixing(
            what, f"shape {tuple(small.shape)} for {SMALL} records, {tuple(large.shape)} for {LARGE}"
        )
    changes = [_changed(small, other) for other in moved]
    if not followers:
        if any(bool(change.any()) for change in changes):
            _refuse_mixing(what, "entries of no record's own move when one record changes")
        return None
    axis = followers[0]
    for candidate in (RecordAxis(axis), RecordAxis(axis, minor=True)):
        if all(_only(candidate, change, j) for j, change in enumerate(changes)):
            if small.shape[axis] > SMALL and not any(bool(change.any()) for change in changes):
                _refuse_mixing(what, "several rows per record, in an order that nothing shows")
            return candidate
    _refuse_mixing(what, "replacing one record moves entries of the others")


def _changed(first: Tensor, second: Tensor) -> Tensor:
    same = (first == second) | ((first != first) & (second != second))  # NaN equals NaN here
    return ~same


def _only(axis: RecordAxis, change: Tensor, record: int) -> bool:
    by_record = axis.split(change, SMALL)
    return not any(bool(by_record[j].any()) for j in range(SMALL) if j != record)


def _refuse_mixing(what: str, came: str) -> NoReturn:
    refuse(
        f"{what} to keep the records apart",
        came,
        "remove the op that mixes records (batch statistics, in-batch comparisons), or give it one record's view",
    )
