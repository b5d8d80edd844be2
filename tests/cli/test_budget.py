"""The budget file on the command line: every command charges it before it reads records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runner import refused, run

from discreet.core import check
from discreet.runs import training
from discreet.runs.budget import Budget


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "visits.npz", x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:])
    run("budget", tmp_path / "budget.json", "--epsilon", 2, "--delta", "1e-4", "--data", "visits")
    return tmp_path


def flags(folder: Path, out: str) -> list[object]:
    own = ["--data", folder / "visits.npz", "--classes", 2, "--records", 240, "--model", "logistic", "--batch", 60]
    return [*own, "--steps", 2, "--delta", "1e-4", "--budget", folder / "budget.json", "--out", folder / out, "--json"]


def state(folder: Path) -> dict[str, object]:
    return run("budget", folder / "budget.json", "--json").json


def test_a_run_is_charged_once_and_a_second_one_that_does_not_fit_reads_nothing(
    visits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("train", "--method", "dp-sgd", "--epsilon", 1.9, *flags(visits, "a")).code == 0
    assert run("resume", visits / "a", "--json").code == 0
    held = state(visits)
    assert (len(held["entries"]), held["data"]) == (1, "visits")  # type: ignore[arg-type]
    assert 1.85 < held["spent"] <= 1.9  # type: ignore[operator]
    monkeypatch.setattr(training, "load_task", lambda config: pytest.fail("records were read"))
    refused(run("train", "--method", "dp-sgd", "--epsilon", 1.9, *flags(visits, "b")), "no record was read")
    assert state(visits) == held


def test_a_run_that_fails_after_its_charge_says_so_and_is_not_charged_again(visits: Path) -> None:
    words = ["train", "--method", "dp-sgd", "--epsilon", 1, *flags(visits, "a")]
    (visits / "visits.npz").rename(visits / "elsewhere.npz")
    failed = run(*words)
    assert failed.code == 3  # spent: not the code for bad input
    assert "1 charge" in failed.err
    (visits / "elsewhere.npz").rename(visits / "visits.npz")
    assert run(*words).code == 0
    assert len(state(visits)["entries"]) == 1  # type: ignore[arg-type]


def test_an_unknown_model_is_refused_before_it_is_paid_for(visits: Path) -> None:
    words = [word if word != "logistic" else "logistik" for word in flags(visits, "a")]
    refused(run("train", "--method", "dp-sgd", "--epsilon", 1, *words), "a model of logistic")
    assert state(visits)["entries"] == []


def test_a_run_that_fails_after_it_began_names_the_command_that_goes_on(
    visits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train` refuses a directory that holds a run, so "the same command" did not go on."""
    words = ["train", "--method", "dp-sgd", "--epsilon", 1, *flags(visits, "a")]

    def fails(self: object, checkpoint: object) -> None:
        check.refuse("a model", "none", "mend it")

    with monkeypatch.context() as patch:
        patch.setattr(training._TrainingPart, "_bind", fails)
        failed = run(*words)
    assert failed.code == 3
    assert f"Resume with: discreet resume {visits / 'a'}" in failed.err
    assert run("resume", visits / "a", "--json").code == 0
    assert len(state(visits)["entries"]) == 1  # type: ignore[arg-type]


def test_a_directory_that_is_deleted_and_begun_anew_pays_again(visits: Path) -> None:
    import shutil

    words = ["train", "--method", "dp-sgd", "--epsilon", 0.5, *flags(visits, "a")]
    assert run(*words).code == 0
    shutil.rmtree(visits / "a")
    assert run(*words).code == 0
    assert len(state(visits)["entries"]) == 2  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_comparison_pays_for_all_of_its_runs_at_once(visits: Path) -> None:
    words = ["compare", "--methods", "dp-sgd,psac", "--epsilon", "0.6", "--repeats", 1, *flags(visits, "c")]
    assert run(*words).code == 0
    assert run(*words).code == 0  # resumed
    (entry,) = Budget(visits / "budget.json").read().entries
    assert sum(count for _, count in entry.charge.certified) == 4
    assert entry.what.startswith("compare into")


