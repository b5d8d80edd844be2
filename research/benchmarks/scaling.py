"""Step time of discreet and plain SGD against batch size, number of parameters and sequence length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from research.benchmarks.models import CLASSES, Task, perceptron, transformer
from research.benchmarks.rows import OWN, own_copy
from research.benchmarks.timing import interleave

FEATURES = 64


@final
@dataclass(frozen=True, kw_only=True)
class Axis:
    """One figure: its sizes, and the task of each."""

    about: str
    label: str
    sizes: Sequence[int]
    task: Callable[[int], Task]


def _of_parameters(count: int) -> Task:
    """Two square layers between the features and the classes, about `count` parameters in all."""
    linear = FEATURES + CLASSES + 4
    width = round((-linear + (linear**2 + 8 * count) ** 0.5) / 4)
    return perceptron(128, FEATURES, width, width, width, CLASSES)


AXES: dict[str, Axis] = {
    "batch": Axis(
        about="MLP 784-512-256-10",
        label="records in a batch",
        sizes=(64, 128, 256, 512, 1024, 2048, 4096),
        task=lambda batch: perceptron(batch, 784, 512, 256, CLASSES),
    ),
    "parameters": Axis(
        about="MLP of three hidden layers of one width, batch 128",
        label="parameters",
        sizes=(10_000, 31_623, 100_000, 316_228, 1_000_000, 3_162_278, 10_000_000),
        task=_of_parameters,
    ),
    "length": Axis(
        about="transformer d=128 L=2, batch 16",
        label="tokens in a sequence",
        sizes=(32, 64, 128, 256, 512),
        task=lambda length: transformer(16, width=128, layers=2, length=length, heads=4),
    ),
}


def measure_axis(axis: Axis, *, repeats: int) -> dict[str, Any]:
    """Milliseconds of plain SGD, the floor and discreet at every size, in turns."""
    points = []
    for size in axis.sizes:
        torch.manual_seed(0)
        task = axis.task(size)
        steps = {row.name: row.make(own_copy(task)) for row in OWN}
        timings = interleave(steps, repeats=repeats, patience=60.0)
        count = sum(parameter.numel() for parameter in task.model.parameters())
        times = {name: round(1e3 * timing.seconds, 3) for name, timing in timings.items()}
        points.append({"size": size, "parameters": count, "batch": task.batch, "ms": times})
    return {"about": axis.about, "label": axis.label, "repeats": repeats, "points": points}


def draw(axes: dict[str, dict[str, Any]], path: Path) -> None:
    """The figures side by side, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    styles = {"plain": ("#777777", "o"), "floor": ("#bb8800", "^"), "discreet": ("#1155cc", "s")}
    with pyplot.rc_context({"svg.hashsalt": "discreet", "font.size": 9}):
        figure, panels = pyplot.subplots(1, len(axes), figsize=(4 * len(axes), 3.2), squeeze=False)
        for panel, axis in zip(panels[0], axes.values(), strict=True):
            for row in OWN:
                colour, marker = styles[row.name]
                sizes = [point["size"] for point in axis["points"]]
                times = [point["ms"][row.name] for point in axis["points"]]
                panel.loglog(sizes, times, marker=marker, markersize=4, color=colour, label=row.about)
            panel.set(xlabel=axis["label"], ylabel="ms a step", title=axis["about"])
            panel.title.set_fontsize(9)
        panels[0][0].legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
