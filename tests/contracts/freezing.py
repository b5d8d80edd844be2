"""What a step that leaves coordinates out must keep: noise on all signal, and frozen means frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import loop
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.methods.random_freeze.selection import RankedFreeze
from discreet.stages.plan import Plan, Recipe
from discreet.stages.values import Released, StepContext
from discreet.training.private import Private
from discreet.training.step import PrivateStep, RunState

PER_EPOCH = loop.RECORDS // loop.BATCH


def active_of(released: Released) -> Tensor:
    """The active coordinates of a release."""
    active = torch.ones(released.layout.size)
    if released.mask is not None:
        released.mask.apply_(released.layout.views(active))
    return active.bool()


def steps_of(
    plan: Plan, *, records: int = 30, micro: int = 10, seed: int = 0, net: nn.Module | None = None
) -> list[Released]:
    """The releases of a whole run on fixed batches; the model does not move."""
    net = net if net is not None else loop.model()
    engine, progress, streams = Engine(net), RunState(), Streams.seeded(seed)
    x, y = loop.data().tensors
    out = []
    for _ in range(plan.horizon.steps):
        batch = PrivateStep(plan, engine, progress, streams, lambda event, step: None, World.current())
        for start in range(0, records, micro):
            stop = min(start + micro, records)
            engine.begin(stop - start)
            batch.add(loop.losses(net, x[start:stop], y[start:stop]))
        out.append(batch.release())
    engine.close()
    return out


def _last_step(run: Private) -> StepContext:
    """What the selection saw in the step that was released last."""
    return StepContext(
        step=run.progress.step - 1,
        steps_per_epoch=run.plan.horizon.steps_per_epoch,
        batch=run.plan.horizon.size.batch,
        layout=run._engine.layout,
        streams=run.streams,
    )


def coverage_contract(recipe: Recipe) -> None:
    """Whatever a batch moves in a release carries noise, at every step, and of the rest nothing is there at all."""
    exact, noisy = (steps_of(loop.plan(recipe, noise=noise), seed=3) for noise in (0.0, 1.0))
    for step, (signal, both) in enumerate(zip(exact, noisy, strict=True)):
        for one in (signal, both):
            assert not bool(one.value[~active_of(one)].any()), "a frozen coordinate that is not zero"
        if isinstance(recipe.selection, RankedFreeze) and step >= PER_EPOCH:
            continue  # the masks follow the releases, which differ
        noise = (both.value - signal.value).bool()
        assert not bool((signal.value.bool() & ~noise).any()), "signal without noise"
        assert bool(noise[active_of(both)].all()), "an active coordinate without noise"


def frozen_contract(recipe: Recipe) -> None:
    """In a run with momentum and weight decay, frozen parameters and their state stay where they are."""
    run = loop.private(which=loop.plan(recipe), optimizer=_decaying)
    layout = run._engine.layout
    before = _held(run)
    for x, y in run:
        if not run.step(loop.losses(run.model, x, y)):
            continue
        now, mask = _held(run), run.plan.selection.mask(_last_step(run))
        active = torch.ones(layout.size)
        if mask is not None:
            mask.apply_(layout.views(active))
        for name, value in now.items():
            moved = (value != before[name]) & ~active.bool()
            assert not bool(moved.any()), f"frozen coordinates whose {name} moves"
        before = now


def _decaying(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.1)


def _held(run: Any) -> dict[str, Tensor]:
    """Parameters and velocity, flat; a velocity that has not begun is zero."""
    weights = loop.weights(run.model)
    states = run.optimizer.state_dict()["state"]
    sizes = [parameter.numel() for parameter in run.model.parameters()]
    parts = [
        states[index]["momentum_buffer"].flatten() if index in states else torch.zeros(size)
        for index, size in enumerate(sizes)
    ]
    return {"weights": weights, "velocity": torch.cat(parts).clone()}
