"""Peers on the same work, each if it is installed (`pip install discreet[bench]`)."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from discreet.bench.models import Task
from discreet.bench.rows import BY_HAND, CLIP, NOISE, OWN, RATE, AbsentError, Row, Step


def _module(name: str) -> Any:
    """A peer's module; peers warn of much, and none of it is about their speed."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise AbsentError("not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _fixed(model: nn.Module) -> nn.Module:
    """Opacus has its own attention and recurrent layers; `fix` puts them in, on a copy."""
    validator = _module("opacus.validators").ModuleValidator
    fixed: nn.Module = model if validator.is_valid(model) else validator.fix(model)
    return fixed


def opacus_hooks(task: Task) -> Step:
    """Opacus 1.6, per-sample gradients by hooks."""
    model = _module("opacus").GradSampleModule(_fixed(task.model))
    optimizer = _module("opacus.optimizers").DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=task.batch,
    )

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(task.inputs), task.labels).backward()
        optimizer.step()

    return step


def opacus_ghost(task: Task) -> Step:
    """Opacus 1.6, ghost clipping: norms in a first backward pass, the clipped sum in a second."""
    module = _module("opacus.grad_sample.grad_sample_module_fast_gradient_clipping")
    optimizers = _module("opacus.optimizers.optimizer_fast_gradient_clipping")
    losses = _module("opacus.utils.fast_gradient_clipping_utils")
    model = module.GradSampleModuleFastGradientClipping(_fixed(task.model), max_grad_norm=CLIP)
    optimizer = optimizers.DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=task.batch,
    )
    criterion = losses.DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(task.inputs), task.labels).backward()
        optimizer.step()

    return step


def fast_dp(task: Task) -> Step:
    """fastDP, its default: mixed ghost clipping with book-keeping."""
    engine = _module("fastDP").PrivacyEngine(
        task.model,
        batch_size=task.batch,
        sample_size=100 * task.batch,
        epochs=1,
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        clipping_fn="Abadi",
        clipping_style="all-layer",
    )
    optimizer = torch.optim.SGD(task.model.parameters(), lr=RATE)
    engine.attach(optimizer)

    def step() -> None:
        F.cross_entropy(task.model(task.inputs), task.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    before = [parameter.detach().clone() for parameter in task.model.parameters()]
    step()
    still = sum(map(torch.equal, before, task.model.parameters()))
    if still:  # another, smaller training: no comparison
        raise AbsentError(f"leaves {still} of {len(before)} parameters untrained")
    return step


def jax_privacy(task: Task) -> Step:
    """JAX Privacy: these models are PyTorch modules, so it can only be reported."""
    _module("jax_privacy")
    raise AbsentError("installed; the models of this table are not written for JAX")


ROWS: tuple[Row, ...] = (
    *OWN,
    Row(name="opacus", about="Opacus hooks", make=opacus_hooks, is_peer=True),
    Row(name="opacus-ghost", about="Opacus ghost", make=opacus_ghost, is_peer=True),
    Row(name="fastdp", about="fastDP", make=fast_dp, is_peer=True),
    BY_HAND,
    Row(name="jax-privacy", about="JAX Privacy", make=jax_privacy, is_peer=True),
)
