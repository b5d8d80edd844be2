"""Model, optimizer, learning rate and seed of a run, from its config."""

import hashlib

import torch
from torch import nn

from discreet.core.streams import Streams
from discreet.data import Task, build
from discreet.methods.dpsgd_dc.guard import fitting
from discreet.runs.config import RunConfig, learning_rate_factor
from discreet.stages.plan import Plan
from discreet.training.private import Private


def make_model(config: RunConfig, task: Task, plan: Plan, streams: Streams) -> nn.Module:
    seed = int(streams.init.uniform64(1)[0] >> 1)
    model = build(str(config.model), shape=task.shape, classes=task.classes, seed=seed)
    return fitting(model, plan).to(config.device)


def scale_learning_rate(private: Private, config: RunConfig) -> None:
    """Set the learning rate of the next step by its schedule; with SGD, divide by the scale of an adaptive clip.

    The scale is public. A clipped record then moves the model as far as at the start. Without this, larger gradients
    raise the clipping norm, the clipping norm raises the noise, and the noise makes the gradients larger still.
    """
    if config.learning_rate is None:
        return
    factor = learning_rate_factor(config.schedule or "constant", private.progress.step / private.plan.horizon.steps)
    for group in private.optimizer.param_groups:
        group["lr"] = config.learning_rate * factor / (private.progress.scale if config.optimizer == "sgd" else 1.0)


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    assert config.learning_rate is not None
    assert config.momentum is not None
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=config.momentum, weight_decay=decay)


def seed_of(seed: int, start: int) -> int:
    """The seed of each start: a resumed run must not draw the noise of an earlier part again."""
    if start == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"resume {start} of {seed}".encode()).digest()[:16], "big")
