"""The verdict of a comparison, the rows that stand out, and the rows that are folded away."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
import synthetic

from discreet.report import standing
from discreet.report.charts import label_places
from discreet.report.page import render
from discreet.runs.comparison.values import Comparison, MethodResult, Reference

PLAIN = (
    Reference(name="without privacy", about="protects nobody", accuracy=0.971),
    Reference(name="majority class", about="the most frequent label", accuracy=0.1),
)


def row(name: str, *accuracies: float, method: str | None = None) -> MethodResult:
    runs = tuple(synthetic.run(name, seed, accuracy=value) for seed, value in enumerate(accuracies))
    return synthetic.entry(method or name, runs=runs, name=name)


def found(*rows: MethodResult, **fields: object) -> Comparison:
    return synthetic.comparison(Comparison.ranked(rows), references=PLAIN, **fields)


SGD = row("dp-sgd", 0.80, 0.81, 0.82)
NEAR, CLEAR = row("psac", 0.812, 0.805, 0.825), row("auto-s", 0.90, 0.91, 0.921)
WIDE = row("auto-s", 0.97, 0.97, 0.76)
LOST = row("dicesgd", 0.10, 0.11, 0.09)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            (SGD, NEAR),
            "dp-sgd suffices: 81.0 % at epsilon 3; without privacy 97.1 %; "
            "by three runs each one other method cannot be told apart from the best, psac.",
        ),
        (
            (SGD, CLEAR),
            "auto-s is best, 10.0 points above dp-sgd: 91.0 % at epsilon 3; without privacy 97.1 %; "
            "no other method is as good.",
        ),
        (
            (SGD, WIDE),
            "auto-s came first, 9.0 points above dp-sgd: 90.0 % at epsilon 3; without privacy 97.1 %; "
            "by three runs each one other method cannot be told apart from it.",
        ),
        ((SGD,), "dp-sgd was trained: 81.0 % at epsilon 3; without privacy 97.1 %."),
        ((NEAR,), "psac is best: 81.4 % at epsilon 3; without privacy 97.1 %."),
    ],
)
def test_the_verdict_is_one_sentence(rows: tuple[MethodResult, ...], expected: str) -> None:
    assert standing.verdict(found(*rows)) == expected
    assert expected in render(found(*rows))


def test_one_run_each_decides_nothing() -> None:
    rows = (row("dp-sgd", 0.8), row("psac", 0.9))
    told = standing.verdict(found(*rows, repeats=1))
    assert told.startswith("psac came first: 90.0 % at epsilon 3")
    assert told.endswith("one run each, so differences may be due to chance.")


def test_a_comparison_without_rows_of_reference_says_nothing_of_them() -> None:
    assert "without privacy" not in standing.verdict(dataclasses.replace(found(SGD, NEAR), references=()))


def test_rows_that_do_not_learn_are_folded_away() -> None:
    of = found(SGD, CLEAR, LOST)
    assert [entry.name for entry in standing.left_behind(of)] == ["dicesgd"]
    page = render(of)
    ranking = page.partition('data-sortable="ranking"')[2].partition("</table>")[0]
    assert "dicesgd" not in ranking
    assert "One method that does not learn at this budget" in page
    assert "dicesgd" in page.partition('data-sortable="left-behind"')[2].partition("</table>")[0]
    assert "not learn" not in render(found(SGD, CLEAR))


def test_a_row_below_the_majority_class_does_not_learn() -> None:
    of = dataclasses.replace(found(SGD, CLEAR), references=(dataclasses.replace(PLAIN[1], accuracy=0.88),))
    assert [entry.name for entry in standing.left_behind(of)] == ["dp-sgd"]


def test_failed_rows_stay_in_sight() -> None:
    assert standing.left_behind(synthetic.failing()) == ()


def test_the_first_three_and_the_baseline_stand_out() -> None:
    names = ("auto-s", "psac", "dp-adam", "per-layer", "dp-sgd")
    of = found(*(row(name, 0.9 - place / 100, 0.901 - place / 100) for place, name in enumerate(names)))
    assert standing.bright(of) == {"auto-s", "psac", "dp-adam", "dp-sgd"}
    chart = re.search(r'<svg[^>]*class="chart-svg".*?</svg>', render(of), re.DOTALL)
    assert chart is not None
    assert set(re.findall(r'class="end [^"]*"[^>]*>([^<]+)<', chart[0])) == {"auto-s", "psac", "dp-adam", "dp-sgd"}
    assert re.findall(r'class="line [^"]*rest" data-name="([^"]+)"', chart[0]) == ["per-layer"]


def test_broken_claims_come_first() -> None:
    of = synthetic.full()
    assert standing.broken(of.truth)
    assert standing.holding(of.truth)
    page = render(of)
    first = page.partition('data-sortable="truth"')[2].partition("</table>")[0]
    assert first.count("claim broken") + first.count("CERTIFICATE BROKEN") >= len(standing.broken(of.truth))
    assert ">holds<" not in first
    assert ">holds<" in page.partition('data-sortable="holding"')[2]


def test_labels_keep_their_distance() -> None:
    placed = label_places([10.0, 10.5, 11.0, 40.0, 99.0, 99.5], 6.0, 0.0, 100.0)
    order = sorted(placed)
    assert all(after - before >= 6.0 - 1e-9 for before, after in itertools.pairwise(order))
    assert min(placed) >= 0.0
    assert max(placed) <= 100.0
    assert placed[3] == 40.0  # a label with room stays at its line
    assert label_places([], 6.0, 0.0, 100.0) == []
