"""Train your own model on your own data: the smallest complete script.

Run it with `python examples/own_model.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import discreet
from discreet import methods


def two_moons(records: int) -> TensorDataset:
    """Synthetic data: two noisy half circles."""
    angle = torch.rand(records) * torch.pi
    label = torch.randint(0, 2, (records,))
    side = 1 - 2 * label
    x = torch.stack([angle.cos() + label, side * angle.sin() + 0.5 * label], 1) + 0.1 * torch.randn(records, 2)
    return TensorDataset(x, label)


def main(records: int = 4000, epochs: int = 10) -> float:
    """Train at epsilon 3 and return the accuracy on fresh data."""
    train, test = two_moons(records), two_moons(1000)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)

    recipe = methods.dp_sgd(clip=0.5)
    plan = recipe.for_budget(epsilon=3.0, delta=1e-5, records=records, batch=200, epochs=epochs)
    private = discreet.Private(model, optimizer, plan, train)

    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))

    print(private.spent())
    x, y = test.tensors
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).float().mean())
    print(f"accuracy on fresh data: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
