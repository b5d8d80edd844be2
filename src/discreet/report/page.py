"""A comparison as one self-contained HTML page, with its data and its figures as files beside it.

Every string goes through an escaping template or an element tree. The page's content security policy allows only the
script of this package, by its hash, and no network request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, final

from discreet.core import check
from discreet.report import figures, svg, tables, wording
from discreet.report.charts import DARK, LIGHT, Chart
from discreet.runs.comparison.values import Comparison, Entry, settings_in_words

PAGE, DATA, FIGURES = "report.html", "report.json", "figures"


@final
@dataclass(frozen=True, kw_only=True)
class Written:
    """The files of a report."""

    page: Path
    data: Path
    figures: tuple[Path, ...]


def write(comparison: Comparison, directory: Path) -> Written:
    """Write report.html, report.json and figures/ to `directory`; each file is complete or absent."""
    directory.mkdir(parents=True, exist_ok=True)
    page, data = directory / PAGE, directory / DATA
    replace(data, json.dumps(comparison.to_json(), indent=1, allow_nan=False) + "\n")
    replace(page, render(comparison))
    return Written(page=page, data=data, figures=figures.save_all(comparison, directory / FIGURES))


def read(path: Path) -> Comparison:
    """The comparison of a report.json."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        check.refuse(
            "a report.json", f"{type(error).__name__}: {error}", "give the file that discreet compare wrote"
        )
    check.require(
        isinstance(held, dict), "a report.json", "another JSON file", "give discreet compare's file"
    )
    return Comparison.from_json(held)


def replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(text.encode("utf-8", "replace"))
    partial.replace(path)


def render(comparison: Comparison) -> str:
    """The page as a string."""
    frontier, numbers = figures.frontier(comparison), figures.styles(comparison.entries)
    return filled(
        "page.html",
        title=f"Private training on {comparison.data}, at {wording.counted(len(comparison.budgets), 'budget')}",
        delta=wording.power(comparison.delta),
        significance=wording.significance(comparison),
        text=wording,
        rows=_rows(comparison, numbers),
        legend=_legend((entry.name, numbers[entry.name]) for entry in comparison.finished),
        charts=[drawn(chart) for chart in figures.charts(comparison)],
        courses=[drawn(chart) for chart in figures.courses(comparison)],
        frontier=None if frontier is None else {"chart": drawn(frontier), **tables.frontier(comparison)},
        truth=tables.truth(comparison),
        data={chart.key: coordinates(chart) for chart in figures.every_chart(comparison)},
        comparison=comparison,
    )


def filled(template: str, **values: Any) -> str:
    """A rendered template with its style, its script and the policy that allows only these."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("discreet.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _asset("page.css") + _colours(), _asset("page.js")
    head = {"policy": _policy(style, script), "style": Markup(style), "script": Markup(script)}
    return environment.get_template(template).render(**head, **values)


def drawn(chart: Chart, *, named: bool = False) -> dict[str, Any]:
    """A chart as the templates use it; `named`: with a legend of its own."""
    from markupsafe import Markup

    legend = _legend((line.name, line.style) for line in chart.series) if named else []
    return {"key": chart.key, "title": chart.title, "svg": Markup(svg.chart(chart)), "legend": legend}


def _legend(lines: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    from markupsafe import Markup

    return [{"name": name, "marker": Markup(svg.marker(style))} for name, style in lines]


def _asset(name: str) -> str:
    return resources.files("discreet.report").joinpath("assets", name).read_text(encoding="utf-8")


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


def _rows(comparison: Comparison, numbers: dict[str, int]) -> list[dict[str, Any]]:
    shown = [value for e in comparison.finished for value in _extent(e)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    return [
        _row(entry, rank + 1, numbers[entry.name], low, high) for rank, entry in enumerate(comparison.entries)
    ]


def _extent(entry: Entry) -> list[float]:
    """The values that the strip shows: single runs, and the interval clipped to [0, 1]."""
    assert entry.accuracy is not None  # finished entries only
    ends = (max(entry.accuracy.low, 0.0), min(entry.accuracy.high, 1.0))
    return [*ends, *(run.accuracy for run in entry.runs)]


def _row(entry: Entry, rank: int, style: int, low: float, high: float) -> dict[str, Any]:
    """A table row: each cell has its text and its sort value (-1 if there is none)."""
    from markupsafe import Markup

    accuracy = entry.accuracy
    runs = tuple(run.accuracy for run in entry.runs)
    strip = "" if accuracy is None else svg.strip(accuracy, runs, style, low, high)

    def cell(value: float | None, text: str, missing: str = "–") -> dict[str, Any]:
        return {"value": -1 if value is None else value, "text": text if value is not None else missing}

    epsilon, claimed, noise = entry.epsilon, entry.claimed, entry.noise
    return {
        "rank": rank,
        "finished": accuracy is not None,
        "entry": entry,
        "summary": entry.summary.replace("`", ""),
        "settings": settings_in_words(entry),
        "marker": Markup(svg.marker(style)),
        "strip": Markup(strip),
        "accuracy": cell(accuracy and accuracy.mean, wording.percent(accuracy.mean) if accuracy else ""),
        "half": wording.half(accuracy),
        "error": wording.error(accuracy),
        "epsilon": cell(epsilon, wording.epsilon(epsilon)),
        "claimed": cell(claimed, wording.epsilon(claimed), "none" if entry.runs else "–"),
        "noise": cell(noise, wording.multiplier(noise) if noise is not None else ""),
        "steps": cell(entry.steps, f"{entry.steps}"),
        "seconds": cell(entry.seconds, f"{entry.seconds:.1f}" if entry.seconds is not None else ""),
        "failures": wording.failures(entry),
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
