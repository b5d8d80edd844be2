"""The charts of a comparison, on its page and as files."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.methods import METHODS
from discreet.report import charts, standing
from discreet.report.charts import LIGHT, Chart, Interval, Series
from discreet.runs.comparison.values import Changes, Comparison, MethodResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_BELOW_WORST = 0.12
FAR = 50.0  # the ratio of the largest to the smallest value above which an axis is logarithmic


def styles(entries: Iterable[MethodResult]) -> dict[str, int]:
    """A style number for each row, by the method's place in METHODS: the same colour on every page.

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


def every_chart(comparison: Comparison) -> tuple[Chart, ...]:
    """Learning curves, then the course of each plan, then the frontier."""
    every = (*learning_curves(comparison), *courses(comparison), frontier(comparison))
    return tuple(chart for chart in every if chart is not None)


def learning_curves(comparison: Comparison) -> tuple[Chart, ...]:
    """Accuracy against steps and against certified epsilon."""
    numbers, shining = styles(comparison.entries), standing.bright(comparison)

    def chart(key: str, title: str, x_label: str, x_short: str, *, by_step: bool, x_least: float = 0.0) -> Chart:
        series = []
        for entry in _raced(comparison):
            found = [(float(step) if by_step else epsilon, accuracy) for step, epsilon, accuracy in entry.curve]
            points = tuple((x, a.mean, a.low, a.high) for x, a in found if math.isfinite(x))
            series.append(Series(entry.name, numbers[entry.name], points, entry.name in shining))
        lines, ends = tuple(series), _where_lines_end(series)
        named = f"test {comparison.measure}"
        return Chart(key, title, x_label, x_short, lines, ends, named, percent=True, x_least=x_least)

    name = _title(comparison)
    steps = chart("accuracy-by-step", f"{name} against steps", "steps taken", "step", by_step=True)
    title, label = f"{name} against privacy spent", "certified epsilon spent so far"
    return steps, chart("accuracy-by-epsilon", title, label, "ε", by_step=False, x_least=comparison.epsilon)


def _title(comparison: Comparison) -> str:
    """The measure at the start of a title."""
    return comparison.measure[0].upper() + comparison.measure[1:]


def _raced(comparison: Comparison) -> tuple[MethodResult, ...]:
    """The finished rows that learned: one that did not would compress the scale of all others."""
    return tuple(entry for entry in comparison.finished if standing.learned(comparison, entry))


def frontier(comparison: Comparison) -> Chart | None:
    """Final accuracy against the budget, each method calibrated anew; None for a single budget."""
    if not comparison.others:
        return None
    numbers, shining = styles(comparison.entries), standing.bright(comparison)
    raced = {entry.name for entry in _raced(comparison)}
    points: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in numbers if name in raced}
    for budget in comparison.budgets:
        for entry in budget.entries:
            if (a := entry.accuracy) is not None and entry.name in points:
                points[entry.name].append((budget.epsilon, a.mean, a.low, a.high))
    series = tuple(Series(name, numbers[name], tuple(held), name in shining) for name, held in points.items() if held)
    title, label = f"{_title(comparison)} at each budget", "certified epsilon of the whole run"
    values = without_low_outliers(charts.means(series))
    ends = _in_steps(min(values) - 0.02, max(values) + 0.01) if values else (0.0, 1.0)
    return Chart("frontier", title, label, "budget ε", series, ends, f"test {comparison.measure}", percent=True)


def courses(comparison: Comparison) -> tuple[Chart, ...]:
    """Noise, mask density and domain over the run, for the rows that have them."""
    numbers, end = styles(comparison.entries), comparison.steps

    def lines(values: Callable[[MethodResult], Changes]) -> tuple[Series, ...]:
        held = ((entry, _stairs(values(entry), end)) for entry in standing.learners(comparison))
        return _unusual([Series.exact(entry.name, numbers[entry.name], corners) for entry, corners in held if corners])

    masked = any(value < 1 for entry in comparison.entries for _, value in entry.course.density)
    noise = lines(lambda entry: entry.course.noise)
    density = lines(lambda entry: entry.course.density) if masked else ()
    domain = lines(lambda entry: () if entry.course.diameter is None else ((0, entry.course.diameter),))
    made = (
        _course("noise", "Noise multiplier", "noise multiplier", False, noise, end),
        _course("density", "Mask density", "share of active coordinates", True, density, end),
        _course("domain", "Diameter of the domain", "diameter of the domain", False, domain, end),
    )
    return tuple(chart for chart in made if chart.series)


