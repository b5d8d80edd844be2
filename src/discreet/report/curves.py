"""epsilon against steps: the numbers, and a picture of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from discreet.core import check
from discreet.stages.plan import Plan

Points = Sequence[tuple[int, float]]
SUFFIXES = (".svg", ".png")


def epsilon_curve(plan: Plan, points: int = 16) -> tuple[tuple[int, float], ...]:
    """The certified epsilon after evenly spread numbers of steps, up to the whole run."""
    steps = plan.horizon.steps
    stops = sorted({max(1, round(steps * k / points)) for k in range(1, points + 1)})
    return tuple((stop, plan.certificate(stop).epsilon) for stop in stops)


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be written, before the work that it shows is done."""
    check.require(
        path.suffix.lower() in SUFFIXES,
        f"a file name ending in {' or '.join(SUFFIXES)}",
        path,
        "rename the picture",
    )
    check.require(path.parent.is_dir(), "an existing directory", path.parent, "create it first")


def save(path: Path, points: Points, *, title: str) -> None:
    """Write the curve as SVG or PNG."""
    import matplotlib
    from matplotlib.figure import Figure

    check_picture(path)
    finite = [(step, epsilon) for step, epsilon in points if math.isfinite(epsilon)]
    check.require(bool(finite), "a finite epsilon to draw", "no proven guarantee", "choose a certified plan")
    with matplotlib.rc_context({"svg.hashsalt": "discreet"}):  # the same curve gives the same bytes
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, *(step for step, _ in finite)], [0.0, *(epsilon for _, epsilon in finite)], marker=".")
        axes.set(xlabel="steps", ylabel="certified epsilon", title=title, xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
        kind = path.suffix.lower()[1:]
        figure.savefig(path, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
