"""Processes of a sharded run that are killed or stall, again and again: nothing is run twice, nothing is free."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import killed_shards
import loop
from discreet.accounting.ledger import read

RANKS = 2


def survive(place: Path, kills: int, steps: int, patience: float) -> None:
    """Kill a run so often, and check what is left."""
    done = subprocess.run(
        [sys.executable, killed_shards.__file__, str(place), str(RANKS), str(kills), str(steps)],
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    record = read(place / "ledger.jsonl")
    assert [entry.step for entry in record.entries] == list(range(steps))  # exactly the planned charges
    assert record.charge().certified == loop.plan(steps=steps).charge().certified
    for rank in range(RANKS):
        lines = (place / f"released-{rank}").read_text().splitlines()
        noted = [(int(step), paid == "1") for step, paid in map(str.split, lines)]
        assert all(paid for _, paid in noted)  # no release before its charge
        assert len({step for step, _ in noted}) == len(noted)  # no step twice
        assert steps - kills <= len(noted) <= steps
    keys = [value for entry in record.entries for value in entry.note.values() if isinstance(value, str)]
    assert len(set(keys)) == len(keys)  # no key twice, in any process
    assert len(keys) % (2 * RANKS) == 0
    assert kills / 2 < len(keys) // (2 * RANKS) <= kills + 1  # most kills hit a run that had begun


def test_kills_of_a_sharded_run(tmp_path: Path) -> None:
    survive(tmp_path, kills=3, steps=40, patience=200)


@pytest.mark.slow
@pytest.mark.timeout(3900)
def test_a_hundred_kills_of_a_sharded_run(tmp_path: Path) -> None:
    survive(tmp_path, kills=100, steps=600, patience=3600)