def _unusual(series: list[Series]) -> tuple[Series, ...]:
    """The lines; bright are the baseline and those farthest from the most common one, as many as can have labels."""
    common = collections.Counter(line.points for line in series).most_common(1)
    same = common[0][0] if common and common[0][1] > 1 else None

    def distance(line: Series) -> float:
        return math.inf if same is None else max(abs(point[1] - same[-1][1]) for point in line.points)

    others = [line for line in series if line.points != same and line.name != standing.BASELINE]
    shown = sorted(others, key=distance, reverse=True)[: charts.MOST_LABELS - 1]
    names = {standing.BASELINE, *(line.name for line in shown)}
    return tuple(dataclasses.replace(line, bright=line.name in names) for line in series)


def _course(key: str, title: str, label: str, percent: bool, series: tuple[Series, ...], end: int) -> Chart:
    values = [mean for mean in charts.means(series) if mean > 0]
    # On a linear axis one line would press the others to the bottom.
    log = not percent and bool(values) and max(values) > FAR * min(values)
    ends = charts.above_zero(series) if log else charts.from_zero(series)
    return Chart(key, title, "step", "step", series, ends, label, percent=percent, x_least=end, log_y=log)


def save_all(comparison: Comparison, directory: Path) -> tuple[Path, ...]:
    """Each chart and the ranking as SVG and PNG files, for papers and slides."""
    written = [path for chart in every_chart(comparison) for path in charts.save_both(chart, directory)]
    ranking = partial(_draw_ranking, comparison)
    return (*written, *charts.save_drawing(ranking, *charts.files(directory, "ranking")))


def _draw_ranking(comparison: Comparison, axes: Axes) -> None:
    numbers = styles(comparison.entries)
    names, shining = [entry.name for entry in _raced(comparison)], standing.bright(comparison)
    for place, entry in enumerate(_raced(comparison)):
        accuracy = entry.accuracy
        assert accuracy is not None  # it has finished runs
        colour = LIGHT[numbers[entry.name] % len(LIGHT)] if entry.name in shining else charts.GREY
        axes.plot([accuracy.low, accuracy.high], [place, place], color=colour, linewidth=2)
        single = [run.accuracy for run in entry.runs]
        axes.plot(single, [place] * len(single), "o", color=colour, alpha=0.4)
        axes.plot([accuracy.mean], [place], "D", color=colour)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"test {comparison.measure}: mean, 95 % t interval, single runs")
    charts.light_grid(axes, "x")
    axes.xaxis.set_major_formatter(charts.as_percent)


def _in_steps(low: float, high: float) -> Interval:
    """A range of accuracies in steps of 5 %."""
    first, last = math.floor(low * 20 + 1e-9) / 20, math.ceil(high * 20 - 1e-9) / 20
    return max(first, 0.0), min(1.0, max(last, first + 0.05))


def without_low_outliers(values: Sequence[float]) -> list[float]:
    """Without values far below the others, which would compress the scale: Tukey's fence below the lower quartile.

    >>> without_low_outliers([0.62, 0.74, 0.79, 0.80, 0.80, 0.81])
    [0.74, 0.79, 0.8, 0.8, 0.81]
    """
    if len(values) < 4:
        return [value for value in values if value >= max(values) / 2]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return [value for value in values if value >= lower - 1.5 * (upper - lower)]


def _where_lines_end(series: Sequence[Series]) -> Interval:
    """The part of [0, 1] where lines end and differ, at least half of each; what starts below is cut off."""
    last = without_low_outliers([line.points[-1][1] for line in series if line.points])
    if not last:
        return 0.0, 1.0
    halfway = [line.points[len(line.points) // 2][1] for line in series if line.points and line.points[-1][1] in last]
    return _in_steps(min(*halfway, min(last) - SHOWN_BELOW_WORST), max(last) + 0.01)


def _stairs(changes: Changes, end: int) -> list[tuple[float, float]]:
    """The line that holds each value until the next change."""
    held = [*changes, (end, changes[-1][1])] if changes else []
    corners = [(float(step), value) for step, value in held[:1]]
    for (_, before), (step, value) in itertools.pairwise(held):
        corners += [(float(step), before)] + ([(float(step), value)] if value != before else [])
    return corners
