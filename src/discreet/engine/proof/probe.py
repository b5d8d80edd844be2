"""Learning a forward pass on random inputs of the public shape: which calls, and which axis is the record.

Nothing here sees private data. The pass runs for two batch sizes and with single records replaced. An axis is
the record axis if its size follows the number of records and only the replaced record's entries move; a value
that moves with the number of records is refused, for that number is private. A pass that draws more than dropout
is looked at under other seeds, and one that gives something of the records the weight zero with another weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from discreet.core.check import Refused, refuse, require
from discreet.engine.proof.axes import record_axis, same_for_every_size
from discreet.engine.proof.draws import DRAWS, Draw
from discreet.engine.proof.forbidden import FORBIDDEN
from discreet.engine.proof.passes import Passed, ProbeMode, Prober, SeenTensor
from discreet.engine.trace.capture import Call, CallWatch, ForwardTrace, Marks, RecordAxis, Tracked, tensors_in
from discreet.engine.trace.decompose import DECOMPOSITIONS
from discreet.engine.trace.settings import LARGE, SMALL, learned

PROBE_SEED = 20_011
_OTHER_SEEDS = range(1, 9)  # what happens with probability p in a pass is overlooked with (1 - p)^9
_HALVES: Final = tuple(
    tuple(record for record in range(LARGE) if (record >> bit) % 2 == own)
    for bit in range((LARGE - 1).bit_length())
    for own in (0, 1)
)
"""Records by each bit of their number: of any two, each is replaced once while the other is not."""


class UnclearError(Refused):
    """Nothing shows on these random inputs; on others it may."""


class MixingError(Refused):
    """Records move others in some passes."""


@contextmanager
def _unless_it_fails() -> Iterator[None]:
    """Take a model that does not stand another weight as one in which nothing shows."""
    try:
        yield
    except MixingError:
        raise
    except Exception:
        return


class Probe:
    """Learns the script of one model for inputs of one shape.

    batched  for each tensor of `inputs`, whether its first axis is the record
    views    rows of each record, side by side
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[Tracked], inputs: Any, batched: Sequence[bool], views: int = 1
    ) -> None:
        self._model, self._parameters, self._views = model, parameters, views
        self._inputs, self._batched = inputs, tuple(batched)

    def learn(self) -> tuple[ForwardTrace, Any]:
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

    def _learn(self, draw: Draw) -> tuple[ForwardTrace, Any]:
        generator = torch.Generator().manual_seed(PROBE_SEED)
        small = draw.inputs(self._inputs, self._batched, SMALL * self._views, generator)
        large = draw.extended(small, self._batched, (LARGE - SMALL) * self._views, generator)
        first, grown, spreads = self._settle(small, large)
        state = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        _repeats(first, self._pass(small, spreads))

        def replaced(*records: int) -> Any:
            inputs = large
            for record in records:
                inputs = draw.replaced(inputs, self._batched, record, self._views, generator)
            return inputs

        moved = [self._pass(replaced(record), spreads) for record in range(LARGE)]
        _same_path(first, grown, *moved)
        _no_nan(first, grown, *moved)
        _settings_stay(grown, moved)
        script = self._script(first, grown, moved)
        halves = {half: replaced(*half) for half in _HALVES}

        def kept_apart(manner: ProbeMode, seed: int) -> Passed:
            whole = self._pass(large, spreads, manner, seed)
            for half, inputs in halves.items():
                other = self._pass(inputs, spreads, manner, seed)
                _same_path(first, whole, other)
                _apart(script, whole, other, half)
            return whole

        if first.hides:
            with _unless_it_fails():
                kept_apart(ProbeMode.UNHIDDEN, seed=0)
        still, grown_still, redrawn = first, grown, []
        if first.draws:
            still, grown_still = (self._pass(inputs, spreads, ProbeMode.QUIET) for inputs in (small, large))
        if still.draws:  # more than dropout, which keeps records apart
            redrawn = [kept_apart(ProbeMode.PLAIN, seed).settings for seed in _OTHER_SEEDS]
        seeds = _OTHER_SEEDS if still.draws else ()
        if all(_equal(still, self._pass(small, spreads, ProbeMode.QUIET, seed)) for seed in seeds):
            _same_values(still, grown_still)
        _buffers_unchanged(self._model, state)
        return _with_settings(script, first, grown, redrawn), small

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

    def _script(self, first: Passed, grown: Passed, moved: Sequence[Passed]) -> ForwardTrace:
        calls = [_call(seen, grown.seen[i], [m.seen[i] for m in moved]) for i, seen in enumerate(first.seen)]
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
        return ForwardTrace(self._batched, calls, first.path, outputs)

    def _pass(self, inputs: Any, spreads: frozenset[int], manner: ProbeMode = ProbeMode.PLAIN, seed: int = 0) -> Passed:
        args, kwargs = inputs
        tracked = {id(root.tensor): root for root in self._parameters}
        records = [t for t, own in zip(tensors_in(inputs), self._batched, strict=True) if own]
        prober = Prober(tracked, spreads, Marks(tracked, records), manner)
        device = self._parameters[0].tensor.device
        with forked_generator(device, PROBE_SEED + seed):
            before = _drawn(device)
            with torch.enable_grad(), CallWatch(prober, DECOMPOSITIONS, FORBIDDEN):
                result = self._model(*args, **kwargs)
            draws = _drawn(device) != before
        outputs = [tensor.detach().clone() for tensor in tensors_in(result) if tensor.requires_grad]
        return Passed(prober.seen, prober.path, outputs, draws, prober.hides)


