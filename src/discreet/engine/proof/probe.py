"""Learning a forward pass on random inputs of the public shape: which calls, and which axis is the record.

This is the second line: each call is proven by itself (call_proof.py), and this shows that the whole keeps to it, and
what the engine needs to know of it. Nothing here sees private data. The pass runs for two batch sizes, and with some
records replaced such that every two are told apart. An axis is the record axis if its size follows the number of
records and only entries of replaced records move; a value that moves with the number of records is refused, for that
number is private. Passes with randomness beyond dropout are repeated under other seeds, to see which settings vary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.check import Refused, refuse, require
from discreet.core.secret_draws import seed_default_generators
from discreet.engine.proof.axes import OUTPUT, AxisSearch, same_for_every_size
from discreet.engine.proof.forbidden import FORBIDDEN
from discreet.engine.proof.generic_values import separating
from discreet.engine.proof.passes import DRAWS, Draw, Passed, ProbeMode, Prober, SeenCall, rows_of
from discreet.engine.trace.capture import Call, CallWatch, ForwardTrace, Marks, TracedStep, Tracked, tensors_in
from discreet.engine.trace.decompose import DECOMPOSITIONS
from discreet.engine.trace.settings import LARGE, SMALL, learned

PROBE_SEED = 20_011
_OTHER_SEEDS = range(1, 9)  # what happens with probability p in a pass is overlooked with (1 - p)^9


class UnclearError(Refused):
    """Nothing shows on these random inputs; on others it may."""


class Probe:
    """Learns the script of one model for inputs of one shape.

    batched  for each tensor of `inputs`, whether its first axis is the record
    views    rows of each record, side by side
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[Tracked], inputs: Any, batched: Sequence[bool], views: int = 1
    ) -> None:
        self._model, self._parameters, self._views = model, parameters, views
        self._inputs, self._batched, self._copies = inputs, tuple(batched), False

    def learn(self) -> tuple[ForwardTrace, Any]:
        """The script of a pass, and the random inputs for SMALL records that showed it.

        Refuses what cannot be proven. Random inputs that the model cannot take (it fails, or gives NaN, in
        which nothing shows) are drawn again from another distribution. If it can take none, the failure that came most
        often is raised.
        """
        failures: list[Exception] = []
        for draw in DRAWS:
            saved = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
            try:
                return self._learn(draw)
            except Exception as error:  # the model's own: it wants other numbers, or fails on all
                _restore(self._model, saved)
                if isinstance(error, Refused) and not isinstance(error, UnclearError):
                    raise
                failures.append(error)
        told = [str(error) for error in failures]
        raise max(failures, key=lambda one: (told.count(str(one)), isinstance(one, Refused)))

    def _learn(self, draw: Draw) -> tuple[ForwardTrace, Any]:
        generator = torch.Generator().manual_seed(PROBE_SEED)
        small = draw.inputs(self._inputs, self._batched, SMALL * self._views, generator)
        large = draw.extended(small, self._batched, (LARGE - SMALL) * self._views, generator)
        first, grown, spreads = self._settle(small, large)
        state = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        _repeats(first, self._pass(small, spreads))
        _no_nan(first, grown)
        searches = _Searches(first, grown)
        fresh = large
        for record in range(LARGE):
            fresh = draw.replaced(fresh, self._batched, record, self._views, generator)
        *halves, last = separating(LARGE)
        before, is_fresh = grown, torch.zeros(LARGE, dtype=torch.bool)
        for half in halves:  # each record is in two of all: it becomes another in the first, and itself in the second
            is_fresh = is_fresh ^ half
            other = self._pass(rows_of(fresh, large, self._batched, is_fresh, self._views), spreads)
            _same_path(first, other)
            _settings_stay(grown, other)
            searches.compare(before, other, half)
            before = other
        searches.compare(before, grown, last)  # so that after the last one all are as they were
        script = searches.script(self._batched, first.path)
        still, grown_still, redrawn = first, grown, []  # of the last, settings alone
        if first.draws:
            still, grown_still = (self._pass(inputs, spreads, ProbeMode.QUIET) for inputs in (small, large))
        if still.draws:  # more than dropout
            for seed in _OTHER_SEEDS:
                other = self._pass(large, spreads, seed=seed)
                _same_path(first, other)
                redrawn.append(other.settings)
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

    def _pass(self, inputs: Any, spreads: frozenset[int], manner: ProbeMode = ProbeMode.PLAIN, seed: int = 0) -> Passed:
        args, kwargs = inputs
        tracked = {id(root.tensor): root for root in self._parameters}
        records = [t for t, own in zip(tensors_in(inputs), self._batched, strict=True) if own]
        prober = Prober(tracked, spreads, Marks(tracked, records), manner, self._copies)
        device = self._parameters[0].tensor.device
        with forked_generator(device, PROBE_SEED + seed):
            before = _drawn(device)
            with torch.enable_grad(), CallWatch(prober, DECOMPOSITIONS, FORBIDDEN):
                result = self._model(*args, **kwargs)
            draws = _drawn(device) != before
        if prober.is_overwritten:
            self._copies = True
            return self._pass(inputs, spreads, manner, seed)
        outputs = [tensor.detach().clone() for tensor in tensors_in(result) if tensor.requires_grad]
        return Passed(prober.seen, prober.path, outputs, draws)


