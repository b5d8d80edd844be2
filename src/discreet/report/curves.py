"""Epsilon against steps: the numbers, and a picture of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from discreet.core import check
from discreet.report import charts
from discreet.stages.plan import Plan

SUFFIXES = (".svg", ".png")


def epsilon_curve(plan: Plan, points: int = 16) -> tuple[tuple[int, float], ...]:
    """The certified epsilon after evenly spaced numbers of steps, up to the whole run."""
    steps = plan.known_horizon.steps
    stops = sorted({max(1, round(steps * k / points)) for k in range(1, points + 1)})
    return tuple((stop, plan.certificate(stop).epsilon) for stop in stops)


def check_picture(path: Path) -> None:
    """Refuse a path that cannot be written, before the computation starts."""
    known = f"a file name ending in {' or '.join(SUFFIXES)}"
    check.require(path.suffix.lower() in SUFFIXES, known, path, "rename the picture")
    check.require(path.parent.is_dir(), "an existing directory", path.parent, "create it first")
    check_file(path)


def save(path: Path, points: Sequence[tuple[int, float]], *, title: str) -> None:
    """Write the curve as SVG or PNG."""
    check_picture(path)
    finite = [(step, epsilon) for step, epsilon in points if math.isfinite(epsilon)]
    check.require(bool(finite), "a finite epsilon to draw", "no proven guarantee", "choose a certified plan")
    line = charts.Series.exact("", 0, [(0, 0.0), *finite])
    chart = charts.Chart(
        key="epsilon",
        title=title,
        x_label="steps",
        y_label="certified epsilon",
        series=(line,),
        y_range=charts.from_zero([line]),
    )
    charts.save(chart, path, titled=True)
