"""Protect every author, with all of their records, in two ways.

Owners are synthetic: a few authors wrote many digits, most wrote few. Run it with `python examples/users.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import discreet
from discreet import methods

AUTHORS = 400  # a public number, as are 1,437 records and the largest number of records of an author


def authors_of(records: int) -> list[int]:
    """The author of each record: author 0 wrote the most, and the last ones wrote one or two."""
    share = torch.rand(records, generator=torch.Generator().manual_seed(0))
    return [int(AUTHORS * place**1.5) for place in share.tolist()]


def main(steps: int = 60) -> dict[str, float]:
    """Train at epsilon 8 for every author; returns the test accuracy of each way."""
    task = discreet.data.load("digits")
    owners = authors_of(len(task.train))
    ways: dict[str, tuple[discreet.SampledUsers | discreet.CappedRecords, int, int]] = {
        "sample authors": (discreet.SampledUsers(per_user=8, name="author"), AUTHORS, 150),
        "sample records": (discreet.CappedRecords(per_user=8, name="author"), 1437, 500),
    }
    found = {}
    for words, (unit, records, batch) in ways.items():
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
        recipe = methods.dp_sgd(clip=0.5).using(unit=unit)
        plan = recipe.for_budget(epsilon=8.0, delta=1e-5, records=records, batch=batch, steps=steps)
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
