"""Comparing for real, with runs of a few steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from discreet import Refused, runs
from discreet.accounting.ledger import read
from discreet.methods import METHODS
from discreet.runs.comparison import runner
from discreet.runs.comparison.compare import (
    Candidate,
    CompareSettings,
    ComparisonProgress,
    Phase,
    candidates,
    compare,
    default_seeds,
)

STEPS = 4
TWO = (
    Candidate(method="dp-sgd", parameters=(("clip", 1.0),), learning_rate=2.0),
    Candidate(method="auto-s", learning_rate=1.0),
)
SMALL = {"epsilon": 3.0, "delta": 1e-5, "model": "softmax", "steps": STEPS, "rows": TWO, "workers": 1}


def small(out: Path, **changes: Any) -> CompareSettings:
    return CompareSettings(**{"out": out, **SMALL, "seeds": (0, 1), **changes})


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished comparison; tests read it, or repeat what is there."""
    place = tmp_path_factory.mktemp("compare")
    compare(small(place))
    return place


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training from now on is a failure."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "train_on", refuse)


def heard(settings: CompareSettings) -> tuple[Any, list[ComparisonProgress]]:
    told: list[ComparisonProgress] = []
    return compare(settings, told.append), told


def test_every_row_has_every_seed_within_the_budget(out: Path) -> None:
    found = compare(small(out))
    assert {entry.name for entry in found.entries} == {"dp-sgd", "auto-s"}
    for entry in found.entries:
        assert [run.seed for run in entry.runs] == [0, 1]
        assert entry.failures == ()
        for run in entry.runs:
            assert 2.98 < run.epsilon <= 3.0
            assert run.steps == STEPS
            assert run.randomness == "seeded: not private"
            assert run.ledger == read(out / run.directory / "ledger.jsonl").digest
            assert (out / run.directory / "privacy-statement.md").is_file()
            assert run.curve[-1].step == STEPS
            assert run.curve[-1].accuracy == run.accuracy
    assert (found.records, found.test_records, found.parameters) == (1437, 360, 650)


def test_all_runs_together_cost_more_than_one_and_less_than_their_sum(out: Path) -> None:
    found = compare(small(out))
    assert found.together is not None
    assert 3.0 < found.together < 4 * 3.0


def test_a_finished_run_is_not_repeated(out: Path, untrained: None) -> None:
    found, told = heard(small(out))
    assert [news.phase for news in told if news.phase is not Phase.CALIBRATING] == [Phase.REUSED] * 4
    assert [news.index for news in told if news.phase is Phase.REUSED] == [0, 1, 2, 3]
    assert all(news.runs == 4 for news in told)
    assert len(found.finished) == 2


def test_the_control_for_not_repeating(out: Path, untrained: None) -> None:
    """With one more seed the same machinery does train, and fails here; the finished seeds still count."""
    found = compare(small(out, seeds=(0, 1, 2)))
    for entry in found.entries:
        assert len(entry.runs) == 2
        assert entry.failures[0].reason == "AssertionError: trained again"


def test_other_settings_set_the_earlier_run_aside_with_its_ledger(tmp_path: Path) -> None:
    first = small(tmp_path, rows=TWO[:1], seeds=(0,))
    before = compare(first).entries[0].runs[0]
    other = dataclasses.replace(TWO[0], learning_rate=3.0)
    found, told = heard(dataclasses.replace(first, rows=(other,)))
    assert found.entries[0].runs[0].config != before.config
    aside = tmp_path / "superseded" / "dp-sgd-0-1"
    assert read(aside / "ledger.jsonl").digest == before.ledger
    assert any(str(aside) in news.note for news in told)


def test_a_failure_is_a_row_with_its_reason(out: Path) -> None:
    bad = Candidate(method="dp-sgd", name="bad-clip", parameters=(("clip", -1.0),), learning_rate=1.0)
    odd = Candidate(method="dp-sgd", name="odd", parameters=(("colour", "red"),), learning_rate=1.0)
    found, told = heard(small(out, rows=(bad, *TWO, odd)))
    reasons = {entry.name: {failure.reason for failure in entry.failures} for entry in found.entries}
    assert reasons["dp-sgd"] == reasons["auto-s"] == set()
    (clip,), (colour,) = reasons["bad-clip"], reasons["odd"]
    assert clip.startswith("Expected clip > 0, got clip=-1.0")
    assert "colour" in colour
    assert [entry.name for entry in found.finished] == [entry.name for entry in found.entries][:2]
    assert sum(news.phase is Phase.FAILED for news in told) == 4


