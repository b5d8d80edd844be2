"""A run's recipe, trained again on data of the auditor's choice: the same plan, model, optimizer and loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet import data as tasks
from discreet.core.streams import Streams
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.curvature import LinearModel
from discreet.methods.dpsgd_dc.guard import with_clipped_features
from discreet.runs import RunConfig, complete
from discreet.runs.defaults import settle
from discreet.runs.training import make_optimizer
from discreet.stages.plan import Plan
from discreet.training.private import Private

_AT_ONCE = 2048

OnStep = Callable[[int, int], None]
"""Told the steps done, and of how many."""


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A completed config, its data and its plan."""

    config: RunConfig
    task: tasks.Task
    plan: Plan

    @staticmethod
    def of(config: RunConfig, *, task: tasks.Task | None = None) -> Recipe:
        """The recipe of a run; on other data of the same kind, if given, with their public number of records."""
        task = load(complete(config)) if task is None else task
        config, plan = settle(config, task)
        return Recipe(config=config, task=task, plan=plan)

    def streams(self, *label: int) -> Streams:
        """Randomness of this training: from the operating system, or of a seeded config another seed each."""
        if self.config.seed is None:
            return Streams.from_os()
        root = Streams.seeded(self.config.seed).init
        for number in label:
            root = root.at(number)
        return Streams.seeded(int(root.uniform64(1)[0]))

    def build(self, streams: Streams) -> nn.Module:
        """The model with fresh weights."""
        model = tasks.build(
            str(self.config.model),
            shape=self.task.shape,
            classes=self.task.classes,
            seed=int(streams.init.uniform64(1)[0] >> 1),
        )
        analysis = self.plan.analysis
        if isinstance(analysis, LastIterate) and isinstance(analysis.curvature, LinearModel):
            model = with_clipped_features(model, analysis.curvature.features)
        return model.to(self.config.device)


def load(config: RunConfig) -> tasks.Task:
    """The data of a config."""
    own = config.data.endswith(".npz")
    return tasks.load(
        config.data,
        data_dir=None if own else config.data_dir,
        download=config.download and not own,
        classes=config.classes,
        records=config.records if own else None,
        public=config.public_data and own,
    )


def fit(
    recipe: Recipe,
    model: nn.Module,
    data: TensorDataset,
    *,
    streams: Streams,
    plan: Plan | None = None,
    losses: Callable[[nn.Module, Sequence[Tensor]], Tensor] | None = None,
    inputs: Callable[[Any], Any] | None = None,
    on_step: OnStep | None = None,
) -> None:
    """Train the model in place, as a run would; it ends with the weights that a run publishes.

    plan  the one to play, where an attacker listens in; losses, inputs  for models with more than one input
    """
    config = recipe.config
    loss = losses if losses is not None else cross_entropy
    played = plan if plan is not None else recipe.plan
    optimizer = make_optimizer(config, model)
    private = Private(
        model,
        optimizer,
        played,
        data,
        micro_batch=config.micro_batch,
        device=config.device,
        inputs=inputs,
        average=config.average or None if recipe.plan.analysis.visible else None,
        streams=streams,
    )
    try:
        for batch in private:
            if config.optimizer == "sgd" and config.learning_rate is not None:
                for group in optimizer.param_groups:  # over a bound that adapts, as in a run
                    group["lr"] = config.learning_rate / private.progress.scale
            private.step(loss(model, batch))
            if on_step is not None and private.settled:
                on_step(private.progress.step, played.horizon.steps)
        if private.average is not None:
            with private.averaged():
                weights = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(weights)
    finally:
        private.close()


def cross_entropy(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The loss of a run, for each record."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


@torch.no_grad()
def log_probabilities(model: nn.Module, inputs: Tensor, device: str = "cpu") -> Tensor:
    """The model's answers [n, classes], in float64 on the processor; the model is left as it was."""
    was_training = model.training
    model.eval()
    parts = [model(some.to(device)).cpu().double().log_softmax(1) for some in inputs.split(_AT_ONCE)]
    model.train(was_training)
    return torch.cat(parts)
