"""Figures of curves as SVG and PNG files, in the colours and markers of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from discreet.report.figures import LIGHT, shape

SUFFIXES = ("svg", "png")
_MARKERS = ("o", "s", "^", "D", "v", "X", "P", "|")


class PlotLine(Protocol):
    """One curve."""

    @property
    def name(self) -> str: ...
    @property
    def x(self) -> Sequence[float]: ...
    @property
    def y(self) -> Sequence[float]: ...


class Frame(Protocol):
    """What a figure shows."""

    @property
    def title(self) -> str: ...
    @property
    def x_label(self) -> str: ...
    @property
    def y_label(self) -> str: ...
    @property
    def curves(self) -> Sequence[PlotLine]: ...
    @property
    def log_x(self) -> bool: ...
    @property
    def log_y(self) -> bool: ...


def save(frame: Frame, stem: Path) -> tuple[Path, ...]:
    """`stem`.svg and `stem`.png; the same figure gives the same bytes of SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context({"font.size": 10, "svg.hashsalt": "discreet", "text.parse_math": False}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for style, line in enumerate(frame.curves):
            axes.plot(
                *(line.x, line.y),
                color=LIGHT[style % len(LIGHT)],
                marker=_MARKERS[shape(style)],
                markersize=4,
                markevery=max(1, len(line.x) // 8),
                linewidth=1.5,
                linestyle="-" if style < len(LIGHT) else "--",
                label=line.name,
            )
        axes.set(
            title=frame.title,
            xlabel=frame.x_label,
            ylabel=frame.y_label,
            xscale="log" if frame.log_x else "linear",
            yscale="log" if frame.log_y else "linear",
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.grid(color="#e3e5e8", linewidth=0.8)
        axes.set_axisbelow(True)
        if frame.curves:
            axes.legend(frameon=False, fontsize=9)
        for suffix, metadata in zip(SUFFIXES, ({"Date": None}, {"Software": "discreet"}), strict=True):
            path = stem.with_name(f"{stem.name}.{suffix}")
            figure.savefig(path, format=suffix, dpi=160, metadata=metadata)
            written.append(path)
    return tuple(written)
