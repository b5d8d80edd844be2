"""Measure a family: its set-up, the error of its per-record norms, and a private step beside a plain one.

python -m research.families.measure BERT     one family, as a line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

import discreet
from discreet.engine.engine import Engine
from research.families import adapters, others, published, text, vision
from research.families.family import MEASURED, SMALL, Family, Inputs, Scale, losses_of

FAMILIES = (*text.FAMILIES, *adapters.FAMILIES, *vision.FAMILIES, *others.FAMILIES)
ALL = (*FAMILIES, *published.FAMILIES)
"""Also those that need packages in the data folder."""
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
    """Everything that the page says of a family; set-up is right for the first one of a process."""
    model, (args, named) = made(family, MEASURED)
    found = discreet.check(model, named if named else args, loss=lambda output, inputs: losses_of(output))
    cost: dict[str, Any] = {"refusals": found.refusals}
    if found.private is not None and found.setup is not None:
        cost["setup_seconds"] = round(found.setup - found.private.seconds, 2)
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


def row_of_own_process(family: Family) -> dict[str, Any]:
    """The same, in a process of its own: what was proven of calls is kept, and would shorten the set-up of others."""
    command = [sys.executable, "-m", "research.families.measure", family.name]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of the libraries
    torch.set_num_threads(1)
    print(json.dumps(row(next(family for family in ALL if family.name == sys.argv[1]))))
