"""What the tests of runs with hidden iterates share: a small logistic task and the loop that users write."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet import methods
from discreet.core.streams import Streams
from discreet.data import build
from discreet.methods.dpsgd_dc.curvature import Link
from discreet.methods.dpsgd_dc.guard import ClippedFeatures, with_clipped_features
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.training.private import Private

RECORDS, STEPS, RATE = 40, 6, 2.0


def data(records: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(records, 5, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def model(bound: float = 1.0, *, scores: int = 2) -> nn.Module:
    """Logistic regression with a score of 0 beside it, or softmax regression."""
    torch.manual_seed(3)
    made = build("logistic", shape=(5,), classes=2, seed=0)
    if scores == 2:
        return with_clipped_features(made, bound)
    return nn.Sequential(ClippedFeatures(bound), nn.Linear(5, scores))


def plan(recipe: Recipe | None = None, *, noise: float = 3.0, batch: int = RECORDS) -> Plan:
    recipe = recipe or methods.dpsgd_dc(link=Link.LOGISTIC, learning_rate=RATE, radius=2.0)
    return recipe.bind(noise=noise, horizon=Horizon.of(records=RECORDS, batch=batch, steps=STEPS), delta=1e-5)


def private(net: nn.Module | None = None, which: Plan | None = None, **options: Any) -> Private:
    net = net if net is not None else model()
    make = options.pop("optimizer", lambda p: torch.optim.SGD(p, lr=RATE))
    options.setdefault("streams", Streams.seeded(5))
    return Private(net, make(net.parameters()), which or plan(), options.pop("dataset", data()), **options)


def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y, reduction="none")


def train(run: Private, most: int | None = None) -> None:
    for x, y in run:
        run.step(losses(run.model, x, y))
        if most is not None and run.progress.step >= most:
            return
