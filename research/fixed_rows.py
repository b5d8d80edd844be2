"""What fixed rows cost: processor time of a step of `Private` with `fixed_rows`, divided by that of an ordinary step.

python -m research.fixed_rows results/fixed-rows.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from discreet import methods
from discreet.core.streams import Streams
from discreet.stages.sampling import Horizon, Poisson, TruncatedPoisson
from discreet.training.private import Private
from research.benchmarks.models import MODELS
from research.benchmarks.rows import CLIP, NOISE, RATE, own_copy
from research.benchmarks.table import machine, versions
from research.command import typed

NAMES: Final = ("mlp", "mlp-2048", "cnn-d2p2")
ROUNDS: Final = 12
COPIES: Final = 10  # records are so many batches: a sampling rate of 0.1
SMALL: Final = 64


def main(rounds: int = ROUNDS) -> dict[str, Any]:
    """Medians over rounds in which all rows take turns; the first two rounds, with rehearsals, do not count."""
    torch.manual_seed(0)
    found = {name: _ratios(name, rounds) for name in NAMES}
    return {
        "command": typed("research.fixed_rows"),
        "versions": versions(),
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "models": found,
    }


def _ratios(name: str, rounds: int) -> dict[str, Any]:
    task = MODELS[name].make()
    horizon = Horizon.of(records=COPIES * task.batch, batch=task.batch, steps=rounds + 3)
    whole = TruncatedPoisson.seldom_cut(horizon).cap
    rows = {"ordinary": None, "one pass": whole, f"passes of {SMALL}": SMALL}
    runs = {label: _steps(name, task, horizon, fixed) for label, fixed in rows.items()}
    taken: dict[str, list[float]] = {label: [] for label in rows}
    for _ in range(rounds + 2):
        for label, run in runs.items():
            taken[label].append(next(run))
    kept = {label: times[2:] for label, times in taken.items()}
    pairs = {label: zip(times, kept["ordinary"], strict=True) for label, times in kept.items()}
    ratios = {label: [own / other for own, other in both] for label, both in pairs.items()}
    return {
        label: {
            "rows": rows[label],
            "ms": round(1000 * statistics.median(kept[label]), 2),
            "ratio": round(statistics.median(ratios[label]), 3),
            "quartiles": [round(value, 3) for value in statistics.quantiles(ratios[label], n=4)[::2]],
        }
        for label in rows
    }


def _steps(name: str, task: Any, horizon: Horizon, fixed_rows: int | None) -> Iterator[float]:
    """Processor seconds of each step: sampling, loading, passes, noise and update."""
    own = own_copy(task)
    inputs, labels = (torch.cat([part] * COPIES) for part in (task.inputs, task.labels))
    multiple = 1 if fixed_rows is None else fixed_rows
    capped = TruncatedPoisson.seldom_cut(horizon, multiple_of=multiple)
    recipe = methods.dp_sgd(clip=CLIP).using(sampling=Poisson() if fixed_rows is None else capped)
    plan = recipe.bind(noise=NOISE, horizon=horizon, delta=1e-7)
    optimizer = torch.optim.SGD(own.model.parameters(), lr=RATE)
    data = TensorDataset(inputs, labels)
    run = Private(own.model, optimizer, plan, data, fixed_rows=fixed_rows, streams=Streams.seeded(0))
    began, done = time.process_time(), 0
    for x, y in run:
        run.step(F.cross_entropy(own.model(x), y, reduction="none"))
        if run.progress.step > done:
            done = run.progress.step
            yield time.process_time() - began
            began = time.process_time()


if __name__ == "__main__":
    answer = json.dumps(main(), indent=2) + "\n"
    print(answer)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(answer)
