"""`discreet tune` on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runner import refused, run

from discreet.accounting.best_of_runs import TruncatedNegativeBinomial


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(TruncatedNegativeBinomial, "draw", lambda law, uniform: 1)
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "visits.npz", x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:])
    own = ["--data", tmp_path / "visits.npz", "--classes", 2, "--records", 240, "--model", "logistic", "--batch", 60]
    return ["tune", *own, "--steps", 2, "--delta", "1e-4", "--out", tmp_path / "t"]


def test_a_search_shows_the_chosen_run_and_the_bill(words: list[object]) -> None:
    found = run(*words, "--epsilon", 3, "--space", "learning_rate=0.5,2", "--runs", 2, "--runs-shape", 1).out
    assert "secret, 2 expected (shape 1)" in found
    assert "for the whole search" in found
    assert "candidates" not in found


def test_a_public_score_is_exact(words: list[object]) -> None:
    found = run(*words, "--epsilon", 3, "--space", "learning_rate=0.5..2", "--score-on-test", "--json").json
    assert found["score"] == found["test_accuracy"]
    assert found["held_out"] == 0.0
    assert found["candidates"] is None


def test_what_a_search_needs_is_asked_for(words: list[object]) -> None:
    searched = ["--space", "learning_rate=0.5..2"]
    refused(run(*words, "--epsilon", 3), "--space", "e.g. --space learning_rate")
    refused(run(*words, *searched), "--epsilon")
    refused(run(*words, *searched, "--epsilon", 3, "--held-out", 0.2, "--score-on-test"), "drop one of them")
    refused(run(*words, *searched, "--epsilon", 3, "--method", "geodp"), "a method with a certificate")
    refused(run(*words, "--epsilon", 3, "--space", "nonsense=1,2"), "parameters of dp-sgd")
    refused(run(*words, "--epsilon", 3, "--space", "batch=64..128"), "list its values")
    assert not Path(str(words[-1])).exists()
