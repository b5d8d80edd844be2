"""The cost of several processes: the page shows the file, and the model agrees with what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from discreet.core.streams import Streams
from discreet.training.checkpoint import new_ledger
from research.benchmarks import ranks, shards
from research.kills import __main__ as kills

ROOT = Path(__file__).parents[2]
ANSWER, SHARDS, KILLS = (
    json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    for name in ("ranks.json", "shards.json", "kills.json")
)
PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")


def test_the_page_shows_the_files() -> None:
    assert ranks.tables(ANSWER) in PAGE
    assert shards.table(SHARDS) in PAGE
    assert kills.sentences(KILLS) in PAGE


def test_a_sharded_step_holds_and_sends_what_the_model_says() -> None:
    alone, *several = SHARDS["measured"]
    for row in several:
        held = sum(row["held"].values()) / sum(alone["held"].values())
        assert held == pytest.approx(1 / row["ranks"], rel=0.01)
        assert row["dp-sgd"]["bytes"] == pytest.approx(shards.modelled(row["ranks"], SHARDS["parameters"]), rel=0.02)
        assert row["dp-sgd"]["bytes"] < 1.1 * row["plain"]["bytes"]


def test_every_killed_run_ended_as_planned() -> None:
    for run in KILLS["runs"]:
        assert not run["wrong"]
        assert run["charges"] == run["steps"]
        assert len(run["kills"]) + 1 == run["starts"]


def test_the_checks_of_killed_runs_find_faults(tmp_path: Path) -> None:
    """The controls: a step without its charge, a step twice, noise twice."""
    plan = kills.plan(2)
    ledger = tmp_path / "ledger.jsonl"
    with new_ledger(ledger, plan, Streams.from_os()) as opened:
        for step in range(2):
            opened.append(plan.event_at(step), step=step)
    (tmp_path / "updates").write_text("2", encoding="utf-8")
    good = ["release 0 0 1", "noise 0 0 0.1 0.2", "release 0 1 1", "noise 0 1 0.3 0.4"]

    def wrong(*lines: str, steps: int = 2) -> list[str]:
        (tmp_path / "released-0").write_text("\n".join(lines), encoding="utf-8")
        return kills.judged(tmp_path, ranks=1, steps=steps, starts=1)[1]

    assert wrong(*good) == []
    assert wrong(*good, steps=3) == ["charges"]
    assert wrong("release 0 0 0", *good[1:]) == ["paid"]
    assert wrong(*good, "release 1 1 1") == ["once"]
    assert wrong(*good[:3], "noise 0 1 0.1 0.2") == ["keys"]


@pytest.mark.parametrize("number", range(len(ranks.RANKS)))
@pytest.mark.parametrize(("kind", "active"), [("dp-sgd", 1.0), ("random-freeze", 0.1)])
def test_the_model_agrees_with_the_measurement(kind: str, active: float, number: int) -> None:
    row = ANSWER["measured"][number]
    model = ranks.modelled(row["ranks"], ANSWER["coordinates"], active)
    assert row[kind]["bytes"] == pytest.approx(model["bytes_sent"], rel=0.05, abs=50_000)
    ahead = 2**17 / ANSWER["steps"]  # what a stream draws in advance, once
    assert row[kind]["normals"] == pytest.approx(model["normals"], abs=ahead)
    # The control: a rank that drew all the noise, or dense sums, would not agree.
    if row["ranks"] > 1:
        assert row["dp-sgd"]["normals"] + ahead < 0.6 * ANSWER["coordinates"]
        assert ANSWER["measured"][number]["random-freeze"]["bytes"] < 0.15 * row["dp-sgd"]["bytes"]
