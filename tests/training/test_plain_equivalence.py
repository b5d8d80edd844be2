"""Without noise, and with a clip that nothing reaches, private training is plain training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from problems import Bare
from torch import Tensor, nn
from truths import trained

from discreet.data.models import build
from discreet.engine.engine import Engine
from discreet.stages.clipping import FlatClip

STEPS, BATCH, CLASSES = 8, 8, 3


def images(size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(BATCH, 1, size, size).double()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: build("mlp", shape=(1, 6, 6), classes=CLASSES, seed=0), images(6)),
    "cnn": (lambda: build("cnn-d2p2", shape=(1, 8, 8), classes=CLASSES, seed=0), images(8)),
    "resnet20": (lambda: build("resnet20", shape=(1, 8, 8), classes=CLASSES, seed=0), images(8)),
    "transformer": (lambda: build("transformer", shape=(1, 8, 8), classes=CLASSES, seed=0), images(8)),
    "lstm": (
        lambda: Bare(
            lambda own, x: own.head(own.net(x)[0][:, -1]),
            net=nn.LSTM(4, 6, num_layers=2, batch_first=True),
            head=nn.Linear(6, CLASSES),
        ),
        lambda: torch.randn(BATCH, 5, 4).double(),
    ),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
}


def data(inputs: Callable[[], Tensor]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(inputs(), torch.randint(0, CLASSES, (BATCH,))) for _ in range(STEPS)]


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    cuts: list[int],
    clip: float = 1e9,
) -> None:
    """Clipped sums over micro-batches, divided by the public batch."""
    engine, bounder = Engine(model), FlatClip(clip)
    for x, y in batches:
        total = engine.zeros()
        for some, labels in zip(x.split(cuts), y.split(cuts), strict=True):
            engine.begin(len(some))
            engine.backward(F.cross_entropy(model(some), labels, reduction="none"))
            engine.add_weighted(bounder.weights(engine.norms(), 1.0), total)
            engine.discard()
        for parameter, gradient in zip(trained(model).values(), engine.layout.views(total[0] / BATCH), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        optimizer.zero_grad()


def distance(first: nn.Module, second: nn.Module) -> float:
    pairs = zip(trained(first).values(), trained(second).values(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_parameters_after_some_steps(name: str, optimizer: str) -> None:
    make, inputs = MODELS[name]
    batches = data(inputs)
    models = []
    for cuts in ([], [BATCH], [3, 2, 1, 2]):
        torch.manual_seed(0)
        model = make().double()
        own = OPTIMIZERS[optimizer](model)
        if cuts:
            private(model, own, batches, cuts)
        else:
            plain(model, own, batches)
        models.append(model)
    torch.manual_seed(0)
    assert distance(make().double(), models[0]) > 1e-3  # something was learned
    assert distance(models[1], models[0]) < 1e-10
    assert distance(models[2], models[0]) < 1e-10


def test_a_clip_that_is_reached_changes_the_result() -> None:
    make, inputs = MODELS["mlp"]
    models = [make().double() for _ in range(2)]
    for model, clip in zip(models, (1e9, 1e-2), strict=True):
        private(model, OPTIMIZERS["sgd"](model), data(inputs), [BATCH], clip)
    assert distance(*models) > 1e-3
