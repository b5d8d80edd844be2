"""A comparison as one self-contained HTML page, with its data and its figures as files beside it.

Every string goes through an escaping template or an element tree. The page's content security policy allows only the
script of this package, by its hash, and no network request.
"""

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, final

import jinja2
from markupsafe import Markup

from discreet.core.files import write_json, write_text
from discreet.report import figures, standing, svg, wording
from discreet.report.charts import DARK, LIGHT, Chart
from discreet.runs.comparison.values import Comparison, settings_in_words

PAGE, DATA, FIGURES = "report.html", "report.json", "figures"


@final
@dataclass(frozen=True, kw_only=True)
class Written:
    page: Path
    data: Path
    figures: tuple[Path, ...]


def write(comparison: Comparison, directory: Path) -> Written:
    """Write report.html, report.json and figures/ to `directory`; each file is complete or absent."""
    directory.mkdir(parents=True, exist_ok=True)
    page, data = directory / PAGE, directory / DATA
    write_json(data, comparison.to_json(), indent=1)
    write_text(page, render(comparison))
    return Written(page=page, data=data, figures=figures.save_all(comparison, directory / FIGURES))


def render(comparison: Comparison) -> str:
    frontier, numbers = figures.frontier(comparison), figures.styles(comparison.entries)
    return filled(
        "page.html",
        title=f"Private training on {wording.data_called(comparison.data)}",
        delta=wording.power(comparison.delta),
        text=wording,
        standing=standing,
        bright=standing.bright(comparison),
        settings=settings_in_words,
        markers={name: Markup(svg.marker(style)) for name, style in numbers.items()},
        strips=_strips(comparison, numbers),
        legend=_legend(
            (entry.name, numbers[entry.name]) for entry in comparison.finished if standing.learned(comparison, entry)
        ),
        charts=[drawn(chart) for chart in figures.learning_curves(comparison)],
        courses=[drawn(chart) for chart in figures.courses(comparison)],
        frontier=None if frontier is None else drawn(frontier),
        by_budget=[{entry.name: entry for entry in budget.entries} for budget in comparison.budgets],
        data={chart.key: coordinates(chart) for chart in figures.every_chart(comparison)},
        comparison=comparison,
    )


def filled(template: str, **values: Any) -> str:
    """A rendered template with its style, its script and the policy that allows only these."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("discreet.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    assets = resources.files("discreet.report").joinpath("assets")
    css, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    style = css + _colours()
    head = {"policy": _policy(style, script), "style": Markup(style), "script": Markup(script)}
    return environment.get_template(template).render(**head, **values)


def drawn(chart: Chart, *, named: bool = False) -> dict[str, Any]:
    """A chart as the templates use it; `named`: with a legend of its own."""
    legend = _legend((line.name, line.style) for line in chart.series) if named else []
    return {"key": chart.key, "title": chart.title, "svg": Markup(svg.chart(chart)), "legend": legend}


def _legend(lines: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "marker": Markup(svg.marker(style))} for name, style in lines]


def _colours() -> str:
    """The custom properties --s0, --s1, ... of both themes, and the classes that use them."""

    def block(colours: tuple[str, ...]) -> str:
        return ":root{" + "".join(f"--s{index}:{colour};" for index, colour in enumerate(colours)) + "}"

    classes = "".join(f".s{index}{{--line:var(--s{index})}}" for index in range(len(LIGHT)))
    return f"{block(LIGHT)}@media (prefers-color-scheme:dark){{{block(DARK)}}}{classes}"


def _policy(style: str, script: str) -> str:
    """The content security policy: this style sheet, this script, nothing else, no network."""

    def hashed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return f"default-src 'none'; style-src {hashed(style)}; script-src {hashed(script)}; img-src data:"


def _strips(comparison: Comparison, numbers: dict[str, int]) -> dict[str, Any]:
    """For each finished row its runs, mean and interval on one scale."""
    shown = [entry for entry in comparison.finished if standing.learned(comparison, entry)]
    found = [(entry, entry.accuracy) for entry in shown if entry.accuracy is not None]
    ends = [end for _, accuracy in found for end in (max(accuracy.low, 0.0), min(accuracy.high, 1.0))]
    ends += [run.accuracy for entry, _ in found for run in entry.runs]
    ends = figures.without_low_outliers(ends) if ends else ends
    return {
        e.name: Markup(svg.strip(a, [run.accuracy for run in e.runs], numbers[e.name], min(ends), max(ends)))
        for e, a in found
    }


def coordinates(chart: Chart) -> dict[str, Any]:
    """The data of the read-out: the points of each line as (x in the drawing, x, mean, half width)."""
    plane = svg.Plane(chart)
    return {
        "label": chart.x_short,
        "percent": chart.percent,
        "left": svg.LEFT,
        "right": svg.WIDTH - svg.RIGHT,
        "width": svg.WIDTH,
        "lines": [
            {
                "name": line.name,
                "style": svg.style_class(line.style),
                "points": [
                    [round(plane.x(x), 1), round(x, 4), round(mean, 5), round(high - mean, 5)]
                    for x, mean, _, high in line.points
                ],
            }
            for line in chart.series
        ],
    }
