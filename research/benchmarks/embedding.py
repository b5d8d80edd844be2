"""The cost of gradient embedding perturbation over DP-SGD: whole steps through `Private`, new bases included.

python -m research.benchmarks.embedding results/gep-time.json

ResNet-20 (270K parameters), batch 128, 1000 basis vectors, one thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from discreet import methods
from discreet.data import parameters
from discreet.stages.plan import Recipe
from discreet.stages.sampling import Horizon
from discreet.training.private import Private
from research.benchmarks.models import MODELS, Task
from research.benchmarks.rows import own_copy
from research.benchmarks.table import machine, versions
from research.command import typed

BASIS_VECTORS: Final = 1000
REFRESH: Final = 20  # also the steps of an epoch, so that a mask lasts as long as a basis
BATCH: Final = 128
ROUNDS: Final = 3


def main(rounds: int = ROUNDS) -> dict[str, Any]:
    """Processor milliseconds per step, and the ratio to DP-SGD: medians over periods of 20 steps, in turns."""
    torch.set_num_threads(1)
    task = MODELS["resnet20"].make()
    gep = methods.gep(rank=BASIS_VECTORS / parameters(task.model), refresh=REFRESH)
    frozen = methods.random_freeze(final_rate=0.6, cooling_epochs=1).selection
    recipes = {"dp-sgd": methods.dp_sgd(), "gep": gep, "gep, density 0.4": gep.using(selection=frozen)}
    steps = {name: _stepping(own_copy(task), recipe) for name, recipe in recipes.items()}
    periods = [_period(steps) for _ in range(rounds + 1)][1:]  # in the first, calls are proven and memory is allocated
    return {
        "command": typed("research.benchmarks.embedding"),
        "versions": versions(),
        "machine": machine(),
        "parameters": parameters(task.model),
        "batch": BATCH,
        "basis_vectors": BASIS_VECTORS,
        "refresh": REFRESH,
        "periods": rounds,
        "steps": {
            name: {
                "ms": round(1000 * median(period[name] for period in periods) / REFRESH, 1),
                "ratio": round(median(period[name] / period["dp-sgd"] for period in periods), 3),
            }
            for name in steps
        },
    }


def _period(steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Processor seconds of 20 steps, one of them with a new basis."""
    spent = dict.fromkeys(steps, 0.0)
    for _ in range(REFRESH):
        for name, step in steps.items():
            began = time.process_time()
            step()
            spent[name] += time.process_time() - began
    return spent


def _stepping(task: Task, recipe: Recipe) -> Callable[[], None]:
    shape = task.inputs.shape[1:]
    chance = torch.Generator().manual_seed(0)

    def made_up(records: int) -> TensorDataset:
        return TensorDataset(torch.randn(records, *shape, generator=chance), torch.randint(10, (records,)))

    horizon = Horizon.of(records=REFRESH * BATCH, batch=BATCH, steps=1000)
    plan = recipe.bind(noise=1.0, horizon=horizon, delta=1e-6)
    public = made_up(1000) if plan.bounder.public_records else None
    optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-3)
    private = Private(task.model, optimizer, plan, made_up(REFRESH * BATCH), public=public)
    batches: Any = iter(private)

    def step() -> None:
        while True:
            inputs, labels = next(batches)
            if private.step(F.cross_entropy(task.model(inputs), labels, reduction="none")):
                return

    return step


if __name__ == "__main__":
    answer = json.dumps(main(), indent=2) + "\n"
    print(answer)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(answer)
