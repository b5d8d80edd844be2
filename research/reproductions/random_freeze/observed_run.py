"""Random freeze (paper 001): a run on public data that is observed while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from discreet import data as tasks
from discreet.core.streams import Streams
from discreet.engine.layout import Layout
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.values import StepContext
from discreet.training.private import Private
from research.reproductions.experiment import Curve, Figure

RECORDS, BATCH, DELTA, EPSILON, CLIP, RATE = 60_000, 1200, 1e-5, 7.53, 1.0, 0.9
PER_EPOCH: Final = RECORDS // BATCH
SETTING: Final = (
    "The paper's network is a CNN of 550K parameters on CIFAR-10; ours is an MLP of 118K on Fashion-MNIST, with the "
    "paper's rate 0.02, clip 1, learning rate 1 and no momentum."
)


def complete(recipe: Recipe, epochs: int) -> Plan:
    """The recipe at epsilon 7.53."""
    horizon = Horizon.of(records=RECORDS, batch=BATCH, epochs=epochs)
    return recipe.for_horizon(epsilon=EPSILON, delta=DELTA, horizon=horizon)


def walk(plan: Plan, seed: int, visit: Callable[[Private, int], None]) -> None:
    """Train, and call `visit` with the run and its steps: at the start, one step into each epoch, at the end."""
    task = tasks.load("fashion-mnist")
    model = tasks.build("mlp", shape=task.shape, classes=task.classes, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    streams = Streams.seeded(seed)
    private = Private(model, optimizer, plan, task.train, micro_batch=BATCH // 2, streams=streams)
    try:
        visit(private, 0)
        for x, y in private:
            moved = private.step(F.cross_entropy(model(x), y, reduction="none"))
            if moved and private.progress.step % PER_EPOCH == 1:
                visit(private, private.progress.step)
        visit(private, private.progress.step)
    finally:
        private.close()


def record_gradients(model: nn.Module, count: int) -> Tensor:
    """[records, coordinates]: the exact gradients of the first `count` training records."""
    x, y = (tensor[:count] for tensor in tasks.load("fashion-mnist").train.tensors)
    held = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (one.unsqueeze(0),)), label.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))(held, x, y)
    return torch.cat([each[name].flatten(1) for name in held], 1)


def active_at(private: Private, step: int) -> Tensor:
    """Whether each coordinate is active at a step of the current epoch."""
    named = [(name, tuple(value.shape)) for name, value in private.model.named_parameters()]
    layout = Layout(tuple(name for name, _ in named), tuple(shape for _, shape in named))
    context = StepContext(
        step=step,
        steps_per_epoch=PER_EPOCH,
        batch=BATCH,
        layout=layout,
        streams=private.streams,
        memory=private.progress.memory,
    )
    active = torch.ones(layout.size)
    mask = private.plan.selection.mask(context)
    if mask is not None:
        mask.apply_(layout.views(active))
    return active.bool()


def frame(name: str, title: str, x: str, y: str, curves: Sequence[Curve], *, logarithmic: bool = False) -> Figure:
    """A figure with both axes linear or both logarithmic."""
    return Figure(
        name=name, title=title, x_label=x, y_label=y, curves=tuple(curves), log_x=logarithmic, log_y=logarithmic
    )
