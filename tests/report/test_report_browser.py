"""The page in a real browser: no trouble in the console, the table sorts, the charts are drawn and answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import headless
import pytest
import synthetic
from test_report_page import hostile

from discreet.report import Comparison, render

pytestmark = pytest.mark.skipif(
    headless.CHROMIUM is None,
    reason="no Chromium here: install it (Debian: apt-get install chromium) to test the page",
)

NAMES = "[...document.querySelectorAll('[data-sortable] tbody .name')].map(e => e.textContent)"


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
    return f"[data-sortable] thead th:nth-child({column}) button"


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
    assert len(set(colours)) == 6


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
def test_nothing_is_wider_than_the_window(
    show: headless.Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    show.open(tmp_path / "report.html", width=width, dark=dark)
    assert show.value("document.documentElement.scrollWidth") <= width
    small = show.value(
        "Math.min(...[...document.querySelectorAll('text')].map(e => e.getBoundingClientRect().height))"
    )
    assert small >= 9
    ground = show.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(24, 27, 31)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("made", [hostile, synthetic.failing])
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