@contextmanager
def forked_generator(device: torch.device, seed: int) -> Iterator[None]:
    """Torch's global generators, seeded inside the block and restored after it: the same draws in every pass."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed_default_generators(seed)
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
    calls = [(seen.func, seen.names, len(seen.inputs)) for seen in first.seen]
    for other in others:
        if (
            [(seen.func, seen.names, len(seen.inputs)) for seen in other.seen] != calls
            or [step.func for step in other.path] != [step.func for step in first.path]
            or len(other.outputs) != len(first.outputs)
        ):
            refuse(
                "the forward pass to make the same calls for every batch",
                "calls that differ between random batches",
                "remove control flow that depends on the data, on the batch size or on chance (layers that are skipped "
                "at random: layerdrop=0.0 in a configuration of transformers)",
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


def _settings_stay(grown: Passed, other: Passed) -> None:
    require(
        other.settings == grown.settings,
        "calls with the same axes and sizes for all records",
        "an axis or a size that moves with the records",
        "pad to a public length and mask",
    )


def _same_values(first: Passed, grown: Passed) -> None:
    """Refuse values of a record that move with the number of records."""
    for a, b in zip(first.tensors(), grown.tensors(), strict=True):
        same_for_every_size(a, b)


def _no_nan(*passes: Passed) -> None:
    if any(_has_nan(tensor) for one in passes for tensor in one.tensors()):
        raise UnclearError(
            "Expected numbers from the model on random inputs, got NaN, in which nothing shows. Remedy: make "
            "the model take any floats and any small whole numbers, for example by clamping its inputs."
        )


def _has_nan(tensor: Tensor) -> bool:
    total = tensor.sum()  # NaN if one entry is, or for infinities of both signs
    return bool(total != total) and bool(tensor.isnan().any())


def _equal(first: Passed, second: Passed) -> bool:
    a, b = list(first.tensors()), list(second.tensors())
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def _same(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(first, second) or bool(((first == second) | ((first != first) & (second != second))).all())


def _buffers_unchanged(model: nn.Module, state: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        require(
            name in state and _same(buffer, state[name]),
            "buffers that stay as they are in the forward pass",
            f"buffer {name} changes",
            "turn off running statistics: they store private records in the model",
        )


class _Searches:
    """The record axes of all that a pass computes; passes with replaced records are compared and let go of."""

    def __init__(self, first: Passed, grown: Passed) -> None:
        self._is_moved = False
        self._calls = [_CallAxes(*pair) for pair in zip(first.seen, grown.seen, strict=True)]
        self._outputs = [AxisSearch(*pair, OUTPUT) for pair in zip(first.outputs, grown.outputs, strict=True)]

    def compare(self, before: Passed, moved: Passed, replaced: Tensor) -> None:
        for call, old, new in zip(self._calls, before.seen, moved.seen, strict=True):
            call.compare(old, new, replaced)
        for search, was, tensor in zip(self._outputs, before.outputs, moved.outputs, strict=True):
            search.compare(was, tensor, replaced)
            self._is_moved |= not _same(was, tensor)

    def script(self, batched: tuple[bool, ...], path: list[TracedStep]) -> ForwardTrace:
        calls, outputs = [call.found() for call in self._calls], [search.found() for search in self._outputs]
        if not self._is_moved:
            raise UnclearError(
                "Expected outputs that move with the inputs, got "
                f"{'the same for different random inputs' if outputs else 'no differentiable tensor'}. Remedy: "
                "return the predictions from forward() as tensors, in tuples, lists or dictionaries."
            )
        return ForwardTrace(batched, calls, path, outputs)


class _CallAxes:
    """The record axes of one call with parameters."""

    def __init__(self, small: SeenCall, large: SeenCall) -> None:
        self._small = small
        if small.derives:
            return
        require(
            len(small.outputs) == 1 and small.is_single,
            "a call with one output",
            f"{small.where} with several",
            "split the parameter's part into a call of its own",
        )
        self._inputs = [
            None if a is None or b is None else AxisSearch(a, b, f"an input of {small.where}")
            for a, b in zip(small.inputs, large.inputs, strict=True)
        ]
        self._output = AxisSearch(small.outputs[0], large.outputs[0], f"the output of {small.where}")

    def compare(self, before: SeenCall, moved: SeenCall, replaced: Tensor) -> None:
        if self._small.derives:
            require(
                all(_same(a, b) for a, b in zip(before.outputs, moved.outputs, strict=True)),
                f"{self._small.where} to depend on parameters alone",
                "a result that moves with the records",
                "keep the records on an axis of their own: this looks like a statistic of the batch",
            )
            return
        pairs = zip([*before.inputs, *before.outputs], [*moved.inputs, *moved.outputs], strict=True)
        for search, (was, tensor) in zip([*self._inputs, self._output], pairs, strict=True):
            if search is not None and was is not None and tensor is not None:
                search.compare(was, tensor, replaced)

    def found(self) -> Call:
        seen = self._small
        if seen.derives:
            return Call(seen.func, seen.names, seen.settings, derives=True)
        output = self._output.found()
        if output is None:
            refuse(
                "an output with one row of entries per record",
                f"{seen.where} gives one value for all records",
                "keep the records apart until the per-sample losses",
            )
        axes = tuple(None if search is None else search.found() for search in self._inputs)
        return Call(seen.func, seen.names, seen.settings, derives=False, axes=axes, output=output)
