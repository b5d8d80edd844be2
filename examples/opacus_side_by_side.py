"""Train the same model at the same noise with Opacus and with discreet.

    pip install opacus && python examples/opacus_side_by_side.py

Both draw Poisson batches at the same rate, clip to the same norm and use the same noise multiplier. Their accuracies
agree up to chance, their epsilons up to the precision of the accountants. Opacus takes the sampling rate from the
length of the loader (1/12 here; batch/records would be 1/11.2), so discreet gets the batch size of that rate.
"""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import discreet
from discreet import Horizon, methods
from discreet import data as tasks

BATCH, EPOCHS, NOISE, CLIP, LEARNING_RATE, DELTA = 128, 10, 1.5, 1.0, 1.0, 1e-5


def network(task: tasks.Task) -> nn.Module:
    """A small multi-layer perceptron."""
    inputs = math.prod(task.shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, task.classes))


def accuracy(model: nn.Module, task: tasks.Task) -> float:
    """Accuracy on the public test set."""
    x, y = task.test.tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def with_discreet(task: tasks.Task) -> tuple[float, float]:
    """Return the accuracy and the certified epsilon."""
    model = network(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    assert task.records is not None
    batch = task.records / math.ceil(task.records / BATCH)
    horizon = Horizon.of(records=task.records, batch=batch, epochs=EPOCHS)
    plan = methods.dp_sgd(clip=CLIP).bind(noise=NOISE, horizon=horizon, delta=DELTA)
    private = discreet.Private(model, optimizer, plan, task.train)
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    return accuracy(model, task), private.spent().certified.epsilon


def with_opacus(task: tasks.Task) -> tuple[float, float]:
    """Return the accuracy and the epsilon of its accountant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

        model = network(task)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(task.train, batch_size=BATCH),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
        )
        for _ in range(EPOCHS):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return accuracy(model, task), float(engine.get_epsilon(DELTA))


def main() -> None:
    """Print both results."""
    task = tasks.load("digits")
    for name, run in (("discreet", with_discreet), ("opacus", with_opacus)):
        found, epsilon = run(task)
        print(f"{name:9} accuracy {found:.1%}   epsilon {epsilon:.3f}")


if __name__ == "__main__":
    main()
