"""A run's settings, trained again on data of the auditor's choice: the same plan, model, optimizer and loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet.core.streams import Streams
from discreet.data import Task
from discreet.runs import RunConfig, complete
from discreet.runs.defaults import load_task, settle
from discreet.runs.making import make_model, make_optimizer, scale_learning_rate
from discreet.runs.public_records import load_public
from discreet.stages.plan import Plan
from discreet.training.private import Private

_AT_ONCE = 2048

OnStep = Callable[[int, int], None]
"""Receives the number of finished steps and the total."""


@final
@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """The completed config of a run, its data and its plan."""

    config: RunConfig
    task: Task
    plan: Plan

    @classmethod
    def of(cls, config: RunConfig, *, task: Task | None = None) -> Self:
        """The setup of a run; with `task`, on other data of the same kind and with their public number of records."""
        task = load_task(complete(config)) if task is None else task
        config, plan = settle(config, task)
        return cls(config=config, task=task, plan=plan)

    def streams(self, *label: int) -> Streams:
        """Random streams of this training: from the operating system, or another seed for each label."""
        if self.config.seed is None:
            return Streams.from_os()
        root = Streams.seeded(self.config.seed).init
        for number in label:
            root = root.at(number)
        return Streams.seeded(int(root.uniform64(1)[0]))

    def build(self, streams: Streams) -> nn.Module:
        """The model with fresh weights."""
        return make_model(self.config, self.task, self.plan, streams)


def cross_entropy(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The per-record loss of a run."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def fit(
    setup: TrainingSetup,
    model: nn.Module,
    data: TensorDataset,
    *,
    streams: Streams,
    plan: Plan | None = None,
    losses: Callable[[nn.Module, Sequence[Tensor]], Tensor] = cross_entropy,
    inputs: Callable[[Any], Any] | None = None,
    on_step: OnStep | None = None,
) -> None:
    """Train the model in place like a run; it ends with the weights that a run would release.

    plan  the plan to run, if an attacker observes it; losses, inputs  for models with several inputs
    """
    config, played = setup.config, plan if plan is not None else setup.plan
    private = Private(
        model,
        make_optimizer(config, model),
        played,
        data,
        micro_batch=config.micro_batch,
        device=config.device,
        inputs=inputs,
        average=config.average or None if setup.plan.analysis.visible else None,
        streams=streams,
        public=load_public(config, setup.plan, setup.task),
    )
    try:
        for batch in private:
            scale_learning_rate(private, config)
            before = private.progress.step
            private.step(losses(model, batch))
            if on_step is not None and private.settled and private.progress.step > before:
                on_step(private.progress.step, played.horizon.steps)
        if private.average is not None:
            with private.averaged():
                weights = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(weights)
    finally:
        private.close()


@torch.no_grad()
def log_probabilities(model: nn.Module, inputs: Tensor, device: str = "cpu") -> Tensor:
    """The model's log-probabilities [n, classes] in float64 on the CPU; the model's mode is restored."""
    was_training = model.training
    model.eval()
    parts = [model(some.to(device)).cpu().double().log_softmax(1) for some in inputs.split(_AT_ONCE)]
    model.train(was_training)
    return torch.cat(parts)
