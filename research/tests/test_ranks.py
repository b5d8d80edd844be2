"""The cost of several processes: the page shows the file, and the model agrees with what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.benchmarks import ranks

ROOT = Path(__file__).parents[2]
ANSWER = json.loads((ROOT / "results" / "ranks.json").read_text(encoding="utf-8"))


def test_the_page_shows_the_file() -> None:
    assert ranks.tables(ANSWER) in (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")


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
