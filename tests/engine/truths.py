"""The truth about per-sample gradients, by means that the engine does not use, and the engine's answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from problems import Inputs, Problem, losses_of
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from discreet.engine.engine import Engine

Losses = Callable[[Any], Tensor]


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    leaves, form = tree_flatten(inputs)
    moved = [t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for t in leaves]
    return tree_unflatten(moved, form)  # type: ignore[no-any-return]


def rows(inputs: Inputs, records: int, start: int, stop: int) -> Inputs:
    """Some records of the inputs; constants stay whole."""
    leaves, form = tree_flatten(inputs)
    cut = [t[start:stop] if t.dim() and t.shape[0] == records else t for t in leaves]
    return tree_unflatten(cut, form)  # type: ignore[no-any-return]


def by_func(model: nn.Module, inputs: Inputs, records: int, losses: Losses = losses_of) -> Tensor:
    """vmap, over the records, of the gradient of a functional call on one: [records, d]."""
    leaves, form = tree_flatten(inputs)
    batched = tuple(0 if t.dim() and t.shape[0] == records else None for t in leaves)
    parameters = {name: p.detach() for name, p in trained(model).items()}

    def one(parameters: dict[str, Tensor], *leaves: Tensor) -> Tensor:
        single = [t if axis is None else t.unsqueeze(0) for t, axis in zip(leaves, batched, strict=True)]
        args, kwargs = tree_unflatten(single, form)
        return losses(functional_call(model, parameters, args, kwargs)).squeeze(0)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # an op without a batching rule
        grads = vmap(grad(one), in_dims=(None, *batched))(parameters, *leaves)
    return torch.cat([grads[name].reshape(records, -1) for name in parameters], 1)


def by_autograd(model: nn.Module, inputs: Inputs, losses: Losses = losses_of) -> Tensor:
    """One autograd gradient for each loss of the batch: [records, d]."""
    parameters = list(trained(model).values())
    args, kwargs = inputs
    found = []
    for loss in losses(model(*args, **kwargs)):
        grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        pieces = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        found.append(torch.cat([piece.reshape(-1) for piece in pieces]))
    return torch.stack(found)


def truth_of(problem: Problem, model: nn.Module, inputs: Inputs, records: int) -> Tensor:
    return by_func(model, inputs, records) if problem.by_func else by_autograd(model, inputs)


@dataclass
class Answer:
    """What the engine says of one batch."""

    norms: Tensor
    total: Tensor
    per_sample: Tensor


def answer(engine: Engine, inputs: Inputs, records: int, weights: Tensor, losses: Losses = losses_of) -> Answer:
    """One batch in one pass."""
    args, kwargs = inputs
    engine.begin(records)
    engine.backward(losses(engine.model(*args, **kwargs)))
    total = engine.zeros()
    engine.add_weighted(weights.view(1, 1, -1), total)
    return Answer(engine.norms()[0], total[0], engine.per_sample(0, records))


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest relative difference of rows (or of one vector), by norm."""
    found, expected = torch.atleast_2d(found).double(), torch.atleast_2d(expected).double()
    sizes = expected.norm(dim=1)
    distance = (found - expected).norm(dim=1)
    if not bool(torch.isfinite(distance).all()):
        return float("inf")
    return float((distance / sizes.clamp(min=1e-30)).where(distance > 0, 0.0).max())


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def disagreement(answer: Answer, truth: Tensor, weights: Tensor) -> float:
    """How far an answer is from the truth: norms, weighted sum and gradients, the worst of the three."""
    norms = truth.double().norm(dim=1)
    return max(
        gap(answer.norms.unsqueeze(1), norms.unsqueeze(1)),
        gap(answer.total, weights.to(truth.dtype) @ truth),
        gap(answer.per_sample, truth),
    )
