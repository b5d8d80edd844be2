"""Charts as inline SVG, built as an element tree, so that every string is escaped."""

import math
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree as Tree

from discreet.report.charts import LIGHT, MARKERS, Chart, Series, label_places, labelled, log_ticks, shape, ticks
from discreet.runs.comparison.values import Estimate

WIDTH, HEIGHT = 520, 320
LEFT, RIGHT, TOP, BOTTOM = 46, 108, 10, 46
STRIP_WIDTH, STRIP_HEIGHT = 132, 18
LONGEST_LABEL = 17


def _add(parent: Tree.Element, tag: str, text: str | None = None, **attributes: Any) -> Tree.Element:
    written = {
        key.rstrip("_").replace("_", "-"): f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
        for key, value in attributes.items()
    }
    element = Tree.SubElement(parent, tag, written)
    element.text = text
    return element


def _root(width: int, height: int, label: str, kind: str) -> Tree.Element:
    attributes = {"viewBox": f"0 0 {width} {height}", "class": kind, "role": "img", "aria-label": label}
    return Tree.Element("svg", attributes)


def _text(root: Tree.Element) -> str:
    return Tree.tostring(root, encoding="unicode", method="html")


class Plane:
    """Maps data to the coordinates of a drawing."""

    def __init__(self, chart: Chart) -> None:
        self._x = _scale(chart.x_range, chart.log_x)
        self._y = _scale(chart.y_range, chart.log_y)

    def x(self, value: float) -> float:
        return LEFT + self._x(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (1 - self._y(value)) * (HEIGHT - TOP - BOTTOM)


def _scale(ends: tuple[float, float], log: bool) -> Callable[[float], float]:
    """Maps [low, high] to [0, 1]; values below `low` are at the bottom of a log axis."""
    low, high = ends
    if log:
        return lambda value: math.log(max(value, low) / low) / math.log(high / low)
    return lambda value: (value - low) / (high - low)


def chart(chart: Chart) -> str:
    """One chart; lines have the class `s<number>`, which the style sheet colours for both themes."""
    plane = Plane(chart)
    names = ", ".join(line.name for line in chart.series)
    root = _root(WIDTH, HEIGHT, f"{chart.title}: {names}", "chart-svg")
    _axes(root, chart, plane)
    clip = f"clip-{chart.key}"
    window = _add(_add(root, "defs"), "clipPath", id=clip)
    _add(window, "rect", x=LEFT, y=TOP - 5, width=WIDTH - LEFT - RIGHT + 6, height=HEIGHT - TOP - BOTTOM + 5)
    lines = _add(root, "g", clip_path=f"url(#{clip})")
    for line in sorted(chart.series, key=lambda one: one.bright):  # bright lines on top
        _line(lines, line, plane)
    _labels(root, chart, plane)
    _add(root, "line", class_="cursor", x1=LEFT, x2=LEFT, y1=TOP, y2=HEIGHT - BOTTOM)
    return _text(root)


def _axes(root: Tree.Element, chart: Chart, plane: Plane) -> None:
    bottom = HEIGHT - BOTTOM
    low, high = chart.y_range
    for value in log_ticks(low, high) if chart.log_y else ticks(low, high, 6):
        y = plane.y(value)
        text = f"{value * 100:g}%" if chart.percent else _short(value)
        _add(root, "line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
        _add(root, "text", text, class_="tick", x=LEFT - 8, y=y + 4, text_anchor="end")
    low, high = chart.x_range
    for value in log_ticks(low, high) if chart.log_x else ticks(low, high, 7):
        x = plane.x(value)
        _add(root, "line", class_="axis", x1=x, x2=x, y1=bottom, y2=bottom + 4)
        _add(root, "text", _short(value), class_="tick", x=x, y=bottom + 18, text_anchor="middle")
    _add(root, "line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom)
    middle = (LEFT + WIDTH - RIGHT) / 2
    _add(root, "text", chart.x_label, class_="label", x=middle, y=HEIGHT - 6, text_anchor="middle")


def _short(value: float) -> str:
    """A tick of at most five characters.

    >>> _short(20000.0), _short(0.00025), _short(2.5)
    ('20k', '2.5e-4', '2.5')
    """
    if 1000 <= abs(value) < 1e6:
        return f"{value / 1000:g}k"
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.3g}"
    return f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")


def _line(parent: Tree.Element, line: Series, plane: Plane) -> None:
    rest = "" if line.bright else " rest"
    point = " point" if len(line.points) == 1 else ""
    group = _add(parent, "g", class_=f"line {style_class(line.style)}{rest}{point}", data_name=line.name)
    if not line.points:
        return
    middle, lower, upper = (
        [f"{plane.x(point[0]):.1f},{plane.y(point[which]):.1f}" for point in line.points] for which in (1, 2, 3)
    )
    _add(group, "path", class_="band", d=f"M{'L'.join(upper + lower[::-1])}z")
    _add(group, "path", class_="mean", d=f"M{'L'.join(middle)}")
    # Markers of different lines are staggered, so that both show where lines coincide.
    every = max(1, len(line.points) // 7)
    for place in middle[line.style % every :: every]:
        _add(group, "path", class_="mark", d=MARKERS[shape(line.style)][1], transform=f"translate({place})")


def _labels(root: Tree.Element, chart: Chart, plane: Plane) -> None:
    """The names of the bright lines at their ends."""
    lines, top, bottom = labelled(chart), float(TOP), float(HEIGHT - BOTTOM)
    ends = [min(max(plane.y(line.points[-1][1]), top), bottom) for line in lines]
    for line, y in zip(lines, label_places(ends, 15.0, top + 4, bottom), strict=True):
        shown = line.name if len(line.name) <= LONGEST_LABEL else line.name[: LONGEST_LABEL - 1] + "…"
        _add(root, "text", shown, class_=f"end {style_class(line.style)}", x=WIDTH - RIGHT + 8, y=y + 4)


def marker(style: int) -> str:
    attributes = {"viewBox": "-6 -6 12 12", "class": f"swatch {style_class(style)}", "aria-hidden": "true"}
    root = Tree.Element("svg", attributes)
    _add(root, "path", class_="mark", d=MARKERS[shape(style)][1])
    return _text(root)


def strip(accuracy: Estimate, runs: Sequence[float], style: int, low: float, high: float) -> str:
    """A small plot on the scale of all rows: the interval, the mean, and single runs as dots."""
    span = max(high - low, 1e-9)

    def x(value: float) -> float:
        return 6 + min(max((value - low) / span, 0.0), 1.0) * (STRIP_WIDTH - 12)

    label = f"mean {accuracy.mean:.1%}, runs " + ", ".join(f"{value:.1%}" for value in runs)
    root = _root(STRIP_WIDTH, STRIP_HEIGHT, label, f"strip {style_class(style)}")
    middle = STRIP_HEIGHT / 2
    _add(root, "line", class_="grid", x1=0, x2=STRIP_WIDTH, y1=middle, y2=middle)
    if accuracy.half is not None:
        _add(root, "line", class_="interval", x1=x(accuracy.low), x2=x(accuracy.high), y1=middle, y2=middle)
    for value in runs:
        _add(root, "circle", class_="dot", cx=x(value), cy=middle, r=3)
    mean = x(accuracy.mean)
    _add(root, "line", class_="middle", x1=mean, x2=mean, y1=middle - 6, y2=middle + 6)
    return _text(root)


def style_class(style: int) -> str:
    """The class of a line's colour; after the last colour they repeat with dashes."""
    return f"s{style % len(LIGHT)}" + (" dashed" if style >= len(LIGHT) else "")
