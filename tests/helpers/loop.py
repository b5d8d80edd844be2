"""What the tests of the training loop share: a small task and the loop that users write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet import methods
from discreet.core.streams import Streams
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.training.private import Private

RECORDS, BATCH, STEPS = 60, 12, 8


def data(records: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(records, 4, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def model() -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return made


def plan(recipe: Recipe | None = None, *, noise: float = 1.5, **horizon: Any) -> Plan:
    public = {"records": RECORDS, "batch": BATCH, "steps": STEPS, **horizon}
    if "epochs" in horizon:
        del public["steps"]
    return (recipe or methods.dp_sgd(clip=0.5)).bind(
        noise=noise,
        horizon=Horizon.of(**public),
        delta=1e-5,
        accept_large_delta=public["records"] > 10_000,  # for batches that are empty almost always
    )


def private(net: nn.Module | None = None, which: Plan | None = None, **options: Any) -> Private:
    """A Private on the small task; options of Private, and `optimizer`, `dataset`, `seed`."""
    net = net if net is not None else model()
    make: Callable[[Any], torch.optim.Optimizer] = options.pop("optimizer", sgd)
    options["streams"] = options.get("streams") or Streams.seeded(options.pop("seed", 7))
    dataset = options.pop("dataset", data())
    which = which or plan()
    if which.bounder.public_records:
        options.setdefault("public", data(40))
    return Private(net, make(net.parameters()), which, dataset, **options)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y, reduction="none")


def train(run: Private, most: int | None = None) -> int:
    """The loop that users write, for at most so many steps; returns how often the parameters moved."""
    moved = 0
    for x, y in run:
        moved += run.step(losses(run.model, x, y))
        if most is not None and run.progress.step >= most:
            break
    return moved


def last_of_step(run: Private, batches: Any, loss: Callable[..., Tensor] = losses) -> Any:
    """Take the micro-batches of a step up to the last, which is returned before `step` is called on it."""
    x, y = next(batches)
    while not run._loop.sample_ended:
        run.step(loss(run.model, x, y))
        x, y = next(batches)
    return x, y


def weights(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def train_with(dataset: Any, scaled: Callable[[Tensor], Tensor], **options: Any) -> int:
    """Train on rows that the loop changes; how many updates were made."""
    run = private(dataset=dataset, **options)
    for rows, labels in run:
        run.step(F.cross_entropy(run.model(scaled(rows)), labels, reduction="none"))
    return run.updates
