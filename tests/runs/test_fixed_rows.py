"""Runs with fixed rows: the settings, the plan and the statement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from discreet.core.check import Refused
from discreet.runs import RunConfig, RunFolder, load_result, train
from discreet.runs.defaults import settle
from discreet.stages.sampling import FixedSize, TruncatedPoisson


def config(out: Path | str = "unused", **settings: Any) -> RunConfig:
    usual: dict[str, Any] = {
        "model": "softmax",
        "steps": 4,
        "batch": 64,
        "epsilon": 2.0,
        "delta": 1e-5,
        "fixed_rows": 32,
    }
    return RunConfig(out=str(out), **{**usual, "fixed_rows": 32, **settings})


def test_poisson_batches_get_a_cap_that_the_plan_pays_for() -> None:
    settled, plan = settle(config(), None)
    assert plan.sampling == TruncatedPoisson(128)
    assert (settled.sampling, settled.cap) == ("truncated-poisson", 128)
    assert settle(settled, None) == (settled, plan)
    assert plan.certificate().epsilon <= 2.0
    assert plan.noise == pytest.approx(settle(config(fixed_rows=None), None)[1].noise, rel=1e-3)


def test_a_sampler_that_the_user_names_is_kept() -> None:
    assert settle(config(sampling="fixed-size"), None)[1].sampling == FixedSize()
    assert settle(config(sampling="truncated-poisson", cap=100), None)[1].sampling == TruncatedPoisson(100)


def test_a_run_with_fixed_rows_says_so_everywhere(tmp_path: Path) -> None:
    result = train(config(tmp_path / "run"))
    assert "Rounding of records by the batch is covered: every forward pass had 32 rows" in result.statement
    assert result.spent.fixed_rows == 32
    assert load_result(tmp_path / "run").spent == result.spent
    assert json.loads(RunFolder(tmp_path / "run").result.read_text())["spent"]["fixed_rows"] == 32


@pytest.mark.parametrize("settings", [{"fixed_rows": 0}, {"fixed_rows": -1}])
def test_rows_are_a_count(settings: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="fixed_rows"):
        config(**settings)


def test_settings_without_it_keep_their_digests() -> None:
    assert "fixed_rows" not in config(fixed_rows=None).to_json()
    assert RunConfig.from_json(config().to_json()) == config()


def test_samplers_without_a_largest_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no public limit"):
        train(config(tmp_path / "run", sampling="balls-in-bins"))
    assert not (tmp_path / "run").exists()
