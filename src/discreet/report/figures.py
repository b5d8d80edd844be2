"""The charts of a comparison: what they show, their colours, and their files (SVG and PNG)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from discreet.methods import METHODS
from discreet.runs.comparison.values import Comparison, Entry

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
FAR = 50.0
"""The ratio of the largest to the smallest value above which an axis is logarithmic."""

Changes = tuple[tuple[int, float], ...]
"""(first step, value) wherever a value changes."""


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
    """Lines over one public quantity; `percent`: values are shares of one. A log axis starts above zero."""

    key: str
    title: str
    x_label: str
    x_short: str
    series: tuple[Series, ...]
    y_range: tuple[float, float]
    y_label: str = "test accuracy"
    percent: bool = True
    x_least: float = 0.0
    log_x: bool = False
    log_y: bool = False

    @property
    def x_range(self) -> tuple[float, float]:
        """Where the axis begins and ends."""
        xs = [x for line in self.series for x, *_ in line.points]
        if self.log_x:
            return (min(xs), max(xs) * (1 + 1e-9)) if xs and min(xs) < max(xs) else (1.0, 10.0)
        return 0.0, self.x_max

    @property
    def x_max(self) -> float:
        return max((self.x_least, *(x for line in self.series for x, *_ in line.points))) or 1.0


def _in_steps(low: float, high: float) -> tuple[float, float]:
    """A range of accuracies in steps of 5 %."""
    first, last = math.floor(low * 20 + 1e-9) / 20, math.ceil(high * 20 - 1e-9) / 20
    return max(first, 0.0), min(1.0, max(last, first + 0.05))


def _where_lines_end(series: Sequence[Series]) -> tuple[float, float]:
    """The part of [0, 1] where lines end and differ, half of each at least; what starts below is cut off."""
    last = _in_the_race([line.points[-1][1] for line in series if line.points])
    if not last:
        return 0.0, 1.0
    halfway = [
        line.points[len(line.points) // 2][1] for line in series if line.points and line.points[-1][1] in last
    ]
    return _in_steps(min(*halfway, min(last) - SHOWN_BELOW_WORST), max(last) + 0.01)


def _where_points_are(series: Sequence[Series]) -> tuple[float, float]:
    """The part of [0, 1] that holds the means."""
    means = _in_the_race([mean for line in series for _, mean, *_ in line.points])
    return _in_steps(min(means) - 0.02, max(means) + 0.01) if means else (0.0, 1.0)


def above_zero(series: Sequence[Series]) -> tuple[float, float]:
    """A little more than the positive values, for a log axis."""
    values = [mean for line in series for _, mean, *_ in line.points if mean > 0] or [1.0]
    return min(values) * 0.9, max(values) * 1.1


def _in_the_race(values: list[float]) -> list[float]:
    """Without what is not half as good as the best: one that failed to learn would press all others together."""
    return [value for value in values if value >= max(values) / 2]


def from_zero(series: Sequence[Series]) -> tuple[float, float]:
    """From zero to a little above the largest value."""
    return 0.0, max((mean for line in series for _, mean, *_ in line.points), default=1.0) * 1.08 or 1.0


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
            y_range=_where_lines_end(by_step),
        ),
        Chart(
            key="accuracy-by-epsilon",
            title="Accuracy against privacy spent",
            x_label="certified epsilon spent so far",
            x_short="ε",
            series=tuple(by_epsilon),
            y_range=_where_lines_end(by_epsilon),
            x_least=comparison.epsilon,  # the budget itself has a place on the axis
        ),
    )


def frontier(comparison: Comparison) -> Chart | None:
    """Final accuracy against the budget, each method calibrated anew; None where there is one budget."""
    if not comparison.others:
        return None
    numbers = styles(comparison.entries)
    points: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in numbers}
    for stage in comparison.stages:
        for entry in stage.entries:
            if (a := entry.accuracy) is not None and entry.name in points:
                points[entry.name].append((stage.epsilon, a.mean, a.low, a.high))
    series = tuple(
        Series(name=name, style=numbers[name], points=tuple(found)) for name, found in points.items() if found
    )
    return Chart(
        key="frontier",
        title="Accuracy at each budget",
        x_label="certified epsilon of the whole run",
        x_short="budget ε",
        series=series,
        y_range=_where_points_are(series),
    )


def courses(comparison: Comparison) -> tuple[Chart, ...]:
    """Noise, mask density and domain over the run, for the rows that have them."""
    numbers, end = styles(comparison.entries), comparison.steps

    def lines(values: Callable[[Entry], Changes]) -> tuple[Series, ...]:
        held = ((entry, _stairs(values(entry), end)) for entry in comparison.entries)
        return tuple(Series(name=e.name, style=numbers[e.name], points=steps) for e, steps in held if steps)

    masked = any(value < 1 for entry in comparison.entries for _, value in entry.course.density)
    noise = lines(lambda entry: entry.course.noise)
    density = lines(lambda entry: entry.course.density) if masked else ()
    domain = lines(lambda entry: () if entry.course.diameter is None else ((0, entry.course.diameter),))
    made = (
        ("noise", "Noise multiplier", "noise multiplier", False, noise),
        ("density", "Mask density", "share of active coordinates", True, density),
        ("domain", "Diameter of the domain", "diameter of the domain", False, domain),
    )
    return tuple(
        Chart(
            key=key,
            title=title,
            x_label="step",
            x_short="step",
            series=series,
            y_range=above_zero(series) if _spreads(series) and not percent else from_zero(series),
            y_label=label,
            percent=percent,
            x_least=end,
            log_y=_spreads(series) and not percent,
        )
        for key, title, label, percent, series in made
        if series
    )


def _spreads(series: Sequence[Series]) -> bool:
    """Whether one line would press the others to the foot of the chart."""
    values = [mean for line in series for _, mean, *_ in line.points if mean > 0]
    return bool(values) and max(values) > FAR * min(values)


def _stairs(changes: Changes, end: int) -> tuple[tuple[float, float, float, float], ...]:
    """The line that holds each value until the next change."""
    held = [*changes, (end, changes[-1][1])] if changes else []
    corners = [(float(step), value) for step, value in held[:1]]
    for (_, before), (step, value) in itertools.pairwise(held):
        corners += [(float(step), before)] + ([(float(step), value)] if value != before else [])
    return tuple((x, y, y, y) for x, y in corners)


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


def powers(low: float, high: float) -> tuple[float, ...]:
    """Ticks of a log axis: powers of ten, with 2 and 5 between where there are few.

    >>> powers(0.5, 20), powers(64, 60000)
    ((0.5, 1.0, 2.0, 5.0, 10.0, 20.0), (100.0, 1000.0, 10000.0))
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2 else (1,)
    every = (factor * 10.0**exponent for exponent in exponents for factor in factors)
    return tuple(value for value in every if low * (1 - 1e-9) <= value <= high * (1 + 1e-9))


