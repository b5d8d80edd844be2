"""The page in a real browser: no trouble in the console, the table sorts, the charts are drawn and answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import headless
import pytest
import synthetic

from discreet.report import planned
from discreet.report.page import render
from discreet.runs.comparison.values import Comparison
from discreet.runs.planning.planner import Answer, BatchPrice, MethodPrice, Price, Question

pytestmark = pytest.mark.skipif(
    headless.CHROMIUM is None, reason="no Chromium here: install it (Debian: apt-get install chromium) to test the page"
)

NAMES = "[...document.querySelectorAll('[data-sortable=ranking] tbody .name')].map(e => e.textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[headless.Browser]:
    with headless.Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def put(comparison: Comparison, directory: Path) -> Path:
    page = directory / "report.html"
    page.write_bytes(render(comparison).encode("utf-8", "replace"))
    return page


@pytest.fixture
def show(browser: headless.Browser, tmp_path: Path) -> Iterator[headless.Browser]:
    """The usual page, and afterwards: no trouble, and nothing was asked for but the page."""
    browser.troubles.clear()
    browser.requests.clear()
    browser.open(put(synthetic.comparison(), tmp_path))
    yield browser
    assert browser.troubles == []
    assert {Path(address).name for address in browser.requests} == {"report.html"}


def heading(column: int) -> str:
    return f"[data-sortable=ranking] thead th:nth-child({column}) button"


def test_the_table_sorts_by_click_and_back(show: headless.Browser) -> None:
    ranked = [entry.name for entry in synthetic.comparison().entries]
    assert show.value(NAMES) == ranked
    show.click(heading(2))
    assert show.value(NAMES) == sorted(ranked)
    show.click(heading(2))
    assert show.value(NAMES) == sorted(ranked, reverse=True)
    assert show.value("document.querySelector('th[aria-sort]').textContent.trim()") == "method"
    show.click(heading(3))
    assert show.value(NAMES) == ranked  # accuracy starts with the best


def test_the_table_sorts_numbers_as_numbers(show: headless.Browser) -> None:
    show.click(heading(8))
    seconds = show.value("[...document.querySelectorAll('[data-label=seconds]')].map(e => +e.dataset.value)")
    assert seconds == sorted(seconds)


def test_the_table_sorts_by_keyboard(show: headless.Browser) -> None:
    show.value(f"document.querySelector({heading(2)!r}).focus()")
    show.press("Enter", text="\r")
    assert show.value(NAMES) == sorted(entry.name for entry in synthetic.comparison().entries)


def test_every_chart_is_drawn(show: headless.Browser) -> None:
    """Each line has a path with a length on the screen and a colour of its own."""
    assert show.value("document.querySelectorAll('.chart-svg').length") == 2
    lengths = show.value("[...document.querySelectorAll('.chart-svg .mean')].map(e => e.getTotalLength())")
    assert len(lengths) == 12
    assert min(lengths) > 100
    colours = show.value("[...document.querySelectorAll('.mean')].map(e => getComputedStyle(e).stroke)")
    assert len(set(colours)) == 5  # three at the top, dp-sgd, and grey


def test_the_charts_answer_to_the_pointer_and_to_keys(show: headless.Browser) -> None:
    text = "document.querySelector('.readout').textContent"
    hidden = "document.querySelector('.readout').hidden"
    assert show.value(hidden)
    show.hover("figure .chart-svg")
    assert not show.value(hidden)
    assert "dp-sgd" in show.value(text)
    show.value("document.querySelector('figure').focus()")
    show.press("Home")
    assert show.value(text).startswith("step 6")
    show.press("ArrowRight")
    assert show.value(text).startswith("step 12")
    show.press("Escape")
    assert show.value(hidden)


def test_a_method_is_highlighted_in_all_charts(show: headless.Browser) -> None:
    show.click("[data-name=psac]")
    lit = show.value("[...document.querySelectorAll('.line.on')].map(e => e.dataset.name)")
    assert lit == ["psac", "psac"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(show: headless.Browser, tmp_path: Path, width: int, dark: bool) -> None:
    show.open(tmp_path / "report.html", width=width, dark=dark)
    assert show.value("document.documentElement.scrollWidth") <= width
    small = show.value("Math.min(...[...document.querySelectorAll('text')].map(e => e.getBoundingClientRect().height))")
    assert small >= 9
    tables = "[...document.querySelectorAll('table')].filter(e => !e.closest('.scroll'))"
    assert show.value(f"{tables}.filter(e => e.getBoundingClientRect().right > innerWidth).length") == 0
    rows = "[...document.querySelectorAll('[data-sortable=ranking] tbody tr')].map(e => e.clientHeight)"
    assert max(show.value(rows)) < 50  # of one line
    ground = show.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(24, 27, 31)" if dark else "rgb(255, 255, 255)")


@pytest.fixture(params=[(390, False), (390, True), (1280, False), (1280, True)], ids=str)
def full(request: pytest.FixtureRequest, browser: headless.Browser, tmp_path: Path) -> Iterator[headless.Browser]:
    """The page with everything on it, at two widths and in both themes; afterwards: no trouble, no request."""
    width, dark = request.param
    browser.troubles.clear()
    browser.requests.clear()
    browser.open(put(synthetic.full(), tmp_path), width=width, dark=dark)
    yield browser
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.troubles == []
    assert {Path(address).name for address in browser.requests} == {"report.html"}


def test_every_plot_of_a_full_page_is_drawn(full: headless.Browser) -> None:
    keys = full.value("[...document.querySelectorAll('figure[data-chart]')].map(e => e.dataset.chart)")
    assert keys == ["frontier", "accuracy-by-step", "accuracy-by-epsilon", "noise", "density", "domain"]
    rows = len(synthetic.full().entries)
    for key, lines in zip(keys, (rows, rows, rows, rows, rows, 1), strict=True):
        inside = f"[...document.querySelectorAll('[data-chart={key}] .mean')]"
        lengths = full.value(f"{inside}.map(e => e.getTotalLength())")
        assert len(lengths) == lines, key
        # A row that is proven for its last iterate alone is one point over the steps, with its marker.
        assert sorted(lengths)[1 if key.startswith("accuracy") else 0] > 40, key
        boxes = full.value(
            f"[...document.querySelectorAll('[data-chart={key}] .line:is(:not(.rest), .point)')]"
            ".map(e => e.querySelector('.mark').getBoundingClientRect().width)"
        )
        assert boxes, key
        assert min(boxes) > 3
        size = full.value(f"document.querySelector('[data-chart={key}] svg').getBoundingClientRect().height")
        assert size > 150


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("frontier", 2, "[...document.querySelectorAll('[data-sortable=frontier] td:nth-child(2)')]"),
        ("truth", 5, "[...document.querySelectorAll('[data-sortable=truth] td:nth-child(5)')]"),
    ],
)
def test_every_table_of_a_full_page_sorts(full: headless.Browser, table: str, column: int, values: str) -> None:
    button = f"[data-sortable={table}] thead th:nth-child({column}) button"
    shown = f"{values}.map(e => +e.dataset.value)"
    full.click(button)
    once = full.value(shown)
    full.click(button)
    assert full.value(shown) == list(reversed(once))
    assert sorted(once) in (once, list(reversed(once)))


def test_all_charts_answer_and_are_lit_together(full: headless.Browser) -> None:
    full.click(".legend [data-name=psac]")
    lit = full.value("[...document.querySelectorAll('.line.on')].map(e => e.dataset.name)")
    assert lit == ["psac"] * 5  # not in the chart of bounded domains
    pressed = full.value("document.querySelectorAll('.legend [aria-pressed=true]').length")
    assert pressed == 1
    for key in ("frontier", "noise", "density", "domain"):
        full.value(f"document.querySelector('[data-chart={key}]').focus()")
        full.press("End")
        text = full.value(f"document.querySelector('[data-chart={key}] .readout').textContent")
        assert "last-iterate" in text, key
        assert "NaN" not in text


@pytest.mark.parametrize("made", [synthetic.hostile, synthetic.failing])
def test_hostile_and_failed_rows_do_no_harm(
    browser: headless.Browser, tmp_path: Path, made: Callable[[], Comparison]
) -> None:
    browser.troubles.clear()
    browser.open(put(made(), tmp_path), width=390)
    browser.click(heading(2))
    browser.hover("figure .chart-svg")
    assert browser.value("window.hacked") is None
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert browser.troubles == []


def test_the_browser_test_can_fail(browser: headless.Browser, tmp_path: Path) -> None:
    """A page with an error, a blocked script and a request: each is noticed."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<meta http-equiv=Content-Security-Policy content=\"script-src 'unsafe-inline'\">"
        "<script>missing()</script><script src=other.js></script><img src=picture.png>"
    )
    browser.troubles.clear()
    browser.requests.clear()
    browser.open(page)
    assert any("missing is not defined" in trouble for trouble in browser.troubles)
    assert any("other.js" in trouble for trouble in browser.troubles)
    assert any(address.endswith("picture.png") for address in browser.requests)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_planner_page(browser: headless.Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """Charts drawn and named, tables sort, nothing is wider than the window, no trouble, no request."""
    browser.troubles.clear()
    browser.requests.clear()
    browser.open(planner_page(tmp_path), width=width, dark=dark)
    lengths = browser.value("[...document.querySelectorAll('.mean')].map(e => e.getTotalLength())")
    assert len(lengths) == 4  # two price lists, two noises over batches
    assert min(lengths) > 40
    names = browser.value("[...document.querySelectorAll('.legend button')].map(e => e.textContent)")
    assert names == ["dp-sgd", "adaptive-quantile", "on a step's mean gradient", "over the whole run"]
    values = "[...document.querySelectorAll('[data-sortable=batches] td:first-child')].map(e => +e.dataset.value)"
    browser.click("[data-sortable=batches] thead th button")
    assert browser.value(values) == sorted(browser.value(values))
    browser.click("[data-sortable=batches] thead th button")
    assert browser.value(values) == sorted(browser.value(values), reverse=True)
    browser.hover("[data-chart=noise-by-epsilon] svg")
    assert "%" not in browser.value("document.querySelector('.readout').textContent")
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.troubles == []
    assert {Path(address).name for address in browser.requests} == {"plan.html"}


def planner_page(place: Path) -> Path:
    """An answer without any pricing."""

    def priced(name: str, factor: float) -> MethodPrice:
        price = Price(noise=1.2 * factor, effective=0.012 * factor, steps=20, relation="add/remove")
        curve = tuple((epsilon, 3.6 * factor / epsilon) for epsilon in (0.5, 1.0, 3.0, 8.0))
        samplers = (("poisson", price), ("fixed-size", Price(why="not priced <b>")))
        return MethodPrice(name=name, certified=True, price=price, curve=curve, samplers=samplers)

    question = Question(records=1000, batch=100, epochs=2, epsilon=3.0, delta=1e-5)
    batches = tuple(
        BatchPrice(batch=b, steps=2000 // b, noise=1.0 + b / 1000, effective=1 / b, path=1 / b**0.5)
        for b in (64, 100, 250, 1000)
    )
    methods = (priced("dp-sgd", 1.0), priced("adaptive-quantile", 1.1))
    found = Answer(question=question, methods=methods, batches=batches)
    page, *_ = planned.write(found, None, 512, "discreet plan <script>", place / "plan.html")
    return page
