"""What accuracies are read against: training without privacy, and the answer of the most frequent class."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet.core import check
from discreet.data import Task, build
from discreet.runs.comparison.values import Reference
from discreet.runs.scoring import evaluated

if TYPE_CHECKING:
    from discreet.runs.config import RunConfig

RATES: Final = (0.001, 0.005, 0.02)  # of Adam; the best on a fifth of the training records is taken
BATCH: Final = 256
MOST_EPOCHS: Final = 10
LEAST_STEPS: Final = 250  # for few records


def reference_rows(config: RunConfig, task: Task, *, passes: float) -> tuple[Reference, ...]:
    """The rows of a comparison that no method made; private records are not trained on without noise."""
    target, about = task.predicts, "the same model and data, Adam, no clipping, no noise: protects nobody"
    accuracy = None
    if task.public:
        accuracy = without_privacy(config, task, passes=passes)
    else:
        about = "not trained: its accuracy would reveal private records (declare them public if they are)"
    return (
        Reference(name="without privacy", about=about, accuracy=accuracy),
        Reference(name=target.constant, about="always gives the same answer", accuracy=majority(task)),
    )


def majority(task: Task) -> float:
    """The score of the best constant answer on the test records, which no epsilon protects."""
    return task.predicts.best_constant(task.test.tensors[1])


def without_privacy(config: RunConfig, task: Task, *, passes: float) -> float:
    """The test accuracy of the same model after plain training with Adam, for as many passes as the private run makes.

    Three learning rates are tried on four fifths of the training records. There are at most 10 passes, or 250 steps.

    Guarantee: none, so private records are refused.
    """
    remedy = "declare the records public (--public-data) if they are: training without noise protects nobody"
    check.require(task.public, "public records for the row without privacy", "private ones", remedy)
    x, y = task.train.tensors
    scored = torch.arange(len(y)) % 5 == 4
    part, rest = (TensorDataset(x[which], y[which]) for which in (~scored, scored))
    epochs = max(min(MOST_EPOCHS, math.ceil(passes)), math.ceil(LEAST_STEPS * BATCH / len(y)))

    def score(data: TensorDataset, rate: float, scored: TensorDataset) -> float:
        model = _trained(config, task, data, rate, epochs)
        return evaluated(model, scored, task.predicts)[0][task.predicts.measure]

    scores = {rate: score(part, rate, rest) for rate in RATES}
    return score(task.train, max(scores, key=scores.__getitem__), task.test)


def _trained(config: RunConfig, task: Task, data: TensorDataset, rate: float, epochs: int) -> nn.Module:
    model = build(str(config.model), shape=task.shape, classes=task.classes, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    x, y = data.tensors
    order = torch.Generator().manual_seed(0)
    steps = epochs * math.ceil(len(y) / BATCH)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for some in torch.randperm(len(y), generator=order).split(BATCH):
            optimizer.zero_grad()
            loss: Tensor = task.predicts.losses(model(x[some]), y[some]).mean()
            loss.backward()
            optimizer.step()
            falling.step()
    return model
