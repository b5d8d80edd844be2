"""Runs of methods that learn from public records: the records are named, loaded, and said to be the user's word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from discreet.core.check import Refused
from discreet.runs import RunConfig, train
from discreet.runs.comparison.compare import CompareSettings, candidates, compare
from discreet.runs.defaults import load_task

SMALL = (("public_batch", 20), ("rank", 0.02), ("refresh", 2))


def public_file(folder: Path, side: int = 8) -> str:
    generator = np.random.default_rng(0)
    x, y = generator.random((40, 1, side, side), dtype=np.float32), generator.integers(0, 10, 40)
    np.savez(folder / "public.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return str(folder / "public.npz")


def config(folder: Path, public: str | None, method: str = "gep") -> RunConfig:
    return RunConfig(
        delta=1e-5,
        out=str(folder / "run"),
        model="softmax",
        method=method,
        parameters=SMALL if method == "gep" else (),
        epsilon=3.0,
        steps=5,
        batch=64,
        public_records=public,
    )


def test_a_run_learns_from_public_records_and_says_so(tmp_path: Path) -> None:
    result = train(config(tmp_path, public_file(tmp_path)))
    assert result.spent.certified.epsilon <= 3.0
    assert "**If no protected record is among the public records**, which has not been checked" in result.statement
    assert "| public records |" in result.statement
    assert "no protected record is among the public" in (tmp_path / "run" / "ledger.jsonl").read_text()


def test_a_run_is_refused_before_it_spends(tmp_path: Path) -> None:
    public = public_file(tmp_path)
    for wrong, method, words in (
        (None, "gep", "public records for gep"),
        (public, "dp-sgd", "does not use any"),
        ("digits", "gep", "not the protected ones"),
    ):
        with pytest.raises(Refused, match=words):
            train(config(tmp_path, wrong, method))
    with pytest.raises(Refused, match="public records of shape"):
        train(config(tmp_path, public_file(tmp_path, side=7)))
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_comparison_without_public_records_leaves_such_methods_out(tmp_path: Path) -> None:
    settings = CompareSettings(
        out=tmp_path / "compared",
        epsilon=3.0,
        delta=1e-5,
        model="softmax",
        batch=64,
        steps=3,
        rows=candidates("digits", ["dp-sgd", "gep"]),
        repeats=1,
        workers=1,
    )
    found = compare(settings)
    assert [entry.name for entry in found.entries] == ["dp-sgd"]
    assert "public records for gep" in next(row.reason for row in found.excluded if row.method == "gep")


@pytest.mark.parametrize("is_public", [False, True])
def test_progress_of_features_does_not_count_private_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_public: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, y = np.random.default_rng(0).random((33, 1, 16, 16), dtype=np.float32), np.arange(33) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    own = {"data": str(tmp_path / "own.npz"), "classes": 2, "records": 30, "public_data": is_public}
    features = {"features": ("patches",), "public_records": "digits"}
    settings = RunConfig(**(vars(config(tmp_path, None, "dp-sgd")) | own | features))
    told: list[tuple[str, int, int]] = []
    load_task(settings, lambda *news: told.append(news))
    assert {total for _, _, total in told} == ({33, 2} if is_public else {0})
    assert told
