"""The tasks with the public numbers of their runs, and the settings that were tried for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

import discreet
from discreet.stages.plan import Plan, Recipe
from research.federated.tasks import Federation, features, images


@final
@dataclass(frozen=True)
class Setting:
    """A task with its public numbers.

    batch    clients that join a round on average
    rate     the learning rate of clients
    batches  the steps in a client's one pass over its records
    """

    federation: Callable[[str, int], Federation]
    clients: int
    batch: int
    steps: int
    clip: float
    rate: float
    batches: int

    @property
    def delta(self) -> float:
        return 0.1 / self.clients


SETTINGS: Final = {
    "cnn": Setting(images, clients=1000, batch=50, steps=60, clip=1.0, rate=0.3, batches=3),
    "linear": Setting(features, clients=10_000, batch=200, steps=60, clip=4.0, rate=16.0, batches=1),
}
"""What `python -m research.federated.tuning` found best on MNIST among TRIED, at epsilon 3."""

TRIED: Final = {
    "cnn": [replace(SETTINGS["cnn"], steps=100, clip=clip, rate=rate) for clip, rate in ((0.5, 0.2), (1.0, 0.3))],
    "linear": [
        replace(SETTINGS["linear"], clip=clip, rate=rate)
        for clip, rate in ((1.0, 4.0), (2.0, 8.0), (4.0, 16.0), (2.0, 32.0))
    ],
}


def plan_of(setting: Setting, recipe: Recipe, epsilon: float) -> Plan:
    """The least noise that certifies epsilon for every client."""
    stages = recipe.using(unit=discreet.SampledUsers(per_user=64, name="client"))
    numbers = {"records": setting.clients, "batch": setting.batch, "steps": setting.steps}
    return stages.for_budget(epsilon=epsilon, delta=setting.delta, **numbers)