def save(comparison: Comparison, directory: Path) -> tuple[Path, ...]:
    """Each chart and the ranking as SVG and PNG files, for papers and slides (light background)."""
    over_budgets = frontier(comparison)
    shown = [*charts(comparison), *courses(comparison), *([] if over_budgets is None else [over_budgets])]
    return draw(shown, directory, [("ranking", partial(_draw_ranking, comparison))])


def draw(
    shown: Iterable[Chart], directory: Path, further: Iterable[tuple[str, Callable[[Axes], None]]] = ()
) -> tuple[Path, ...]:
    """Charts, and what else can be drawn, as SVG and PNG files; figures of earlier calls are left alone."""
    import matplotlib
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    drawings: list[tuple[str, Callable[[Axes], None]]] = [
        *((chart.key, partial(_draw_lines, chart)) for chart in shown),
        *further,
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
            linestyle="-" if line.style < len(LIGHT) else "--",
            label=line.name,
        )
    axes.set(xscale="log" if chart.log_x else "linear", yscale="log" if chart.log_y else "linear")
    if not chart.log_x:
        axes.set_xlim(0, chart.x_max * 1.02)
    axes.set_ylim(*chart.y_range)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    _restrained(axes, "y")
    if chart.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f}%")
    if len(chart.series) > len(LIGHT):  # too many to find room among the lines
        axes.figure.legend(loc="outside right center", frameon=False, fontsize=8)
    elif chart.series:
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
