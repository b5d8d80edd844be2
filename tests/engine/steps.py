"""A few private steps on a small task, for models and loops that are accepted or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from problems import Bare
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet import Private
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Recipe
from discreet.stages.sampling import FixedSize, Horizon

RECORDS, BATCH = 40, 12

Body = Callable[[Any, nn.Module, Tensor, Tensor], None]


def rows(*shape: int, records: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(records, *shape, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (records,), generator=generator))


def words(length: int = 6, vocabulary: int = 1000, records: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, vocabulary - 2, (records, length), generator=generator)
    return TensorDataset(ids, torch.randint(0, 3, (records,), generator=generator))


def each(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def plain(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
    private.step(each(model(x), y))


def classifier(run: Callable[..., Any] | None = None, inputs: int = 6) -> nn.Module:
    """A layer behind a forward pass of the test's own: run(own, x) gives the layer's inputs."""
    torch.manual_seed(0)
    return Bare(lambda own, x: own.head(x if run is None else run(own, x)), head=nn.Linear(inputs, 3))


def train(
    model: nn.Module | None = None,
    body: Body = plain,
    data: Any = None,
    *,
    steps: int = 4,
    fixed: bool = True,
    **options: Any,
) -> Private:
    """Run a loop; batches are of one size unless `fixed` is False."""
    model = model if model is not None else classifier()
    recipe = Recipe(method="x", bounder=FlatClip(1.0))
    if fixed:
        recipe = replace(recipe, sampling=FixedSize(), relation=Neighbouring.REPLACE_ONE)
    records = len(data) if data is not None else RECORDS
    plan = recipe.bind(noise=1.0, horizon=Horizon.of(records=records, batch=BATCH, steps=steps), delta=1e-5)
    options.setdefault("streams", Streams.seeded(5))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    private = Private(model, optimizer, plan, rows(6) if data is None else data, **options)
    try:
        for x, y in private:
            body(private, model, x, y)
    finally:
        private.close()
    return private