def test_rows_that_all_fail_still_make_a_comparison(tmp_path: Path) -> None:
    bad = Candidate(method="dp-sgd", parameters=(("clip", -1.0),))
    found = compare(small(tmp_path, rows=(bad,)))
    assert found.finished == ()
    assert found.together is None
    assert (found.relation, found.steps) == ("add/remove", STEPS)


@pytest.mark.parametrize(
    ("changes", "message"), [({"model": "cnn-of-dreams"}, "a model of"), ({"batch": 5000}, "batch <= records")]
)
def test_shared_settings_that_do_not_fit_are_refused_at_once(
    tmp_path: Path, untrained: None, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        compare(small(tmp_path, **changes))


def test_a_run_over_the_budget_is_not_ranked(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = runs.load_result

    def dearer(directory: str | Path) -> runs.RunResult:
        result = true(directory)
        proven = dataclasses.replace(result.spent.certified, epsilon=3.0001)
        return dataclasses.replace(result, spent=dataclasses.replace(result.spent, certified=proven))

    monkeypatch.setattr(runs, "load_result", dearer)
    found = compare(small(out))
    assert found.finished == ()
    assert "a run within epsilon=3 at delta=1e-05" in found.entries[0].failures[0].reason


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    settings = small(tmp_path, rows=TWO[:1], seeds=(0,))

    def stop(news: ComparisonProgress) -> None:
        if news.step == 2 and news.phase is Phase.TRAINING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(settings, stop)
    assert read(tmp_path / "dp-sgd" / "0" / "ledger.jsonl").length == 2
    found, told = heard(settings)
    assert read(tmp_path / "dp-sgd" / "0" / "ledger.jsonl").length == STEPS
    assert found.entries[0].runs[0].steps == STEPS
    assert min(news.step for news in told if news.phase is Phase.TRAINING and news.step) == 3


def test_without_seeds_the_operating_system_keys_every_run(tmp_path: Path) -> None:
    found = compare(small(tmp_path, rows=TWO[:1], seeds=None, repeats=2))
    (entry,) = found.entries
    assert [run.directory for run in entry.runs] == ["dp-sgd/os-1", "dp-sgd/os-2"]
    assert {run.randomness for run in entry.runs} == {"keyed by the operating system"}
    assert not found.seeded


def test_the_same_seeds_give_the_same_accuracies(out: Path, tmp_path: Path) -> None:
    again = compare(small(tmp_path, rows=TWO[1:], seeds=(1,)))
    first = {entry.name: entry for entry in compare(small(out)).entries}
    assert again.entries[0].runs[0].accuracy == first["auto-s"].runs[1].accuracy
    assert again.entries[0].runs[0].curve == first["auto-s"].runs[1].curve


def test_by_default_every_certified_method_is_a_row(tmp_path: Path) -> None:
    settings = CompareSettings(out=tmp_path, epsilon=3.0, delta=1e-5)
    assert [row.name for row in settings.chosen] == [m.name for m in METHODS.values() if m.certified]


def test_every_tuned_setting_makes_a_plan() -> None:
    for row in candidates("digits"):
        METHODS[row.method].recipe(**dict(row.parameters))
        assert not row.given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"delta": 1.0}, r"delta in \(0, 1\)"),
        ({"repeats": 0}, "repeats to be a whole number"),
        ({"workers": 0}, "workers to be a whole number"),
        ({"seeds": ()}, "different seeds"),
        ({"seeds": (1, 1)}, "different seeds"),
        ({"seeds": (-1,)}, "seed to be a whole number"),
        ({"rows": ()}, "rows with different names"),
        ({"rows": (TWO[0], TWO[0])}, "rows with different names"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        small(tmp_path, **changes)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "superseded", "", "naïve", "two words"])
def test_a_row_name_is_a_directory_name(name: str) -> None:
    if name == "":
        assert Candidate(method="dp-sgd", name=name).name == "dp-sgd"
        return
    with pytest.raises(Refused, match="a name of letters"):
        Candidate(method="dp-sgd", name=name)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(Refused, match="a method of dp-sgd"):
        candidates("digits", ["dp-sgb"])


def test_only_benchmarks_get_seeds_by_default() -> None:
    assert default_seeds("fashion-mnist", 2) == (0, 1)
    assert default_seeds("own/patients.npz", 2) is None
