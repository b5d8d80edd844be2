"""Several budgets, the search on stand-in data, rows that do not fit, the audit's table: with runs of a few steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet import Refused, runs
from discreet.core import check
from discreet.methods import METHODS
from discreet.report.page import render, write
from discreet.runs.audit_rows import read_audit
from discreet.runs.comparison import runner, searching
from discreet.runs.comparison.compare import Candidate, CompareSettings, ComparisonProgress, Phase, candidates, compare
from discreet.runs.comparison.searching import search

ROWS = (
    Candidate(method="dp-sgd", parameters=(("clip", 1.0),), learning_rate=2.0),
    Candidate(method="auto-s", learning_rate=1.0),
)
TRUTH = {
    "rows": [
        {
            "method": "as published",
            "parameters": {"noise": 1.0, "how": "one step"},
            "certified": "inf",
            "claimed": 4.85,
            "analytic": None,
            "audited": 7.8,
            "confidence": 0.999,
            "verdict": "claim broken",
        }
    ]
}


def small(out: Path, **changes: Any) -> CompareSettings:
    usual: dict[str, Any] = {
        "out": out,
        "epsilon": 3.0,
        "delta": 1e-5,
        "model": "softmax",
        "steps": 3,
        "rows": ROWS[:1],
        "seeds": (0, 1),
        "workers": 1,
    }
    return CompareSettings(**{**usual, **changes})


def test_each_budget_is_a_stage_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(tmp_path, others=(1.0, 8.0), other_repeats=1)
    found = compare(settings)
    assert [stage.epsilon for stage in found.budgets] == [1.0, 3.0, 8.0]
    assert [len(stage.entries[0].runs) for stage in found.budgets] == [1, 2, 1]
    spent = [run.epsilon for stage in found.budgets for run in stage.entries[0].runs]
    assert all(0.98 * budget < own <= budget for own, budget in zip(spent, (1, 3, 3, 8), strict=True))
    assert found.entries[0].runs[0].directory == "epsilon-3/dp-sgd/0"
    assert (tmp_path / "epsilon-1" / "dp-sgd" / "0" / "ledger.jsonl").is_file()
    assert found.together is not None
    assert 8.0 < found.together < 1 + 3 + 3 + 8
    page = render(found)
    assert 'data-chart="frontier"' in page
    assert "All 4 runs together" in page
    # Again: everything is read, nothing is trained; the stages are named.
    monkeypatch.setattr(runner, "train_on", lambda *_, **__: pytest.fail("trained again"))
    told: list[ComparisonProgress] = []
    again = compare(settings, told.append)
    assert [news.phase for news in told if news.phase is not Phase.CALIBRATING] == [Phase.REUSED] * 4
    assert {news.stage for news in told} == {"epsilon 1", "epsilon 3", "epsilon 8"}
    assert again.budgets == found.budgets


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"others": (3.0,)}, "different budgets"),
        ({"others": (-1.0,)}, "epsilon > 0"),
        ({"others": (1.0,), "other_repeats": 0}, "other_repeats to be a whole number"),
    ],
)
def test_bad_budgets_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        small(tmp_path, **changes)


def test_a_plan_that_the_task_does_not_fit_is_listed_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an analysis of the last iterate refuses sampled batches."""
    true = runs.plan_of

    def choosy(config: runs.RunConfig, task: Any) -> Any:
        if config.method == "auto-s":
            check.refuse("full batches", "poisson", "the analysis is for all records in every step")
        return true(config, task)

    monkeypatch.setattr(runs.defaults, "plan_of", choosy)
    found = compare(small(tmp_path, rows=ROWS, seeds=(0,)))
    assert [entry.name for entry in found.entries] == ["dp-sgd"]
    assert [run.seed for run in found.entries[0].runs] == [0]
    assert found.excluded[0].method == "auto-s"
    assert found.excluded[0].reason.startswith("Expected full batches, got poisson.")
    assert "not comparable on this task. Expected full batches" in render(found)


def test_methods_without_a_certificate_are_listed_and_not_run() -> None:
    uncertified = [method.name for method in METHODS.values() if not method.certified]
    for name in uncertified:
        assert [row.name for row in candidates("digits", ["dp-sgd", name])] == ["dp-sgd"]
        with pytest.raises(Refused, match="at least one method with a certificate"):
            candidates("digits", [name])


def test_the_search_takes_the_best_trial_of_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(tmp_path, rows=ROWS, seeds=(0,), tune_on="digits", steps=6)
    monkeypatch.setattr(searching, "RATES", (1e-6, 1.0))
    monkeypatch.setattr(searching, "MORE_RATES", (1e-6, 1.0))
    monkeypatch.setattr(searching, "CLIPS", (1.0,))
    chosen, tuned = search(settings, lambda news: None)
    assert (tuned.data, tuned.trials, tuned.records, tuned.held_out) == ("digits", 4, 1150, 287)
    assert [row.learning_rate for row in chosen.chosen] == [2.0, 1.0]  # a millionth learns nothing
    assert [choice.name for choice in tuned.choices] == ["dp-sgd", "auto-s"]
    assert all(choice.score > 0.2 for choice in tuned.choices)
    assert not any(row.given for row in chosen.chosen)


