"""What tuning is worth: advised defaults, private selection and the linear scaling rule at one total epsilon.

    python -m research.tuning_study --repeats 10 --out results/tuning.json

Every arm may use the same certified (epsilon, delta) for everything that it does, the choice included.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from discreet.core.command import package_versions
from discreet.core.files import replace_file
from discreet.data import load
from discreet.runs.config import RunConfig
from discreet.runs.training import train
from discreet.runs.tuning.scaling import scale_linearly
from discreet.runs.tuning.space import Axis, LogRange, Setting
from discreet.runs.tuning.sweep import tune
from research.command import typed

EPSILON, DELTA = 3.0, 1e-6
Space = Mapping[str, Sequence[Setting] | Axis]


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """A task, what is searched on it, and the learning rates of the scaling rule."""

    name: str
    settings: Mapping[str, Any]
    space: Space
    rates: tuple[float, ...]


def edge_features(images: torch.Tensor) -> torch.Tensor:
    """[n, 1, 28, 28] to [n, 392]: energies of 8 edge directions in 7 x 7 cells, each record scaled to norm 1.

    Nothing is learned, so the features of a record depend on that record alone.
    """
    x = images[:, 0]
    dy, dx = torch.gradient(x, dim=(1, 2))
    angle, energy = torch.atan2(dy, dx), torch.hypot(dx, dy)
    place = ((angle + math.pi) / (2 * math.pi) * 8).long().clamp(0, 7)
    maps = torch.zeros(len(x), 8, 28, 28).scatter_(1, place[:, None], energy[:, None])
    cells = torch.nn.functional.avg_pool2d(maps, 4).flatten(1).sqrt()
    return cells / cells.norm(dim=1, keepdim=True).clamp_min(1e-6)


def problems(folder: Path) -> list[Problem]:
    fashion, file = load("fashion-mnist"), folder / "fashion-features.npz"
    arrays = {
        f"{kind}_{part}": value.numpy()
        for part, data in (("train", fashion.train), ("test", fashion.test))
        for kind, value in zip("xy", (edge_features(data.tensors[0]), data.tensors[1]), strict=True)
    }
    replace_file(file, lambda stream: np.savez(stream, **arrays))
    own = {"data": str(file), "classes": 10, "records": 60_000, "model": "softmax", "batch": 1024, "epochs": 2}
    return [
        Problem(
            name="adult",
            settings={"data": "adult"},
            space={"learning_rate": LogRange(0.3, 30.0), "clip": (0.1, 0.5, 1.0), "epochs": (5, 10)},
            rates=(0.5, 1.0, 2.0),
        ),
        Problem(
            name="fashion-mnist, edge features",
            settings=own,
            space={"learning_rate": LogRange(0.5, 50.0), "clip": (0.1, 0.5, 1.0), "epochs": (2, 4)},
            rates=(1.0, 2.0, 4.0),
        ),
    ]


def arms(problem: Problem) -> dict[str, Callable[[Path], float]]:
    def config(out: Path) -> RunConfig:
        return RunConfig(**problem.settings, epsilon=EPSILON, delta=DELTA, out=str(out), eval_every=10**9)

    def searched(runs: float) -> Callable[[Path], float]:
        return lambda out: tune(config(out), problem.space, runs=runs, workers=1).test_accuracy or 0.0

    return {
        "advised defaults": lambda out: train(config(out)).test_accuracy,
        "tune, 3 runs expected": searched(3.0),
        "tune, 8 runs expected": searched(8.0),
        "linear scaling rule": lambda out: scale_linearly(config(out), problem.rates).run.test_accuracy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        every = problems(folder)
        scores: dict[tuple[str, str], list[float]] = {}
        for repeat in range(given.repeats):  # interleaved, so that an interrupted study has every arm
            for problem in every:
                for arm, run in arms(problem).items():
                    key = (problem.name, arm)
                    place = folder / f"{len(scores)}-{repeat}-{problem.name[:5]}-{abs(hash(arm))}"
                    scores.setdefault(key, []).append(run(place))
                    print(*key, repeat, scores[key][-1], flush=True)
            rows = [_row(*key, values) for key, values in scores.items()]
            body = {"command": typed("research.tuning_study"), "epsilon": EPSILON, "delta": DELTA, "rows": rows}
            versions = package_versions("discreet", "torch", "numpy", "scipy")
            given.out.write_text(json.dumps({**body, "seed": None, "versions": versions}, indent=2) + "\n")


def _row(problem: str, arm: str, values: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    held = {"mean": statistics.mean(values), "standard_error": spread, "least": min(values), "runs": len(values)}
    return {"problem": problem, "arm": arm, **held}


if __name__ == "__main__":
    main()
