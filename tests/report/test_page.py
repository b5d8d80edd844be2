"""The page: everything is on it, nothing is let in, nothing is fetched."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic

from discreet import Refused
from discreet.report import wording
from discreet.report.page import render, write
from discreet.runs.comparison.values import Failure, MethodResult, Reference
from research.readme import read_comparison


class Parsed(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside = ""
        self.attributes: list[tuple[str, str | None]] = []
        self.held: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.feed(page)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style"):
            self.held.setdefault(self.inside, []).append(data)
        else:
            self.texts.append(data)


def test_hostile_strings_stay_text() -> None:
    page = Parsed(render(synthetic.hostile()))
    usual = Parsed(render(synthetic.comparison()))
    assert page.tags.count("script") == usual.tags.count("script") == 2
    assert page.tags.count("style") == 1
    assert set(page.tags) <= {*usual.tags, "ul", "li", "h3"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    links = {value for name, value in page.attributes if name in ("src", "href", "action")}
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    assert "7 * 7" in page.text
    assert synthetic.HOSTILE[0] in page.text
    assert json.loads(page.held["script"][0])["accuracy-by-step"]["lines"][0]["name"] in synthetic.HOSTILE


def test_the_page_has_everything() -> None:
    found = synthetic.comparison()
    page = Parsed(render(found)).text
    assert found.best is not None
    assert wording.percent(found.best.accuracy.mean) in page
    for entry in found.entries:
        assert entry.name in page
        assert entry.summary.replace("`", "") in page
    for text in (
        "1,437 records of handwritten digits",
        "certified ε",
        "claimed ε",
        "Seeded: not private",
        "chosen on public data, by a search or as defaults. They are not charged",
        "δ = 10⁻⁵",
        found.provenance.command,
        found.provenance.checksum,
        "torch 2.13.0",
        found.entries[0].runs[0].ledger[:16],
        "All 18 runs together",
        "13.8",
    ):
        assert text in page, text


def test_the_page_asks_for_nothing_and_is_small() -> None:
    page = render(synthetic.comparison())
    assert len(page.encode()) < 200_000
    assert not re.findall(r"https?://|url\((?!#)|@import|\bsrc=", page)
    assert "default-src &#39;none&#39;" in page


def test_the_policy_names_the_only_script_and_style() -> None:
    parsed = Parsed(render(synthetic.comparison()))
    policy = next(value for name, value in parsed.attributes if name == "content" and "default-src" in str(value))
    for text in ("".join(parsed.held["style"]), parsed.held["script"][-1]):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in str(policy)
    assert "unsafe-inline" not in str(policy)


def test_nothing_but_the_page_itself_decides_how_it_looks() -> None:
    """Inline styles and handlers would need a laxer policy."""
    names = {name for name, _ in Parsed(render(synthetic.comparison())).attributes}
    assert "style" not in names


def test_failures_are_rows_with_their_reason() -> None:
    page = Parsed(render(synthetic.failing())).text
    assert "seeds 0, 1 and 2 failed: Expected clip > 0, got clip=-1" in page
    assert "seed 2 failed: OSError: no space left on device" in page
    assert "8 of 12" in page
    assert "geodp : claimed only" in page


def test_a_comparison_without_a_finished_run_has_a_page() -> None:
    nothing = synthetic.comparison(
        (synthetic.entry("dp-sgd", (), failures=(Failure(seed=0, reason="no"),)),), together=None
    )
    page = Parsed(render(nothing)).text
    assert "No run finished." in page
    assert "0 of 1" in page


def test_one_run_each_says_that_differences_may_be_chance() -> None:
    rows = tuple(synthetic.entry(name, (0,)) for name in ("dp-sgd", "psac"))
    page = Parsed(render(synthetic.comparison(rows, repeats=1, seeds=(0,)))).text
    assert "differences may be due to chance" in page
    assert "±" not in page.split("Ranking")[0]


def test_the_headline_says_what_it_is_worth() -> None:
    alike = tuple(synthetic.entry("dp-sgd", name=name) for name in ("a", "b", "c", "d"))
    assert "paired t test over the seeds it cannot be told apart from any other" in wording.significance(
        synthetic.comparison(alike)
    )
    assert "cannot be told apart from psac and dp-sgd" in wording.significance(synthetic.failing())

    def steady(name: str, accuracy: float) -> MethodResult:
        values = (accuracy - 0.001, accuracy, accuracy + 0.001)
        made = tuple(synthetic.run(name, seed, accuracy=value) for seed, value in enumerate(values))
        return synthetic.entry(name, runs=made)

    clear = synthetic.comparison((steady("dp-sgd", 0.9), steady("psac", 0.8)))
    assert wording.significance(clear) == "By a paired t test over the seeds it is better than all others."


def test_rows_that_no_method_made_close_the_table() -> None:
    rows = (
        Reference(name="without privacy", about="protects nobody", accuracy=0.9712),
        Reference(name="majority class", about="the most frequent label", accuracy=None),
    )
    page = Parsed(render(synthetic.comparison(references=rows))).text
    assert re.search(r"without privacy\s*97.1%\s*protects nobody", page)
    assert re.search(r"majority class\s*–\s*the most frequent label", page)


def test_epsilon_is_never_rounded_down() -> None:
    row = synthetic.entry("dp-sgd", runs=(synthetic.run("dp-sgd", 0, epsilon=2.9901),))
    assert "3.00" in Parsed(render(synthetic.comparison((row,)))).text
    assert wording.epsilon(2.9901) == "3.00"
    assert wording.epsilon(math.inf) == "no proven guarantee"


def test_certified_and_claimed_are_shown_apart() -> None:
    row = synthetic.entry("dp-sgd", runs=(synthetic.run("dp-sgd", 0, claimed=1.25),))
    page = render(synthetic.comparison((row, synthetic.entry("psac"))))
    cells = re.findall(r'data-label="claimed ε" data-value="([^"]*)">([^<]*)<', page)
    assert sorted(cells) == [("-1", "none"), ("1.25", "1.25")]
    assert "trust the certified one" in page


def test_private_data_is_not_called_published() -> None:
    rows = (synthetic.entry("dp-sgd", (None, None)),)
    found = synthetic.comparison(rows, seeds=None, public=False, data="patients", repeats=2)
    page = Parsed(render(found)).text
    assert "published" not in page
    assert "not private" not in page
    assert "seeded by the operating system" in page
    assert "To release one model, train one" in page


def test_given_settings_are_not_called_public() -> None:
    rows = (synthetic.entry("dp-sgd", given=True), synthetic.entry("psac"))
    page = Parsed(render(synthetic.comparison(rows))).text
    assert "The user gave the settings of dp-sgd" in page


@pytest.mark.parametrize(
    ("epsilon", "factor", "found"), [(3.0, "21", "20.1%"), (0.1, "2", "1.2%"), (60.0, None, "100%")]
)
def test_what_an_attacker_can_do(epsilon: float, factor: str | None, found: str) -> None:
    """From the definition: power <= e^eps * 0.01 + delta, and 1 - power >= e^-eps (0.99 - delta)."""
    comparison = synthetic.comparison(epsilon=epsilon)
    assert wording.attack_power(comparison) == found
    assert factor is None or wording.likelihood_factor(comparison) == factor


def test_write_and_read(tmp_path: Path) -> None:
    found = synthetic.failing()
    written = write(found, tmp_path / "new" / "place")
    assert read_comparison(written.data) == found
    assert written.page.read_text(encoding="utf-8") == render(found)
    assert all(path.is_file() for path in written.figures)
    assert not list(tmp_path.rglob("*.new"))


def test_a_character_that_no_file_can_hold_is_replaced(tmp_path: Path) -> None:
    provenance = dataclasses.replace(synthetic.comparison().provenance, command="lone \ud800 surrogate")
    written = write(synthetic.comparison((synthetic.entry("dp-sgd"),), provenance=provenance), tmp_path)
    assert "lone ? surrogate" in written.page.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"format": 1}'])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(Refused, match=r"report\.json|format"):
        read_comparison(path)


def test_a_page_is_the_same_each_time() -> None:
    assert render(synthetic.comparison()) == render(synthetic.comparison())