def test_a_tuned_comparison_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "RATES", (1.0,))
    monkeypatch.setattr(searching, "CLIPS", (1.0,))
    found = compare(small(tmp_path, seeds=(0,), tune_on="digits"))
    assert found.tuned is not None
    assert "searched on digits, declared public: 1 trials" in render(found)
    assert (tmp_path / "tuning" / "dp-sgd.1" / "20000" / "ledger.jsonl").is_file()


def test_an_earlier_search_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "RATES", (1e-6, 1.0))
    monkeypatch.setattr(searching, "CLIPS", (1.0,))
    first = compare(small(tmp_path / "first", seeds=(0,), tune_on="digits", steps=6))
    report = write(first, tmp_path / "first").data
    again = compare(small(tmp_path / "again", seeds=(0, 1), tuned_in=report, steps=6))
    assert again.tuned == first.tuned
    assert not (tmp_path / "again" / "tuning").exists()
    (before,), (entry,) = first.entries, again.entries
    assert (entry.parameters, entry.learning_rate) == (before.parameters, before.learning_rate)
    assert entry.runs[0].accuracy == before.runs[0].accuracy
    with pytest.raises(Refused, match="settings for auto-s"):
        compare(small(tmp_path / "more", rows=ROWS, seeds=(0,), tuned_in=report))
    with pytest.raises(Refused, match="--tune-on or --tuned-in"):
        small(tmp_path / "both", tune_on="digits", tuned_in=report)


def test_a_report_without_a_search_is_refused(tmp_path: Path) -> None:
    found = compare(small(tmp_path / "first", seeds=(0,)))
    report = write(found, tmp_path / "first").data
    with pytest.raises(Refused, match="a comparison that searched its settings"):
        compare(small(tmp_path / "again", tuned_in=report))
    report.write_text("{}", encoding="utf-8")
    with pytest.raises(Refused, match="a report of format"):
        compare(small(tmp_path / "again", tuned_in=report))


def test_an_earlier_search_on_the_private_records_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "RATES", (1.0,))
    monkeypatch.setattr(searching, "CLIPS", (1.0,))
    private = own_file(tmp_path)
    own = {"data": str(private), "classes": 10, "records": 40, "batch": 10, "tune_on": str(private)}
    found = compare(small(tmp_path / "public", **own, public_data=True, accept_large_delta=True))
    report = write(found, tmp_path / "public").data
    with pytest.raises(Refused, match="the private records"):
        compare(small(tmp_path / "out", **{**own, "tune_on": None}, tuned_in=report, accept_large_delta=True))


def own_file(place: Path) -> Path:
    chance = np.random.default_rng(0)
    x, y = chance.random((40, 1, 8, 8), dtype=np.float32), chance.integers(0, 10, 40)
    np.savez(place / "patients.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    return place / "patients.npz"


def test_tuning_on_the_private_records_is_refused(tmp_path: Path) -> None:
    private = own_file(tmp_path)
    roundabout = tmp_path / "." / "patients.npz"
    own = {"data": str(private), "classes": 10, "records": 40, "batch": 10}
    for tune_on in (private, roundabout):
        with pytest.raises(Refused, match="the private records"):
            compare(small(tmp_path / "out", **own, tune_on=str(tune_on)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", [True, False])
def test_the_truth_table_is_read_from_a_file_or_from_the_directory(tmp_path: Path, given: bool) -> None:
    path = tmp_path / ("mine.json" if given else "truth-table.json")
    path.write_text(json.dumps(TRUTH))
    found = compare(small(tmp_path, seeds=(0,), truth=path if given else None))
    assert found.truth_source == path.name
    (row,) = found.truth
    assert (row.method, row.certified, row.audited) == ("as published", float("inf"), 7.8)
    page = render(found)
    assert "claim broken" in page
    assert "noise multiplier 1, how one step" in page


def test_the_committed_truth_table_is_read() -> None:
    path = Path(__file__).resolve().parents[2] / "results" / "truth-table.json"
    rows = read_audit(path)
    assert {"dp-sgd"} <= {row.method for row in rows}


@pytest.mark.parametrize("content", ["", "[]", '{"rows": [{}]}', '{"rows": 3}'])
def test_a_broken_truth_table_is_refused_before_anything_is_trained(tmp_path: Path, content: str) -> None:
    path = tmp_path / "truth.json"
    path.write_text(content)
    with pytest.raises(Refused, match="a truth table in"):
        compare(small(tmp_path / "out", truth=path))
    assert not (tmp_path / "out").exists()


def test_a_page_of_finished_runs_trains_nothing_and_counts_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(small(tmp_path, others=(), seeds=(0,)))
    kept = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(runner, "train_on", lambda *_, **__: pytest.fail("trained"))
    more = small(tmp_path, rows=ROWS, seeds=(0, 1), finished_only=True)
    found = compare(more)
    by_name = {entry.name: entry for entry in found.entries}
    assert (len(by_name["dp-sgd"].runs), len(by_name["dp-sgd"].failures)) == (1, 1)
    assert [failure.reason for failure in by_name["auto-s"].failures] == ["not run yet"] * 2
    assert "1 of 4 runs finished" in render(found)
    other = small(tmp_path, seeds=(0,), steps=4, finished_only=True)  # other settings: neither read nor moved away
    assert compare(other).finished == ()
    assert sorted(tmp_path.rglob("*")) == kept
