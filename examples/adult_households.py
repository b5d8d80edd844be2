"""Adult with synthetic households: two ways to protect every household.

    python examples/adult_households.py

Rows of the same household are protected together. `discreet advise --users` says which way is better before any record
is read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import discreet
from discreet import methods

HOUSEHOLDS, RECORDS = 12_000, 32_561  # public numbers


def households(records: int) -> list[int]:
    """The household of each record; some have ten members, most have two or three."""
    drawn = torch.rand(records, generator=torch.Generator().manual_seed(0))
    return (HOUSEHOLDS * drawn**1.3).long().tolist()


def main(steps: int = 200) -> dict[str, float]:
    """Train at epsilon 3 for every household; returns the test accuracy of each way."""
    task = discreet.data.load("adult")
    owners = households(len(task.train))
    ways: dict[str, tuple[discreet.SampledUsers | discreet.CappedRecords, int, int]] = {
        "sample households": (discreet.SampledUsers(per_user=8, name="household"), HOUSEHOLDS, 600),
        "sample records": (discreet.CappedRecords(per_user=2, name="household"), RECORDS, 1600),
    }
    found = {}
    for words, (unit, records, batch) in ways.items():
        model = nn.Linear(task.shape[0], task.classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
        recipe = methods.dp_sgd(clip=0.25).using(unit=unit)
        plan = recipe.for_budget(epsilon=3.0, delta=1e-6, records=records, batch=batch, steps=steps)
        private = discreet.Private(model, optimizer, plan, task.train, unit=owners)
        for x, y in private:
            private.step(F.cross_entropy(model(x), y, reduction="none"))
        x, y = task.test.tensors
        found[words] = (model(x).argmax(1) == y).float().mean().item()
        print(f"{words}: accuracy {found[words]:.1%}, {private.spent()}")
        private.close()
    return found


if __name__ == "__main__":
    main()
