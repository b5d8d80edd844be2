"""The cost of each method over DP-SGD through `Private`: sampling, masks, projections, state and update included."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from discreet.core.check import Refused
from discreet.methods import METHODS, Method
from discreet.stages.sampling import Horizon
from discreet.training.private import Private
from research.benchmarks.models import MODELS, Task
from research.benchmarks.rows import NOISE, RATE, Step, own_copy
from research.benchmarks.timing import interleave, quiet

REFERENCE = "dp-sgd"
_COPIES, _STEPS = 4, 1000


def method_step(task: Task, method: Method) -> Step:
    """One logical batch of a method with its default settings, drawn from four times as many records."""
    records = _COPIES * task.batch
    horizon = Horizon.of(records=records, batch=task.batch, steps=_STEPS)
    plan = method.recipe().bind(noise=NOISE, horizon=horizon, delta=1e-6)
    optimizer = (torch.optim.Adam if method.adam else torch.optim.SGD)(task.model.parameters(), lr=RATE)
    data = TensorDataset(task.inputs.repeat(_COPIES, *(1,) * (task.inputs.dim() - 1)), task.labels.repeat(_COPIES))
    public = TensorDataset(task.inputs, task.labels) if plan.bounder.public_records else None
    loop = Private(task.model, optimizer, plan, data, public=public)
    batches = iter(loop)

    def step() -> None:
        while True:
            inputs, labels = next(batches)
            if loop.step(F.cross_entropy(task.model(inputs), labels, reduction="none")):
                return

    return step


def compare_methods(model: str, *, repeats: int, patience: float) -> dict[str, dict[str, Any]]:
    """For each method: milliseconds and the ratio to DP-SGD, or why it did not run."""
    torch.manual_seed(0)
    task = MODELS[model].make()
    steps: dict[str, Step] = {}
    rows: dict[str, dict[str, Any]] = {}
    ordered = sorted(METHODS, key=lambda name: name != REFERENCE)  # stable: the others as listed
    with quiet():
        for name in ordered:
            try:
                step = method_step(own_copy(task), METHODS[name])
                step()
                steps[name] = step
            except (Refused, TypeError) as reason:
                rows[name] = {"absent": str(reason).splitlines()[0]}
        timings = interleave(steps, repeats=repeats, patience=patience, hurried=METHODS.keys() - {REFERENCE})
    for name, timing in timings.items():
        rows[name] = {
            "ms": round(1e3 * timing.seconds, 2),
            "over_dp_sgd": round(timing.ratio, 3),
            "over_dp_sgd_quartiles": [round(timing.ratio_low, 3), round(timing.ratio_high, 3)],
            "repeats": timing.repeats,
        }
    return {name: rows[name] for name in ordered}
