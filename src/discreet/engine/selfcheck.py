"""The dry run: the engine against plain autograd, on random inputs of the public shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from discreet.core.check import refuse, require
from discreet.engine.factors.parts import Factors
from discreet.engine.layout import Layout
from discreet.engine.memory import kept_bytes, largest_kept, tally
from discreet.engine.proof.forbidden import FORBIDDEN
from discreet.engine.proof.probe import PROBE_SEED, forked_generator
from discreet.engine.recorder import REDUCED, Collector, Recorder
from discreet.engine.trace.capture import CallWatch, ForwardTrace, Tracked, tensors_in
from discreet.engine.trace.decompose import DECOMPOSITIONS
from discreet.engine.trace.settings import SMALL

if TYPE_CHECKING:
    from discreet.engine.engine import Engine

# Relative to a parameter's own gradient, and to the whole gradient of the record (for gradients that are zero
# but for rounding).
_TOLERANCE = {torch.float64: (1e-6, 1e-11), torch.float32: (2e-3, 1e-5)}
_HALF_TOLERANCE = (0.2, 2e-2)


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


UNSEEN = (
    "move the computation into forward(); pass use_reentrant=False to torch.utils.checkpoint "
    "(gradient_checkpointing_kwargs of transformers); replace scripted modules and autograd functions of your own"
)


def verify(model: nn.Module, roots: Sequence[Tracked], layout: Layout, script: ForwardTrace, inputs: Any) -> None:
    """Refuse a script whose per-sample gradients are not autograd's.

    Compares, record by record and parameter by parameter, with autograd's gradient of that record's loss,
    where the losses are a random function of the model's outputs.
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
        collector = Collector(recorder.uses, layout)
        collector.watch()  # as in training: while the backward pass runs
        _losses(script, output).sum().backward()
        recorder.fill()
    with torch.no_grad():
        factors = collector.finish()
    script.saved_bytes, script.kept_bytes = saved.bytes / SMALL, kept_bytes(factors) / SMALL
    script.largest = largest_kept(factors)
    with torch.enable_grad():
        expected = _by_autograd(roots, lambda: _losses(script, run()))
    half = recorder.is_reduced or any(root.tensor.dtype in REDUCED for root in roots)
    with torch.no_grad():
        whole = torch.stack([row_norm(piece) for piece in expected]).square().sum(0).sqrt()
        for root, factor, truth in zip(roots, factors, expected, strict=True):
            _compare(root.name, factor, truth, whole, half)


def row_norm(rows: Tensor) -> Tensor:
    norms: Tensor = rows.double().reshape(rows.shape[0], -1).norm(dim=1)
    return norms


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


def _by_autograd(roots: Sequence[Tracked], losses: Callable[[], Tensor]) -> list[Tensor]:
    """The truth, per parameter [SMALL, *shape]."""
    parameters = [root.tensor for root in roots]
    rows: list[list[Tensor]] = [[] for _ in roots]
    for loss in losses():
        grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        for row, parameter, grad in zip(rows, parameters, grads, strict=True):
            row.append(torch.zeros_like(parameter) if grad is None else grad)
    return [torch.stack(row).detach() for row in rows]


def _compare(name: str, factors: Factors | None, truth: Tensor, whole: Tensor, half: bool) -> None:
    """The gradients of one parameter, their norms and one weighted sum, against the truth."""
    dtype = torch.float64 if truth.dtype == torch.float64 else torch.float32
    own, noise = _HALF_TOLERANCE if half else _TOLERANCE[dtype]
    sizes = row_norm(truth)
    allowed = own * sizes + noise * whole
    if factors is None:
        found, norms, total = torch.zeros_like(truth), torch.zeros_like(sizes), truth.new_zeros(1, *truth.shape[1:])
    else:
        found, norms = factors.instantiate(0, SMALL), factors.norms
        total = truth.new_zeros(1, *truth.shape[1:], dtype=dtype)  # as in training: not in the weight's own format
        factors.add_weighted(torch.linspace(0.5, 1.5, SMALL, device=truth.device).unsqueeze(0), total)
    weighted = torch.tensordot(torch.linspace(0.5, 1.5, SMALL, device=truth.device).to(truth), truth, 1)
    gap = row_norm(found - truth)
    right = (gap <= allowed) & (norms >= sizes - allowed) & (norms <= sizes + allowed)
    summed = row_norm(total - weighted) <= 2 * allowed.sum()
    require(
        bool(right.all()) and bool(summed.all()),
        f"the per-sample gradients of {name} to equal autograd's on random inputs",
        f"a relative difference of {float((gap / sizes.clamp(min=1e-30)).max()):.1e}",
        "remove gradients inside forward() and ops that mix records in the backward pass; else report the "
        "model. Freezing the parameter avoids it",
    )
