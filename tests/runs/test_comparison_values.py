"""Estimates, ranking and the JSON form of a comparison."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest
import synthetic
from scipy import stats

from discreet import Refused
from discreet.runs.comparison.separation import p_value, told_apart
from discreet.runs.comparison.values import Comparison, Estimate, MethodResult, Point, TrainedRun
from research.readme import comparison_from_json


def test_the_interval_is_scipys_t_interval() -> None:
    values = [0.91, 0.935, 0.94, 0.92, 0.953]
    found = Estimate.of(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=found.mean, scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert found.error == pytest.approx(stats.sem(values), rel=1e-12)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """2000 intervals of 3 normal values; the count is binomial(2000, 0.95), outside +-4.5 deviations with
    probability below 1e-5. Negative control: intervals with the normal quantile cover far too seldom."""
    chance = random.Random(5)
    samples = [[chance.gauss(0.9, 0.01) for _ in range(3)] for _ in range(2000)]
    found = [Estimate.of(values) for values in samples]
    covered = sum(one.low <= 0.9 <= one.high for one in found)
    slack = 4.5 * math.sqrt(2000 * 0.95 * 0.05)
    assert abs(covered - 1900) <= slack
    naive = sum(abs(one.mean - 0.9) <= 1.96 * one.error for one in found if one.error is not None)
    assert 1900 - naive > slack


def test_one_run_has_no_interval() -> None:
    one = Estimate.of([0.5])
    assert one.half is None
    assert one.error is None
    assert (one.low, one.high) == (0.5, 0.5)


@pytest.mark.parametrize("values", [[], [math.nan], [0.5, math.inf]])
def test_an_estimate_needs_finite_values(values: list[float]) -> None:
    with pytest.raises(Refused, match="finite values"):
        Estimate.of(values)


def test_rows_are_ranked_by_their_mean_and_failed_rows_come_last() -> None:
    found = synthetic.failing()
    means = [entry.accuracy.mean for entry in found.entries if entry.accuracy is not None]
    assert means == sorted(means, reverse=True)
    assert [entry.name for entry in found.entries][-1] == "per-layer"
    assert found.best is found.entries[0]
    assert len(found.finished) == 3


def test_ties_keep_the_order_given() -> None:
    same = tuple(synthetic.entry("dp-sgd", name=name) for name in ("b", "a", "c"))
    assert [entry.name for entry in Comparison.ranked(same)] == ["b", "a", "c"]


def test_only_clearly_worse_rows_are_told_apart_from_the_best() -> None:
    def row(name: str, *accuracies: float) -> object:
        runs = tuple(synthetic.run(name, seed, accuracy=value) for seed, value in enumerate(accuracies))
        return synthetic.entry(name, runs=runs)

    rows = (row("dp-sgd", 0.9, 0.91, 0.92), row("psac", 0.9, 0.9, 0.91), row("auto-s", 0.5, 0.51, 0.5))
    found = synthetic.comparison(rows)  # type: ignore[arg-type]
    assert [entry.name for entry in found.close_to_best] == ["psac"]


def rows_of(*accuracies: tuple[float, ...], seeded: bool = True) -> list[MethodResult]:
    def run(name: str, seed: int, value: float) -> TrainedRun:
        return dataclasses.replace(synthetic.run("dp-sgd", seed, accuracy=value), seed=seed if seeded else None)

    names = "abcdefgh"[: len(accuracies)]
    return [
        synthetic.entry("dp-sgd", name=name, runs=tuple(run(name, i, value) for i, value in enumerate(values)))
        for name, values in zip(names, accuracies, strict=True)
    ]


def test_shared_seeds_tell_small_constant_differences_apart() -> None:
    common = (0.80, 0.86, 0.90, 0.83, 0.88)
    lower = tuple(value - 0.01 + 0.001 * (-1) ** i for i, value in enumerate(common))
    assert p_value(*rows_of(common, lower)) < 1e-3
    assert p_value(*rows_of(common, lower, seeded=False)) > 0.5  # control: without pairs the seeds' spread hides it


def test_a_single_run_is_told_apart_from_nothing() -> None:
    assert p_value(*rows_of((0.9,), (0.1,))) == 1.0
    assert p_value(*rows_of((0.9,), (0.1, 0.2), seeded=False)) == 1.0


def test_equal_methods_are_rarely_told_apart_however_many_there_are() -> None:
    """At most 5 % of comparisons reject anything; the bound below fails by chance with probability under 1e-4."""
    chance = random.Random(3)
    wrong = single = 0
    for _ in range(400):
        rows = rows_of(*(tuple(chance.gauss(0.9, 0.01) for _ in range(5)) for _ in range(7)))
        wrong += any(told_apart(rows[0], rows[1:]).values())
        single += any(p_value(rows[0], row) <= 0.05 for row in rows[1:])
    assert wrong <= 20 + 4 * math.sqrt(400 * 0.05 * 0.95)
    assert single > 40  # control: without the correction


def test_a_curve_holds_the_steps_that_every_run_has_and_the_largest_epsilon() -> None:
    def points(*values: tuple[int, float, float]) -> tuple[Point, ...]:
        return tuple(Point(step=step, accuracy=a, epsilon=e) for step, a, e in values)

    one = synthetic.run("dp-sgd", 0, curve=points((1, 0.2, 1.0), (2, 0.4, 1.5), (3, 0.5, 2.0)))
    two = synthetic.run("dp-sgd", 1, curve=points((2, 0.6, 1.6), (3, 0.7, 1.9)))
    curve = synthetic.entry("dp-sgd", runs=(one, two)).curve
    assert [(step, epsilon) for step, epsilon, _ in curve] == [(2, 1.6), (3, 2.0)]
    assert [round(accuracy.mean, 9) for _, _, accuracy in curve] == [0.5, 0.6]


@pytest.mark.parametrize("seeds", [(0, 1, 2), None])
def test_json_round_trip(seeds: tuple[int, ...] | None) -> None:
    claiming = synthetic.run("dp-sgd", 0, claimed=math.inf, noise=None)
    rows = (synthetic.entry("dp-sgd", runs=(claiming,)), *synthetic.failing().entries[1:])
    found = dataclasses.replace(synthetic.failing(), entries=rows, seeds=seeds, together=math.inf)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert comparison_from_json(json.loads(text)) == found


def test_the_file_says_accuracies_for_readers_without_this_library() -> None:
    found = synthetic.failing()
    written = found.to_json()["entries"]
    assert written[0]["accuracy"]["mean"] == found.entries[0].accuracy.mean
    assert written[-1]["accuracy"] is None
    assert written[-1]["failures"][0]["reason"].startswith("Expected clip > 0")


@pytest.mark.parametrize(
    "change", [{"format": "discreet.comparison/0"}, {"entries": None}, {"provenance": {}}, {"epsilon": "three"}]
)
def test_another_file_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(Refused, match=r"report\.json"):
        comparison_from_json({**synthetic.comparison().to_json(), **change})


def test_a_seed_anywhere_makes_the_comparison_seeded() -> None:
    private = synthetic.comparison((synthetic.entry("dp-sgd", (None, None)),), seeds=None)
    assert not private.seeded
    assert synthetic.comparison().seeded
    mixed = (synthetic.entry("dp-sgd", (None,)), synthetic.entry("psac", (4,)))
    assert synthetic.comparison(mixed, seeds=None).seeded
