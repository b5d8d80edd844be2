"""The charts of a comparison: what they show, their colours, and their files (SVG and PNG)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from discreet.methods import METHODS
from discreet.report.values import Comparison, Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart in the simulated vision of protanopia, deuteranopia and tritanopia, and visible on their theme's
# background; a test holds both. A marker of its own goes with each colour.
LIGHT = ("#065391", "#992100", "#0e896a", "#b972d2", "#a27b06", "#7391a4", "#383e45", "#7e5de4")
DARK = ("#7684ff", "#f7814b", "#28c58c", "#da82b3", "#fbd152", "#97d2f6", "#ddddde", "#8886d1")
BACKGROUND = ("#ffffff", "#181b1f")
MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "plus", "bar")
_MATPLOTLIB_MARKERS = ("o", "s", "^", "D", "v", "X", "P", "|")

SHOWN_BELOW_WORST = 0.12


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """A line: (x, mean, low, high) in order of x, and the number of its colour and marker."""

    name: str
    style: int
    points: tuple[tuple[float, float, float, float], ...]


@final
@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines of accuracy over one public quantity."""

    key: str
    title: str
    x_label: str
    x_short: str
    series: tuple[Series, ...]
    x_least: float = 0.0

    @property
    def x_max(self) -> float:
        return max((self.x_least, *(x for line in self.series for x, *_ in line.points))) or 1.0

    @property
    def y_range(self) -> tuple[float, float]:
        """The part of [0, 1] where lines end and differ, in steps of 5 %; what starts below is cut off."""
        last = [line.points[-1][1] for line in self.series if line.points]
        if not last:
            return 0.0, 1.0
        low = math.floor((min(last) - SHOWN_BELOW_WORST) * 20) / 20
        return max(low, 0.0), min(1.0, math.ceil((max(last) + 0.01) * 20) / 20)


def styles(entries: Iterable[Entry]) -> dict[str, int]:
    """A number for each row, by the method's place in METHODS: the same colour on every page.

    Further rows of one method follow after the last method.
    """
    order = {name: place for place, name in enumerate(METHODS)}
    numbers: dict[str, int] = {}
    following = len(order)
    for entry in sorted(entries, key=lambda e: (order.get(e.method, len(order)), e.name != e.method, e.name)):
        place = order.get(entry.method)
        if place is None or place in numbers.values():
            place, following = following, following + 1
        numbers[entry.name] = place
    return numbers


def shape(style: int) -> int:
    """The marker's number: where the colours begin again, markers are moved on by one."""
    return (style + style // len(LIGHT)) % len(MARKERS)


def charts(comparison: Comparison) -> tuple[Chart, ...]:
    """Accuracy against steps and against certified epsilon."""
    numbers = styles(comparison.entries)
    by_step: list[Series] = []
    by_epsilon: list[Series] = []
    for entry in comparison.finished:
        curve = entry.curve
        finite = [(epsilon, accuracy) for _, epsilon, accuracy in curve if math.isfinite(epsilon)]
        steps = tuple((float(step), a.mean, a.low, a.high) for step, _, a in curve)
        spent = tuple((epsilon, a.mean, a.low, a.high) for epsilon, a in finite)
        by_step.append(Series(name=entry.name, style=numbers[entry.name], points=steps))
        by_epsilon.append(Series(name=entry.name, style=numbers[entry.name], points=spent))
    return (
        Chart(
            key="accuracy-by-step",
            title="Accuracy against steps",
            x_label="steps taken",
            x_short="step",
            series=tuple(by_step),
        ),
        Chart(
            key="accuracy-by-epsilon",
            title="Accuracy against privacy spent",
            x_label="certified epsilon spent so far",
            x_short="ε",
            series=tuple(by_epsilon),
            x_least=comparison.epsilon,  # the budget itself has a place on the axis
        ),
    )


def ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Round numbers from low to high, at most so many; steps that end on `high` are preferred.

    >>> ticks(0.0, 120.0, 7), ticks(0.0, 3.0, 7)
    ((0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0), (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0))
    """
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= raw * (1 - 1e-9)]
    ending = [step for step in steps[:3] if abs(high / step - round(high / step)) < 1e-9]
    step = ending[0] if ending else steps[0]
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(index * step, 10) for index in range(first, last + 1))


def save(comparison: Comparison, directory: Path) -> tuple[Path, ...]:
    """Each chart and the ranking as SVG and PNG files, for papers and slides (light background)."""
    import matplotlib
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    drawings: list[tuple[str, Callable[[Axes], None]]] = [
        *((chart.key, partial(_draw_lines, chart)) for chart in charts(comparison)),
        ("ranking", partial(_draw_ranking, comparison)),
    ]
    # A fixed salt: the same comparison gives the same file. No mathematics: a name with a $ is a name.
    with matplotlib.rc_context({"font.size": 10, "svg.hashsalt": "discreet", "text.parse_math": False}):
        for key, draw in drawings:
            figure = Figure(figsize=(6.4, 4.0), layout="constrained")
            draw(figure.add_subplot())
            for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": "discreet"})):
                path = directory / f"{key}.{suffix}"
                figure.savefig(path, dpi=160, metadata=metadata)
                written.append(path)
    return tuple(written)


def _draw_lines(chart: Chart, axes: Axes) -> None:
    for line in chart.series:
        xs = [x for x, *_ in line.points]
        means = [mean for _, mean, _, _ in line.points]
        colour = LIGHT[line.style % len(LIGHT)]
        marker = _MATPLOTLIB_MARKERS[shape(line.style)]
        axes.plot(
            *(xs, means),
            color=colour,
            marker=marker,
            markersize=4,
            markevery=max(1, len(xs) // 8),
            linewidth=1.5,
            label=line.name,
        )
    axes.set_xlim(0, chart.x_max * 1.02)
    axes.set_ylim(*chart.y_range)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel("test accuracy")
    _restrained(axes, "y")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f}%")
    if chart.series:
        axes.legend(frameon=False, fontsize=9)


def _draw_ranking(comparison: Comparison, axes: Axes) -> None:
    numbers = styles(comparison.entries)
    names = [entry.name for entry in comparison.finished]
    for place, entry in enumerate(comparison.finished):
        accuracy = entry.accuracy
        assert accuracy is not None  # it has finished runs
        colour = LIGHT[numbers[entry.name] % len(LIGHT)]
        axes.plot([accuracy.low, accuracy.high], [place, place], color=colour, linewidth=2)
        axes.plot(
            [run.accuracy for run in entry.runs], [place] * len(entry.runs), "o", color=colour, alpha=0.4
        )
        axes.plot([accuracy.mean], [place], "D", color=colour)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy: mean, 95 % t interval, single runs")
    _restrained(axes, "x")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f}%")


def _restrained(axes: Axes, grid: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis=grid, color="#e3e5e8", linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
