"""Measure a family: the error of its per-record norms, and a private step beside a plain one."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

import discreet
from discreet.engine.engine import Engine
from research.families import adapters, others, text, vision
from research.families.family import MEASURED, SMALL, Family, Inputs, Scale, losses_of

FAMILIES = (*text.FAMILIES, *adapters.FAMILIES, *vision.FAMILIES, *others.FAMILIES)
_SEED = 3


def made(family: Family, scale: Scale) -> tuple[nn.Module, Inputs]:
    """The model in its mode, and inputs."""
    torch.manual_seed(0)
    return family.make(scale).train(family.is_training), family.inputs(scale)


def norm_error(family: Family, scale: Scale = SMALL) -> float:
    """The largest relative difference between the engine's norms and autograd's, one record at a time."""
    model, (args, named) = made(family, scale)
    truth = _by_autograd(model, (args, named))
    engine = Engine(model)
    try:
        engine.begin(scale.records)
        torch.manual_seed(_SEED)  # the same dropout as in the truth
        engine.follow((args, named), scale.records)
        engine.backward(losses_of(model(*args, **named)))
        return float(((engine.norms()[0] - truth).abs() / truth).max())
    finally:
        engine.close()


def _by_autograd(model: nn.Module, inputs: Inputs) -> Tensor:
    """The norm of each record's gradient, one call of autograd for each."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    args, named = inputs
    torch.manual_seed(_SEED)
    norms = []
    for loss in losses_of(model(*args, **named)):
        gradients = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        norms.append(torch.stack([g.double().norm() for g in gradients if g is not None]).norm())
    return torch.stack(norms)


def row(family: Family) -> dict[str, Any]:
    """Everything that the page says of a family."""
    model, (args, named) = made(family, MEASURED)
    found = discreet.check(model, named if named else args, loss=lambda output, inputs: losses_of(output))
    cost: dict[str, Any] = {"refusals": found.refusals}
    if found.private is not None:
        cost["over_plain"] = round(found.private.seconds / found.plain.seconds, 2)
        cost["plain"], cost["private"] = asdict(found.plain), asdict(found.private)
    return {
        "library": family.library,
        "version": version(family.library),
        "settings": family.settings,
        "norm_error": norm_error(family),
        "parameters": found.parameters,
        "trained": found.trained,
        "records": found.records,
        **cost,
    }