@contextmanager
def forked_generator(device: torch.device, seed: int) -> Iterator[None]:
    """Torch's global generators, seeded inside the block and restored after it: the same draws in every pass."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _drawn(device: torch.device) -> bytes:
    """Where torch's generators stand."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else ())]
    return b"".join(state.numpy().tobytes() for state in states)


def _restore(model: nn.Module, saved: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if name in saved and buffer.shape == saved[name].shape:
            buffer.copy_(saved[name])


def _repeats(first: Passed, again: Passed) -> None:
    require(
        _equal(first, again),
        "the same values from the same inputs",
        "a second pass that differs from the first",
        "remove state that a pass leaves behind, and draw randomness from torch's generator only",
    )


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


def _with_settings(
    script: ForwardTrace, first: Passed, grown: Passed, redrawn: Sequence[Sequence[tuple[Any, ...]]]
) -> ForwardTrace:
    every = [
        learned(small, large, others)
        for small, large, *others in zip(first.settings, grown.settings, *redrawn, strict=True)
    ]
    calls = [replace(call, settings=own) for call, own in zip(script.calls, every[: len(script.calls)], strict=True)]
    path = [replace(step, settings=own) for step, own in zip(script.path, every[len(calls) :], strict=True)]
    return replace(script, calls=calls, path=path)


def _settings_stay(grown: Passed, moved: Sequence[Passed]) -> None:
    require(
        all(other.settings == grown.settings for other in moved),
        "calls with the same axes and sizes for all records",
        "an axis or a size that moves with the records",
        "pad to a public length and mask",
    )


def _apart(script: ForwardTrace, whole: Passed, other: Passed, replaced: Sequence[int]) -> None:
    """Refuse entries that moved without being a replaced record's."""
    others = [record for record in range(LARGE) if record not in replaced]
    for axis, before, after in _placed(script, whole, other):
        if axis is not None:
            before, after = (axis.split(tensor, LARGE)[others] for tensor in (before, after))
        if not _same(before, after):
            raise MixingError(
                "Expected records that are kept apart whatever is drawn at random or has the weight zero at first, got "
                "a pass that mixes them. Remedy: draw for each record by itself, and do not exchange records in the "
                "model."
            )


def _placed(script: ForwardTrace, whole: Passed, other: Passed) -> Iterator[tuple[RecordAxis | None, Tensor, Tensor]]:
    """What two passes saw that is not derived from parameters alone, with the axis of its records."""
    for call, one, two in zip(script.calls, whole.seen, other.seen, strict=True):
        if not call.derives:
            axes = *call.axes, call.output
            yield from zip(axes, [*one.inputs, *one.outputs], [*two.inputs, *two.outputs], strict=True)
    yield from zip(script.outputs, whole.outputs, other.outputs, strict=True)


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


def _call(small: SeenTensor, large: SeenTensor, moved: Sequence[SeenTensor]) -> Call:
    if small.derives:
        require(
            all(_same(a, b) for m in moved for a, b in zip(m.outputs, large.outputs, strict=True)),
            f"{small.where} to depend on parameters alone",
            "a result that moves with the records",
            "keep the records on an axis of their own: this looks like a statistic of the batch",
        )
        return Call(small.func, small.names, small.settings, derives=True)
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
    return Call(small.func, small.names, small.settings, derives=False, axes=axes, output=output)
