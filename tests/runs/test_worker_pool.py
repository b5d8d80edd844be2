"""Runs in processes of their own: the same results, their failures, their end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from discreet.accounting.ledger import read
from discreet.core.command import command_line
from discreet.core.workers import cores
from discreet.runs.comparison.compare import Candidate, CompareSettings, ComparisonProgress, Phase, compare

PLAIN = Candidate(method="dp-sgd", parameters=(("clip", 1.0),), learning_rate=2.0)


def two_at_once(out: Path, *, steps: int = 4, rows: tuple[Candidate, ...] = (PLAIN,)) -> CompareSettings:
    return CompareSettings(
        out=out, epsilon=3.0, delta=1e-5, model="softmax", steps=steps, rows=rows, seeds=(0, 1), workers=2
    )


def children() -> list[int]:
    """The workers of this process."""
    told = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [int(line.split()[0]) for line in told.stdout.splitlines() if "discreet.core.workers" in line]


def test_processes_give_what_one_gives_and_their_failures_are_rows(tmp_path: Path) -> None:
    (tmp_path / "two" / "dp-sgd").mkdir(parents=True)
    (tmp_path / "two" / "dp-sgd" / "7").write_text("a file where a directory should be")
    settings = dataclasses.replace(two_at_once(tmp_path / "two"), seeds=(0, 7, 1))
    told: list[ComparisonProgress] = []
    (entry,) = compare(settings, told.append).entries
    alone = dataclasses.replace(settings, out=tmp_path / "one", seeds=(0, 1), workers=1)
    (expected,) = compare(alone).entries
    assert [run.seed for run in entry.runs] == [0, 1]
    assert [run.accuracy for run in entry.runs] == [run.accuracy for run in expected.runs]
    assert [run.epsilon for run in entry.runs] == [run.epsilon for run in expected.runs]
    assert [failure.seed for failure in entry.failures] == [7]
    assert "Error" in entry.failures[0].reason
    assert [news.step for news in told if news.seed == 1 and news.phase is Phase.TRAINING] == [0, 1, 2, 3, 4]
    assert json.loads((tmp_path / "two" / "dp-sgd" / "0" / "run.json").read_text())["command"] == command_line()
    assert children() == []


def test_a_process_that_dies_is_a_row_and_the_next_run_gets_another(tmp_path: Path) -> None:
    settings = two_at_once(tmp_path, steps=50, rows=(PLAIN, Candidate(method="auto-s", learning_rate=1.0)))
    killed: list[int] = []

    def kill(news: ComparisonProgress) -> None:
        if news.phase is Phase.TRAINING and news.step == 2 and not killed:
            killed.append(children()[0])
            os.kill(killed[0], signal.SIGKILL)

    found = compare(settings, kill)
    failures = [failure for entry in found.entries for failure in entry.failures]
    assert [failure.reason for failure in failures] == ["the process of this run ended with code -9"]
    assert sum(len(entry.runs) for entry in found.entries) == 3
    again = compare(dataclasses.replace(settings, workers=1))
    assert sum(len(entry.runs) for entry in again.entries) == 4  # it went on where it was
    assert all(read(tmp_path / run.directory / "ledger.jsonl").length == 50 for e in again.entries for run in e.runs)


@pytest.mark.slow
def test_stopping_saves_both_runs_and_ends_both_processes(tmp_path: Path) -> None:
    settings = two_at_once(tmp_path, steps=200)
    seen: set[int | None] = set()

    def stop(news: ComparisonProgress) -> None:
        if news.phase is Phase.TRAINING and news.step > 1:
            seen.add(news.seed)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(settings, stop)
    assert children() == []
    for seed in ("0", "1"):
        folder = tmp_path / "dp-sgd" / seed
        assert 1 < read(folder / "ledger.jsonl").length < 200
        assert (folder / "checkpoint" / "state.pt").is_file()
        assert not (folder / "result.json").exists()


def test_cores_are_those_that_may_be_used() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
