"""The dry run: the engine against plain autograd, on random inputs of the public shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from discreet.core.check import refuse, require
from discreet.engine.factors.collector import Collector
from discreet.engine.factors.gradients import KeptFactors
from discreet.engine.factors.parts import Factors
from discreet.engine.layout import Layout
from discreet.engine.memory import kept_bytes, largest_kept, tally
from discreet.engine.proof.forbidden import FORBIDDEN
from discreet.engine.proof.probe import PROBE_SEED, forked_generator
from discreet.engine.recorder import REDUCED, Recorder
from discreet.engine.trace.capture import CallWatch, ForwardTrace, Tracked, tensors_in
from discreet.engine.trace.decompose import DECOMPOSITIONS
from discreet.engine.trace.settings import SMALL

if TYPE_CHECKING:
    from discreet.engine.engine import Engine

# Relative to a parameter's own gradient, and to the whole gradient of the record (for gradients that are zero
# but for rounding). An error that is accepted moves a sum by less than a thousandth of a clip. Rounding in float32 came
# to 5e-7 of the whole gradient, in 13 models of the benchmarks, and to 1.4e-6 in 40 families.
_TOLERANCE = {torch.float64: (1e-6, 1e-11), torch.float32: (5e-4, 1e-5)}
_TF32_TOLERANCE = (2e-3, 1e-5)  # GPUs may round the factors of products to 10 bits
_HALF_TOLERANCE = (0.2, 2e-2)
_CLOSE = 0.2  # of the tolerance: a weighted sum must be closer than each record
_PIECE = 1 << 17  # entries whose copy in float64 stays in the cache: pages of new memory take longer than the sums
_WEIGHTS = [0.6180339887, 1.4142135624, 0.8862269255]  # no small whole multiples of these cancel


def self_check(engine: Engine, args: Any, kwargs: Any, records: int) -> None:
    """Refuse a model whose per-sample gradients the engine gets wrong, before any private record is seen.

    The engine does the same by itself, the first time that it meets inputs of a new shape.
    """
    engine.script(args, kwargs, records)


@contextmanager
def untouched(parameters: Sequence[Tracked], remedy: str) -> Iterator[None]:
    """Refuse a backward pass, inside the block, that reaches a parameter by itself."""
    kept = [root.tensor.grad for root in parameters]
    for root in parameters:
        root.tensor.grad = None
    try:
        yield
        touched = [root.name for root in parameters if root.tensor.grad is not None]
        require(
            not touched,
            "every use of a parameter to happen inside the model's forward pass, as a torch function",
            f"a use that was not seen of {', '.join(touched[:3])}",
            remedy,
        )
    except CheckpointError as error:
        refuse(
            "a checkpointed region that computes the same when it runs again",
            str(error).splitlines()[0],
            "turn activation checkpointing off and use a smaller micro_batch, which saves memory too and does not "
            "change the result",
        )
    finally:
        for root, gradient in zip(parameters, kept, strict=True):
            root.tensor.grad = gradient


def refuse_reduced(trained: Mapping[str, Tensor]) -> None:
    """Refuse, and remove, gradients that FSDP has reduced: of uses of parameters that no watched pass made."""
    left = [name for name, parameter in trained.items() if parameter.grad is not None]
    for name in left:
        trained[name].grad = None
    expected = "every use of a parameter to happen inside the model's forward pass"
    require(not left, expected, f"a use of {', '.join(left[:3])} outside of it", UNSEEN)


UNSEEN = (
    "move the computation into forward(); pass use_reentrant=False to torch.utils.checkpoint "
    "(gradient_checkpointing_kwargs of transformers); replace scripted modules and autograd functions of your own"
)


def verify(model: nn.Module, roots: Sequence[Tracked], layout: Layout, script: ForwardTrace, inputs: Any) -> None:
    """Refuse a script whose per-sample gradients are not autograd's.

    Compares, parameter by parameter, one weighted sum of the gradients with autograd's, where the losses are a random
    function of the model's outputs. An error in the gradient of any record shows in it, for the gradients come from a
    pass that does not know the weights. Where the sum is not very close, each record is compared, which decides.
    """
    device = roots[0].tensor.device
    args, kwargs = inputs

    def run() -> Any:
        with forked_generator(device, PROBE_SEED + 2):
            return model(*args, **kwargs)

    with torch.enable_grad(), untouched(roots, UNSEEN):
        recorder = Recorder(roots, script, SMALL, inputs)
        with CallWatch(recorder, DECOMPOSITIONS, FORBIDDEN), tally([root.tensor for root in roots]) as saved:
            output = run()
            for use in recorder.uses:  # a plain step saves the inputs of its layers, too
                for tensor in use.record_tensors():
                    saved.pack(tensor)
        recorder.finish()
        _no_float16(recorder.dtypes | {root.tensor.dtype for root in roots})
        kept = KeptFactors(layout)
        collector = Collector(recorder.uses, kept.settle)
        collector.watch()  # as in training: while the backward pass runs
        _losses(script, output).sum().backward()
        recorder.fill()
    with torch.no_grad():
        collector.finish()
    factors = kept.found
    # The factors of one checkpointed region at a time, or those of all calls.
    script.saved_bytes, script.kept_bytes = saved.bytes / SMALL, kept_bytes(factors) / SMALL / max(recorder.regions, 1)
    script.largest = largest_kept(factors)
    half = any(dtype in REDUCED for dtype in recorder.dtypes | {root.tensor.dtype for root in roots})
    comparisons = [_GradientComparison(root, own, half) for root, own in zip(roots, factors, strict=True)]
    with torch.enable_grad():
        losses = _losses(script, run())
        weighted = (losses * torch.tensor(_WEIGHTS).to(losses)).sum()
    _give_each(weighted, comparisons, _GradientComparison.meet_sum)
    wholes = [math.hypot(*(one.sizes[record] for one in comparisons)) for record in range(SMALL)]
    if all(one.is_close(wholes) for one in comparisons):
        return
    for record, loss in enumerate(losses):
        _give_each(loss, comparisons, partial(_GradientComparison.meet, record=record))
        whole = math.hypot(*(one.size for one in comparisons))
        for one in comparisons:
            one.check(record, whole)
    for one in comparisons:
        one.check_sum()


def _give_each(loss: Tensor, comparisons: Sequence[_GradientComparison], meet: Callable[..., None]) -> None:
    """Let each comparison meet autograd's gradient, or None; no more than one gradient of a parameter is held."""
    waiting = {id(one.parameter): one for one in comparisons}

    def take(one: _GradientComparison, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            meet(waiting.pop(id(one.parameter)), gradient)
        return gradient.new_zeros(()).expand_as(gradient)  # in place of the gradient, which may go

    hooks = [one.parameter.register_hook(partial(take, one)) for one in comparisons]
    try:
        parameters = [one.parameter for one in comparisons]
        torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    with torch.no_grad():
        for one in waiting.values():
            meet(one, None)


def _length(one: Tensor, other: Tensor | None = None) -> float:
    """The norm of a gradient, or of the difference of two, some entries at a time."""
    pieces = one.reshape(-1).split(_PIECE)
    others = itertools.repeat(None) if other is None else other.reshape(-1).split(_PIECE)
    gaps = (piece if part is None else piece - part for piece, part in zip(pieces, others, strict=False))
    return math.hypot(*map(_piece_length, gaps))


def _piece_length(piece: Tensor) -> float:
    """In float32 where its squares stay in range: float64 takes three times as long."""
    length = float(torch.linalg.vector_norm(piece)) if piece.dtype == torch.float32 else 0.0
    return length if 1e-15 < length < 1e15 else float(torch.linalg.vector_norm(piece, dtype=torch.float64))


def _no_float16(dtypes: set[torch.dtype]) -> None:
    require(
        torch.float16 not in dtypes,
        "layers that compute in float32 or bfloat16",
        "float16",
        "use bfloat16 (autocast or parameters): gradients in float16 underflow without a GradScaler, and a GradScaler "
        "sets its scale by the gradients of the batch, without noise",
    )


def _losses(script: ForwardTrace, output: Any) -> Tensor:
    """Random, different for every output entry, one number per record."""
    tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    generator = torch.Generator().manual_seed(PROBE_SEED + 3)
    total: Any = 0
    for tensor, axis in zip(tensors, script.outputs, strict=True):
        if axis is None:
            continue  # the same for all records: no per-sample loss can come from it
        by_record = axis.split(tensor, SMALL).reshape(SMALL, -1)
        weights = torch.randn(by_record.shape, generator=generator).to(by_record)
        finite = by_record.isfinite()
        total = total + (by_record.where(finite, 0.0).sin() * weights).sum(1)
    if not isinstance(total, Tensor):
        refuse(
            "a model with an output per record",
            "outputs without a record axis",
            "return per-record predictions and reduce them outside",
        )
    return total


class _GradientComparison:
    """The gradients of one parameter, their norms and one weighted sum, against autograd's."""

    def __init__(self, root: Tracked, factors: Factors | None, half: bool) -> None:
        self._root, self._factors = root, factors
        dtype = torch.float64 if root.tensor.dtype == torch.float64 else torch.float32
        is_on_cpu, is_single = root.tensor.device.type == "cpu", dtype == torch.float32
        rounded = _HALF_TOLERANCE if half else _TF32_TOLERANCE
        self._tolerances = rounded if half or (is_single and not is_on_cpu) else _TOLERANCE[dtype]
        self._norms = [0.0] * SMALL if factors is None else factors.norms.tolist()
        self._dtype, self._allowed, self._gap = dtype, 0.0, 0.0
        self._gap_of_sum = self._gap_of_rows = 0.0
        self.parameter, self.size, self.sizes = root.tensor, 0.0, [0.0] * SMALL

    def meet(self, truth: Tensor | None, *, record: int) -> None:
        """Measure autograd's gradient of one record, and how far the own one is from it."""
        found = None if self._factors is None else self._factors.instantiate(record, record + 1)[0]
        self.size = 0.0 if truth is None else _length(truth)
        self._gap = self.size if found is None else _length(found, truth)

    def check(self, record: int, whole: float) -> None:
        """Refuse the gradient of one record that was met; `whole` is the norm of all its gradients."""
        own, noise = self._tolerances
        allowed, other = own * self.size + noise * whole, abs(self._norms[record] - self.size)
        self._allowed += allowed
        is_right = self._gap <= allowed and other <= allowed
        self._require(is_right, max(self._gap, other) / max(self.size, 1e-30))

    def meet_sum(self, truth: Tensor | None) -> None:
        """Measure how far two sums are from autograd's: as training forms it, and of the gradients one by one."""
        total = torch.zeros(1, *self.parameter.shape, dtype=self._dtype, device=self.parameter.device)
        if self._factors is None:
            self._gap_of_sum = self._gap_of_rows = _length(total, truth)
            return
        self._factors.add_weighted(torch.tensor([_WEIGHTS], device=total.device), total)
        self._gap_of_sum = _length(total, truth)
        total.zero_()
        for record, weight in enumerate(_WEIGHTS):
            found = self._factors.instantiate(record, record + 1)
            self.sizes[record] = _length(found)
            total.add_(found, alpha=weight)
        self._gap_of_rows = _length(total, truth)

    def is_close(self, wholes: Sequence[float]) -> bool:
        """Whether both sums are so close to autograd's that no record can be wrong, and all norms are right.

        Errors of records cancel only if they are multiples of each other by ratios of the weights. What is allowed is
        less than for the record of which least is: errors of a small gradient show among large ones.
        """
        (own, noise), least = self._tolerances, math.inf
        for weight, norm, size, whole in zip(_WEIGHTS, self._norms, self.sizes, wholes, strict=True):
            least = min(least, weight * (_CLOSE * own * size + noise * whole))
            if not abs(norm - size) <= own * size + noise * whole:
                return False
        return self._gap_of_sum <= least and self._gap_of_rows <= least

    def check_sum(self) -> None:
        """Refuse a weighted sum that is not autograd's, after each record was checked."""
        self._require(
            self._gap_of_sum <= max(_WEIGHTS) * self._allowed, self._gap_of_sum / max(math.hypot(*self.sizes), 1e-30)
        )

    def _require(self, right: bool, gap: float) -> None:
        require(
            right,
            f"the per-sample gradients of {self._root.name} to equal autograd's on random inputs",
            f"a relative difference of {gap:.1e}",
            "remove gradients inside forward() and ops that mix records in the backward pass; else report the "
            "model. Freezing the parameter avoids it",
        )
