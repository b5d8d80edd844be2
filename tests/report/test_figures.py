"""Colours that everyone can tell apart, axes, and figure files."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
import synthetic

from discreet.methods import METHODS
from discreet.report import charts, figures, svg
from discreet.runs.comparison.values import PlanTimeline

Vector = npt.NDArray[np.float64]

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
APART = 17.0  # CIE 1976 distance; about 2.3 is the least that is noticed side by side
THEMES = {"light": (charts.LIGHT, "#ffffff"), "dark": (charts.DARK, "#181b1f")}  # colours, background


def linear(colour: str) -> Vector:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: Vector) -> Vector:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours: tuple[str, ...], vision: str) -> float:
    seen = [lab(VISION[vision] @ linear(colour)) for colour in colours]
    return min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(seen, 2))


def contrast(one: str, other: str) -> float:
    light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart(theme: str, vision: str) -> None:
    assert nearest(THEMES[theme][0], vision) >= APART


def test_the_colour_test_can_fail() -> None:
    """Matplotlib's usual colours merge without green receptors."""
    usual = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
    assert nearest(usual, "normal") >= APART
    assert nearest(usual, "deuteranopia") < APART


@pytest.mark.parametrize("theme", THEMES)
def test_lines_stand_out_from_the_background(theme: str) -> None:
    """3 to 1, the least contrast of WCAG 2 for graphics."""
    colours, background = THEMES[theme]
    assert min(contrast(colour, background) for colour in colours) >= 3


def test_a_method_has_its_own_colour_and_marker_whatever_is_compared_with_it() -> None:
    every = figures.styles(synthetic.comparison().entries)
    alone = figures.styles([synthetic.entry("psac")])
    assert alone["psac"] == every["psac"] == list(METHODS).index("psac")
    assert len(set(every.values())) == len(every)


def test_further_rows_of_a_method_get_further_styles() -> None:
    rows = [synthetic.entry("psac", name=name) for name in ("psac", "psac-large", "psac-small")]
    numbers = figures.styles(rows)
    assert numbers["psac"] == list(METHODS).index("psac")
    assert len({(number % len(charts.LIGHT), charts.shape(number)) for number in numbers.values()}) == 3


def test_colours_that_come_again_come_with_another_marker_and_dashes() -> None:
    first, again = 2, 2 + len(charts.LIGHT)
    assert charts.shape(first) != charts.shape(again)
    assert svg.style_class(again) == f"{svg.style_class(first)} dashed"


@pytest.mark.parametrize(("low", "high", "most"), [(0.0, 1.0, 6), (0.75, 1.0, 6), (0.0, 2344.0, 7), (0.0, 0.3, 7)])
def test_ticks_are_few_inside_and_evenly_spaced(low: float, high: float, most: int) -> None:
    found = charts.ticks(low, high, most)
    assert 2 <= len(found) <= most
    assert low - 1e-9 <= found[0]
    assert found[-1] <= high + 1e-9
    assert np.allclose(np.diff(found), found[1] - found[0])


def test_the_axis_shows_where_methods_differ() -> None:
    steps, epsilons = figures.learning_curves(synthetic.comparison())
    low, high = steps.y_range
    ends = [line.points[-1][1] for line in steps.series]
    assert low < min(ends) - 0.1
    assert low > 0.5
    assert max(ends) < high <= 1
    assert epsilons.x_range == (0.0, 3.0)


def test_the_axis_shows_half_of_a_line_that_rises_to_its_end() -> None:
    def line(slope: float, end: float) -> charts.Series:
        means = [end - slope * (20 - step) for step in range(1, 21)]
        return charts.Series(name="", style=0, points=tuple((i, m, m, m) for i, m in enumerate(means)))

    flat, steep = line(0.0, 0.9), line(0.04, 0.9)
    assert figures._where_lines_end([flat])[0] == 0.75
    assert figures._where_lines_end([flat, steep])[0] == pytest.approx(0.5)  # at its half it is at 0.54


def test_of_many_courses_the_most_unusual_are_named() -> None:
    """With too many bright lines none had a label: nobody could tell whose noise was far from the others'."""
    names = [name for name in METHODS if METHODS[name].certified][:14]
    noises = {name: 2.0 if place < 3 else 2.0 + 0.1 * place for place, name in enumerate(names)}
    rows = [
        synthetic.entry(name, course=PlanTimeline(noise=((0, noise),), density=((0, 1.0),)))
        for name, noise in noises.items()
    ]
    (chart,) = figures.courses(synthetic.comparison(tuple(rows)))
    named = {line.name for line in charts.labelled(chart)}
    assert named == {"dp-sgd", *names[-charts.MOST_LABELS + 1 :]}


def test_a_chart_without_lines_is_drawn_empty() -> None:
    broken = synthetic.comparison((synthetic.entry("dp-sgd", ()),))
    for chart in figures.learning_curves(broken):
        assert "<svg" in svg.chart(chart)


def test_figures_are_written_and_repeat_byte_for_byte(tmp_path: Path) -> None:
    strange = synthetic.entry("dp-sgd", name="$dp_{sgd}$ <b>&")
    found = synthetic.comparison((strange, synthetic.entry("psac")))
    once, again = (figures.save_all(found, tmp_path / place) for place in ("once", "again"))
    assert sorted(path.name for path in once) == sorted(
        f"{name}.{kind}" for name in ("accuracy-by-step", "accuracy-by-epsilon", "ranking") for kind in ("svg", "png")
    )
    for first, second in zip(once, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
        if first.suffix == ".svg":
            ElementTree.parse(first)
        else:
            assert first.read_bytes().startswith(b"\x89PNG")
