"""A picture of epsilon against steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from discreet.core import check
from discreet.core.files import check_file
from discreet.report import charts

SUFFIXES = (".svg", ".png")


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
