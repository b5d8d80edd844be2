"""A chart as a value, its colours and axes, and its files (SVG and PNG). `svg` draws the same value into a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.core.files import check_file, replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinguishable in simulated protanopia, deuteranopia and tritanopia, and visible on the background of their
# theme; tests check both. A marker of its own goes with each colour.
LIGHT = ("#065391", "#992100", "#0e896a", "#b972d2", "#a27b06", "#7391a4", "#383e45", "#7e5de4")
DARK = ("#7684ff", "#f7814b", "#28c58c", "#da82b3", "#fbd152", "#97d2f6", "#ddddde", "#8886d1")

# (Matplotlib's name, an SVG path around the origin about 8 units across)
MARKERS = (
    ("o", "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0z"),
    ("s", "M-3.2,-3.2h6.4v6.4h-6.4z"),
    ("^", "M0,-4.2L4,3H-4z"),
    ("D", "M0,-4.6L4.2,0L0,4.6L-4.2,0z"),
    ("v", "M0,4.2L4,-3H-4z"),
    (
        "X",
        "M-3.6,-2.2l1.4,-1.4l2.2,2.2l2.2,-2.2l1.4,1.4l-2.2,2.2l2.2,2.2l-1.4,1.4l-2.2,-2.2l-2.2,2.2l-1.4,-1.4l2.2,-2.2z",
    ),
    ("P", "M-1.1,-4.2h2.2v3.1h3.1v2.2h-3.1v3.1h-2.2v-3.1h-3.1v-2.2h3.1z"),
    ("|", "M-1.3,-4.6h2.6v9.2h-2.6z"),
)

GREY = "#b9bec5"
MOST_LABELS = 8

Interval = tuple[float, float]
Points = tuple[tuple[float, float, float, float], ...]  # (x, mean, low, high) in order of x


@final
@dataclass(frozen=True)
class Series:
    """A line, and the number of its colour and marker; one that is not bright is drawn in grey, without a label."""

    name: str
    style: int
    points: Points
    bright: bool = True

    @staticmethod
    def exact(name: str, style: int, points: Sequence[tuple[float, float]]) -> Series:
        return Series(name, style, tuple((float(x), y, y, y) for x, y in points))


@final
@dataclass(frozen=True)
class Chart:
    """Lines over one public quantity.

    percent  values are shares of one
    x_least  the least value at which the x axis may end
    """

    key: str
    title: str
    x_label: str
    x_short: str
    series: tuple[Series, ...]
    y_range: Interval
    y_label: str = "test accuracy"
    percent: bool = False
    x_least: float = 0.0
    log_x: bool = False
    log_y: bool = False

    @property
    def x_range(self) -> Interval:
        xs = [x for line in self.series for x, *_ in line.points]
        if self.log_x:
            return (min(xs), max(xs) * (1 + 1e-9)) if xs and min(xs) < max(xs) else (1.0, 10.0)
        return min(0.0, *xs) if xs else 0.0, max(self.x_least, *xs, 0.0) or 1.0


def means(series: Sequence[Series]) -> list[float]:
    return [mean for line in series for _, mean, *_ in line.points]


def from_zero(series: Sequence[Series]) -> Interval:
    return 0.0, max(means(series), default=1.0) * 1.08 or 1.0


def above_zero(series: Sequence[Series]) -> Interval:
    values = [mean for mean in means(series) if mean > 0] or [1.0]
    return min(values) * 0.9, max(values) * 1.1


def shape(style: int) -> int:
    """The marker's number: where the colours start again, markers are shifted by one."""
    return (style + style // len(LIGHT)) % len(MARKERS)


def ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """At most so many round numbers from low to high; steps that end on `high` are preferred.

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


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten, with 2 and 5 between them where there are few.

    >>> log_ticks(0.5, 20), log_ticks(64, 60000)
    ((0.5, 1.0, 2.0, 5.0, 10.0, 20.0), (100.0, 1000.0, 10000.0))
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2 else (1,)
    every = (factor * 10.0**exponent for exponent in exponents for factor in factors)
    return tuple(value for value in every if low * (1 - 1e-9) <= value <= high * (1 + 1e-9))


def files(folder: Path, key: str) -> tuple[Path, Path]:
    return folder / f"{key}.svg", folder / f"{key}.png"


def save(chart: Chart, *paths: Path, titled: bool = False) -> tuple[Path, ...]:
    """The chart on a light background, a file for each path; each name ends in .svg or .png."""
    return save_drawing(partial(_draw, chart, titled), *paths)


def save_both(chart: Chart, folder: Path) -> tuple[Path, ...]:
    """The chart as an SVG and as a PNG file."""
    return save(chart, *files(folder, chart.key))


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be written, before the computation starts."""
    check.require(path.suffix.lower() in (".svg", ".png"), "a file name ending in .svg or .png", path, "rename it")
    check.require(path.parent.is_dir(), "an existing directory", path.parent, "create it first")
    check_file(path)


def epsilon_chart(title: str, points: Sequence[tuple[int, float]]) -> Chart:
    """Epsilon against steps; a plan without a certificate is refused."""
    finite = [(step, epsilon) for step, epsilon in points if math.isfinite(epsilon)]
    check.require(bool(finite), "a finite epsilon to draw", "no proven guarantee", "choose a certified plan")
    line = Series.exact("", 0, [(0, 0.0), *finite])
    return Chart("epsilon", title, "steps", "", (line,), from_zero([line]), "certified epsilon")


def save_drawing(draw: Callable[[Axes], None], *paths: Path) -> tuple[Path, ...]:
    """Whatever `draw` draws, in the style of all figures; the same drawing gives the same bytes of SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    # A fixed salt makes files repeatable. A name with a $ is a name, not mathematics.
    with matplotlib.rc_context({"font.size": 10, "svg.hashsalt": "discreet", "text.parse_math": False}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.set_axisbelow(True)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = path.suffix.lower()[1:]
            metadata = {"Date": None} if kind == "svg" else {"Software": "discreet"}
            replace_file(path, partial(figure.savefig, format=kind, dpi=160, metadata=metadata))
    return paths


def light_grid(axes: Axes, axis: str) -> None:
    axes.grid(axis=axis, color="#e3e5e8", linewidth=0.8)  # type: ignore[arg-type]


def as_percent(value: float, _: object = None) -> str:
    return f"{value * 100:.0f}%"


def label_places(ends: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels near the ends of their lines, at least `gap` apart and inside [low, high] where they fit.

    >>> label_places([5.0, 5.5, 20.0], 2.0, 0.0, 30.0)
    [4.25, 6.25, 20.0]
    """
    order = sorted(range(len(ends)), key=ends.__getitem__)
    groups: list[tuple[float, int]] = []  # (first place, number of labels), each as near to its lines as it can be
    members: list[list[float]] = []
    for index in order:
        members.append([ends[index]])
        groups.append((ends[index], 1))
        while len(groups) > 1 and groups[-1][0] < groups[-2][0] + gap * groups[-2][1]:
            joined = members[-2] + members.pop()
            groups.pop()
            members[-1] = joined
            first = sum(end - gap * place for place, end in enumerate(joined)) / len(joined)
            groups[-1] = (first, len(joined))
        first, count = groups[-1]
        groups[-1] = (max(low, min(first, high - gap * (count - 1))), count)
    placed = [first + gap * place for first, count in groups for place in range(count)]
    found = [0.0] * len(ends)
    for index, place in zip(order, placed, strict=True):
        found[index] = place
    return found


def labelled(chart: Chart) -> list[Series]:
    """The lines with a name at their end: the bright ones, unless they are too many; these need a legend."""
    found = [line for line in chart.series if line.bright and line.name and line.points]
    return found if len(found) <= MOST_LABELS else []


def _draw(chart: Chart, titled: bool, axes: Axes) -> None:
    for line in sorted(chart.series, key=lambda one: one.bright):  # bright lines on top
        axes.plot(
            [x for x, *_ in line.points],
            [mean for _, mean, *_ in line.points],
            color=LIGHT[line.style % len(LIGHT)] if line.bright else GREY,
            marker=MARKERS[shape(line.style)][0] if line.bright else None,
            markersize=4,
            markevery=max(1, len(line.points) // 8),
            linewidth=1.8 if line.bright else 1.0,
            linestyle="-" if line.style < len(LIGHT) else "--",
            label=line.name,
        )
    axes.set(xscale="log" if chart.log_x else "linear", yscale="log" if chart.log_y else "linear")
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, title=chart.title if titled else "")
    if not chart.log_x:
        low, high = chart.x_range
        axes.set_xlim(low, high * 1.02)
    axes.set_ylim(*chart.y_range)
    light_grid(axes, "y")
    if chart.percent:
        axes.yaxis.set_major_formatter(as_percent)
    if labelled(chart):
        _label_ends(chart, axes)
    elif any(line.name for line in chart.series):  # too many to name at their ends
        axes.figure.legend(loc="outside right center", frameon=False, fontsize=8)


def _label_ends(chart: Chart, axes: Axes) -> None:
    """The names of the bright lines to the right of their ends."""
    lines = labelled(chart)
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    ends = [float(to_axes(line.points[-1][:2])[1]) for line in lines]
    for line, y in zip(lines, label_places([min(max(end, 0.0), 1.0) for end in ends], 0.05, 0.0, 1.0), strict=True):
        colour = LIGHT[line.style % len(LIGHT)]
        axes.text(1.02, y, line.name, transform=axes.transAxes, color=colour, va="center", fontsize=9)
