"""The steps that are timed: plain SGD, the floor, discreet, and per-record gradients by `torch.func`.

Every row is a whole SGD step on the same batch; private rows have the same clipping norm and noise.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet import methods
from discreet.accounting.events import Event
from discreet.accounting.ledger import Ledger
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.memory import micro_batch_for
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon, OwnLoader
from discreet.stages.update import update
from discreet.training.step import PrivateStep, RunState
from research.benchmarks.models import Task

CLIP, NOISE, RATE = 1.0, 1.0, 1e-3
Step = Callable[[], None]


class AbsentError(Exception):
    """A row that cannot run here; the message says why."""


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to take a step."""

    name: str
    about: str
    make: Callable[[Task], Step]
    is_peer: bool = False


def own_copy(task: Task) -> Task:
    """The same batch for a model of its own."""
    return dataclasses.replace(task, model=copy.deepcopy(task.model))


def _sgd(task: Task) -> torch.optim.Optimizer:
    return torch.optim.SGD(task.model.parameters(), lr=RATE)


def plain(task: Task) -> Step:
    """Forward, backward of the mean loss, update."""
    optimizer = _sgd(task)

    def step() -> None:
        F.cross_entropy(task.model(task.inputs), task.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def floor(task: Task) -> Step:
    """A plain step plus torch's normal noise on every gradient: a lower bound for private steps."""
    optimizer, std = _sgd(task), NOISE * CLIP / task.batch

    def step() -> None:
        F.cross_entropy(task.model(task.inputs), task.labels).backward()
        for parameter in task.model.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(torch.empty_like(parameter).normal_(std=std))
        optimizer.step()
        optimizer.zero_grad()

    return step


def bound(recipe: Recipe, batch: int) -> Plan:
    """A plan with more steps than a benchmark takes, for batches that the caller provides."""
    horizon = Horizon.of(records=100 * batch, batch=batch, steps=100_000)
    return recipe.using(sampling=OwnLoader()).bind(noise=NOISE, horizon=horizon, delta=1e-7)


def private(task: Task, recipe: Recipe | None = None) -> Step:
    """Everything that `Private` does for a step: watch every call, charge, norms, clip, sum, cipher noise, update."""
    plan = bound(recipe or methods.dp_sgd(clip=CLIP), task.batch)
    engine, streams, progress, world = Engine(task.model), Streams.from_os(), RunState(), World.current()
    header = {"plan": plan.digest, "relation": str(plan.relation), "delta": plan.delta}
    ledger, optimizer = Ledger.in_memory(header), _sgd(task)
    micro = micro_batch_for(engine, (task.inputs,), records=task.batch)
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]

    def charge(event: Event, step: int) -> None:
        ledger.append(event, step=step)

    def step() -> None:
        batch = PrivateStep(plan, engine, progress, streams, charge, world)
        for inputs, labels in zip(task.inputs.split(micro), task.labels.split(micro), strict=True):
            engine.begin(len(labels))
            engine.follow((inputs, labels), len(labels))
            batch.add(F.cross_entropy(task.model(inputs), labels, reduction="none"))
        update(optimizer, parameters, batch.release(), plan.selection.frozen)

    return step


def functional(task: Task) -> Step:
    """vmap of grad over the records, then clip, sum and add noise: the usual code by hand."""
    model, optimizer = task.model, _sgd(task)
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    def loss(parameters: dict[str, Tensor], inputs: Tensor, label: Tensor) -> Tensor:
        scores = torch.func.functional_call(model, parameters, (inputs.unsqueeze(0),))
        return F.cross_entropy(scores, label.unsqueeze(0))

    per_sample: Any = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        detached = {name: parameter.detach() for name, parameter in named.items()}
        grads = per_sample(detached, task.inputs, task.labels)
        norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads.values()]).norm(dim=0)
        weights = (CLIP / norms).clamp(max=1)
        for name, grad in grads.items():
            total = torch.tensordot(weights, grad, 1)
            total.add_(torch.empty_like(total).normal_(std=NOISE * CLIP))
            named[name].grad = total.div_(task.batch)
        optimizer.step()
        optimizer.zero_grad()

    return step


OWN = (
    Row(name="plain", about="plain SGD", make=plain),
    Row(name="floor", about="plain SGD and normal_", make=floor),
    Row(name="discreet", about="discreet", make=private),
)
BY_HAND = Row(name="torch.func", about="torch.func by hand", make=functional, is_peer=True)
