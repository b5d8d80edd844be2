"""The dry run: the engine against plain autograd, on random inputs of the public shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.stages.capture import tensors_in
from discreet.stages.engine import Engine
from discreet.stages.probe import PROBE_SEED, SMALL, randomised

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}


def self_check(engine: Engine, args: Any, kwargs: Any, records: int) -> None:
    """Refuse a model whose per-sample gradients the engine gets wrong, before any private record is seen.

    Compares, record by record and parameter by parameter, with autograd's gradient of that record's loss, where
    the losses are a random function of the model's outputs. Also refuses buffers that change in the forward
    pass: they would carry private records into the model. The caller's random state and the buffers are restored.
    """
    generator = torch.Generator().manual_seed(PROBE_SEED + 1)
    inputs, named = randomised((args, kwargs), SMALL, records, generator)
    saved = {name: buffer.clone() for name, buffer in engine.model.named_buffers()}
    try:
        engine.script(inputs, named, SMALL)
        _buffers_unchanged(engine, saved)
        engine.begin(SMALL)
        mine = _losses(engine, inputs, named)
        engine.backward(mine)
        found = engine.per_sample(0, SMALL)
        norms = engine.norms()[0]
        engine.discard()
        _compare(engine, found, norms, _by_autograd(engine, inputs, named))
    finally:
        engine.discard()
        for name, buffer in engine.model.named_buffers():
            buffer.copy_(saved[name])


def _losses(engine: Engine, inputs: Any, named: Any) -> Tensor:
    """Random, different for every output entry, one number per record."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(PROBE_SEED + 2)
        output = engine.model(*inputs, **named)
    tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    require(
        bool(tensors),
        "a model whose outputs depend on its trainable parameters",
        "outputs without a gradient",
        "return the predictions from forward()",
    )
    generator = torch.Generator().manual_seed(PROBE_SEED + 3)
    script = engine.script(inputs, named, SMALL)
    total: Any = 0
    for tensor, axis in zip(tensors, script.outputs, strict=True):
        if axis is None:
            continue  # the same for all records: no per-sample loss can come from it
        by_record = axis.split(tensor, SMALL).reshape(SMALL, -1)
        weights = torch.randn(by_record.shape, generator=generator).to(by_record)
        total = total + (by_record.sin() * weights).sum(1)
    if not isinstance(total, Tensor):
        refuse(
            "a model with an output per record",
            "outputs without a record axis",
            "return per-record predictions and reduce them outside",
        )
    return total


def _by_autograd(engine: Engine, inputs: Any, named: Any) -> Tensor:
    parameters = [p for p in engine.model.parameters() if p.requires_grad]
    losses = _losses(engine, inputs, named)
    rows = []
    for loss in losses:
        grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        pieces = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        rows.append(torch.cat([piece.reshape(-1).to(engine.dtype) for piece in pieces]))
    return torch.stack(rows)


def _compare(engine: Engine, found: Tensor, norms: Tensor, expected: Tensor) -> None:
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in engine.model.parameters())
    tolerance = 0.1 if half else _TOLERANCE[engine.dtype]
    scale = expected.norm(dim=1, keepdim=True).nan_to_num().clamp(min=1e-12)
    gap = ((found - expected) / scale).abs()
    both_nan = found.isnan() & expected.isnan()
    wrong = ~(gap <= tolerance) & ~both_nan
    for name, view in zip(engine.layout.names, engine.layout.views(wrong), strict=True):
        require(
            not bool(view.any()),
            f"the per-sample gradients of {name} to equal autograd's on random inputs",
            f"a relative difference of {float(gap.nan_to_num().max()):.1e}",
            "report the model: one of its ops is recorded wrongly. Freezing the parameter avoids it",
        )
    true_norms = expected.double().norm(dim=1)
    too_small = norms < true_norms * (1 - tolerance)
    require(not bool(too_small.any()), "norms that bound the gradients", "smaller norms", "report the model")


def _buffers_unchanged(engine: Engine, saved: dict[str, Tensor]) -> None:
    for name, buffer in engine.model.named_buffers():
        require(
            torch.equal(buffer, saved[name]) or bool(buffer.isnan().any()),
            "buffers that stay as they are in the forward pass",
            f"buffer {name} changes",
            "turn off running statistics: they store private records in the model",
        )