def test_an_evaluation_is_a_charged_count(visits: Path) -> None:
    assert run("train", "--method", "dp-sgd", "--epsilon", 1, *flags(visits, "a")).code == 0
    words = ["--epsilon", 0.5, "--delta", "1e-4", "--records", 60, "--budget", visits / "budget.json"]
    found = run("evaluate", visits / "a", *words, "--json").json
    assert 0 <= found["accuracy"] <= 1
    assert 0.49 < found["certified"]["epsilon"] <= 0.5
    assert len(state(visits)["entries"]) == 2  # type: ignore[arg-type]
    before = state(visits)
    too_much = ["--epsilon", 3, *words[2:]]
    refused(run("evaluate", visits / "a", *too_much), "what is left")
    assert state(visits) == before
    assert sorted(path.name for path in (visits / "a").glob("evaluation-*")) == ["evaluation-0.jsonl"]
    lost = run("evaluate", visits / "a", *words[:-2], "--data", visits / "none.npz")
    assert lost.code == 3  # it was charged before the records were looked for
    assert (visits / "a" / "evaluation-1.jsonl").exists()
    kept = (visits / "a" / "evaluation-1.jsonl").read_bytes()
    (visits / "a" / "evaluation-0.jsonl").unlink()  # the next ledger must not take the name of the second
    assert run("evaluate", visits / "a", *words[:-2], "--json").code == 0
    assert sorted(path.name for path in (visits / "a").glob("evaluation-*")) == [
        "evaluation-1.jsonl",
        "evaluation-2.jsonl",
    ]
    assert (visits / "a" / "evaluation-1.jsonl").read_bytes() == kept


def test_the_best_of_some_methods_is_a_search(visits: Path) -> None:
    words = ["compare", "--release", "best", "--methods", "dp-sgd,psac", "--epsilon", "1.5", *flags(visits, "c")]
    found = run(*words).json
    assert found["settings"]["method"] in ("dp-sgd", "psac")
    assert found["candidates"] is None
    assert 1.4 < found["certified"]["epsilon"] <= 1.5
    refused(run(*words, "--seeds", "1"), "drop it")


def test_a_folder_of_runs_has_one_bill(visits: Path) -> None:
    for name in ("r/a", "r/b"):
        assert run("train", "--method", "dp-sgd", "--epsilon", 0.5, *flags(visits, name)).code == 0
    bill = run("account", "--folder", visits / "r", "--delta", "1e-4", "--json").json
    one, every = bill["fixed"]["epsilon"], bill["all"]["epsilon"]
    assert bill["runs"] == 2
    assert bill["best"] == bill["all"]
    assert 0.49 < one <= 0.5 < every < 1.0
    assert one < bill["tune"]["epsilon"]
    words = ["--epsilon", 0.5, "--delta", "1e-4", "--records", 60, "--json"]
    assert run("evaluate", visits / "r" / "a", *words).code == 0
    more = run("account", "--folder", visits / "r", "--delta", "1e-4", "--json").json
    assert more["runs"] == 2
    assert more["all"]["epsilon"] > every + 0.05  # the noisy count is charged, too
    assert more["fixed"]["epsilon"] > one + 0.05
    assert more["tune"] == bill["tune"]
    refused(run("account", "--folder", visits, "--delta", "1e-4", "--noise", 1), "--folder with --delta alone")
    refused(run("account", "--folder", visits / "none", "--delta", "1e-4"), "at least one run")


def test_bad_budgets_are_refused(visits: Path) -> None:
    made = visits / "budget.json"
    refused(run("budget", made, "--epsilon", 9, "--delta", "1e-4"), "which exists")
    refused(run("budget", visits / "new.json", "--epsilon", 9), "--delta")
    refused(run("budget", visits / "new.json"), "an existing budget")
    refused(
        run("train", "--method", "dp-sgd", "--epsilon", 1, "--sampling", "fixed-size", *flags(visits, "f")),
        "relation add/remove",
    )
