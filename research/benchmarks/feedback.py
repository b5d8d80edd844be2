"""The cost of error feedback and two-level clipping over DP-SGD: whole steps with noise, timed in turns.

python -m research.benchmarks.feedback          cnn-550k, batch 128
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F

from discreet import methods
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.stages.plan import Recipe
from discreet.stages.sampling import Horizon
from discreet.training.step import PrivateStep, RunState
from research.benchmarks.models import MODELS, Task
from research.benchmarks.rows import Step, own_copy
from research.benchmarks.timing import interleave

RECIPES = {
    "dp-sgd": methods.dp_sgd(clip=0.1),
    "dicesgd": methods.dicesgd(clip=0.1, feedback_clip=0.1),
    "two-level": methods.two_level(clip=0.1, residual=0.9),
}


def main(repeats: int = 15) -> dict[str, dict[str, float]]:
    """Milliseconds per step, and the median ratio to DP-SGD in the same round."""
    torch.set_num_threads(1)
    task = MODELS["cnn-550k"].make()
    steps = {name: whole_step(own_copy(task), recipe) for name, recipe in RECIPES.items()}
    times = interleave(steps, repeats=repeats, patience=60.0)
    return {
        name: {"ms": round(1000 * timing.seconds, 1), "ratio": round(timing.ratio, 3)} for name, timing in times.items()
    }


def whole_step(task: Task, recipe: Recipe) -> Step:
    """Forward, backward, bounded and hidden sums, mechanism, combination; no charge is written."""
    records = len(task.labels)
    horizon = Horizon.of(records=50_000, batch=records, steps=1000)
    plan = recipe.bind(noise=1.0, horizon=horizon, delta=1e-5)
    engine, progress, streams = Engine(task.model), RunState(), Streams.seeded(0)

    def step() -> None:
        batch = PrivateStep(plan, engine, progress, streams, lambda event, number: None, World.current())
        engine.begin(records)
        engine.follow((task.inputs, task.labels), records)
        batch.add(F.cross_entropy(task.model(task.inputs), task.labels, reduction="none"))
        batch.release()

    return step


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
