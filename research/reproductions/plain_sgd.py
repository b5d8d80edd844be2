"""Training without privacy, as a baseline: no clipping, no noise, shuffled batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet import data as tasks
from discreet.core.plain import plain
from discreet.core.streams import Streams
from discreet.runs import RunConfig, complete
from discreet.runs.making import make_optimizer
from discreet.runs.scoring import measure

Line = tuple[int, float, float, float]
"""(step, test accuracy, test loss, training loss)"""


@final
@dataclass(frozen=True, kw_only=True)
class PlainRun:
    """The result of a run without privacy; the training loss is the mean since the last evaluation."""

    test_accuracy: float
    seconds: float
    steps: int
    curve: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(plain(self))

    @staticmethod
    def from_json(body: dict[str, Any]) -> PlainRun:
        """What `to_json` wrote."""
        curve = tuple((int(s), float(a), float(t), float(r)) for s, a, t, r in body["curve"])
        return PlainRun(test_accuracy=body["test_accuracy"], seconds=body["seconds"], steps=body["steps"], curve=curve)


def train_plain(config: RunConfig) -> PlainRun:
    """Train the config without privacy; it needs a seed, a learning rate, and epochs or steps."""
    began = time.perf_counter()
    config = complete(config)
    assert config.seed is not None
    assert config.batch is not None
    task = tasks.load(config.data, data_dir=config.data_dir, download=config.download)
    streams = Streams.seeded(config.seed)
    model = tasks.build(
        str(config.model), shape=task.shape, classes=task.classes, seed=int(streams.init.uniform64(1)[0] >> 1)
    )
    optimizer = make_optimizer(config, model)
    x, y = task.train.tensors
    per_epoch = -(-len(y) // config.batch)
    steps = config.steps or per_epoch * (config.epochs or 1)
    every = config.eval_every or -(-steps // 20)
    curve: list[Line] = []
    losses: list[float] = []
    for step, chosen in enumerate(_batches(len(y), config.batch, steps, streams), start=1):
        loss = F.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % every == 0 or step == steps:
            accuracy, test_loss = measure(model, task.test)
            curve.append((step, accuracy, test_loss, sum(losses) / len(losses)))
            losses.clear()
    seconds = round(time.perf_counter() - began, 1)
    return PlainRun(test_accuracy=curve[-1][1], seconds=seconds, steps=steps, curve=tuple(curve))


def _batches(records: int, batch: int, steps: int, streams: Streams) -> Iterator[Tensor]:
    epoch, order, at = 0, torch.empty(0, dtype=torch.long), 0
    for _ in range(steps):
        if at >= len(order):
            order, at = torch.as_tensor(streams.sampling.at(epoch).permutation(records)), 0
            epoch += 1
        yield order[at : at + batch]
        at += batch
