"""delta beside the number of records: 1/records or more is refused, above a tenth of that is warned about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import refused, run

import discreet
import loop
from discreet import methods
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.runs import RunConfig
from discreet.runs.planning import planner
from discreet.stages.delta import delta_warning
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from research.readme import comparison_from_json

RECORDS = 1000
HORIZON = Horizon.of(records=RECORDS, batch=100, steps=5)
RECIPE = methods.dp_sgd(clip=1.0)
LARGE, WARNED, GOOD = 1e-3, 1.01e-4, 1e-4


def ways(delta: float, **accept: bool) -> dict[str, Any]:
    """Every way to a plan."""
    budget = {"epsilon": 3.0, "delta": delta}
    claimed = methods.d2p2_sgd(reduction=0.5)
    return {
        "bind": lambda: RECIPE.bind(noise=1.0, horizon=HORIZON, delta=delta, **accept),
        "for_budget": lambda: RECIPE.for_budget(**budget, records=RECORDS, batch=100, steps=5, **accept),
        "for_horizon": lambda: RECIPE.for_horizon(**budget, horizon=HORIZON, **accept),
        "for_claim": lambda: claimed.for_claim(**budget, horizon=HORIZON, **accept),
    }


@pytest.mark.parametrize("way", ways(LARGE))
@pytest.mark.parametrize("delta", [LARGE, 0.5])
def test_one_over_records_is_refused(way: str, delta: float) -> None:
    match = r"Expected delta < 1/records = 0\.001, got delta=.*1/\(10 records\) = 0\.0001.*accept_large_delta"
    with pytest.raises(Refused, match=match):
        ways(delta)[way]()


@pytest.mark.parametrize("way", ["bind", "for_budget", "for_horizon"])
def test_what_is_accepted_is_said(way: str) -> None:
    plan = ways(LARGE, accept_large_delta=True)[way]()
    assert isinstance(plan, Plan)
    assert plan.to_json()["accept_large_delta"] is True
    assert "no single record is protected" in plan.warnings[0]
    assert ways(0.999 * LARGE)[way]().warnings[0].startswith("delta 0.000999 is above 1/(10 records) = 0.0001")
    assert ways(GOOD)[way]().warnings == ()


def test_a_rate_without_records_says_nothing() -> None:
    plan = RECIPE.bind(noise=1.0, horizon=Horizon.of_rate(rate=0.1, steps=5), delta=0.5)
    assert plan.warnings == ()
    assert delta_warning(0.5, None) == ""


def test_digests_of_plans_and_settings_stay_as_they_were() -> None:
    """A plan and a config that accept nothing have the JSON they had before anything could be accepted."""
    plan = RECIPE.bind(noise=1.0, horizon=HORIZON, delta=GOOD)
    assert "accept_large_delta" not in plan.to_json()
    assert plan.digest != RECIPE.bind(noise=1.0, horizon=HORIZON, delta=GOOD, accept_large_delta=True).digest
    config = RunConfig(out="x", delta=GOOD, noise=1.0)
    assert "accept_large_delta" not in config.to_json()
    accepted = RunConfig(out="x", delta=0.5, noise=1.0, accept_large_delta=True)
    assert RunConfig.from_json(json.loads(json.dumps(accepted.to_json()))) == accepted


@pytest.mark.parametrize(
    ("delta", "said", "not_said"),
    [
        (0.5, "does not protect single records", "differentially private"),
        (2e-3, "**Warning:** delta 0.002 is above 1/(10 records)", "does not protect"),
        (1e-3, "The released model is differentially private", "Warning"),
    ],
)
def test_statements(delta: float, said: str, not_said: str) -> None:
    recipe, horizon = methods.dp_sgd(clip=0.5), Horizon.of(records=60, batch=12, steps=2)
    plan = recipe.bind(noise=1.5, horizon=horizon, delta=delta, accept_large_delta=True)
    private = loop.private(None, plan, streams=Streams.from_os())
    loop.train(private)
    page = discreet.statement(private, data="nobody's")
    assert said in page
    assert not_said not in page
    assert ("warning: delta" in str(private.spent())) == (delta > 1 / 600)
    assert ("warnings" in private.spent().to_json()) == (delta > 1 / 600)


# The command line -------------------------------------------------------------------------------------------------

RUN = ("--method", "dp-sgd", "--noise", "1", "--records", "1000", "--batch", "100", "--steps", "5")
CALIBRATE = ("--method", "dp-sgd", "--epsilon", "3", "--records", "1000", "--batch", "100", "--steps", "5")
SOLVE = ("--method", "dp-sgd", "--epsilon", "9", "--noise", "1", "--records", "1000")
TRAIN = (
    "--data",
    "digits",
    "--model",
    "softmax",
    "--method",
    "dp-sgd",
    "--noise",
    "1",
    "--batch",
    "64",
    "--steps",
    "2",
)
PLAN = ("--records", "1000", "--batch", "100", "--epochs", "1", "--epsilon", "3", "--methods", "dp-sgd")
COMMANDS = {
    "account": ("account", *RUN),
    "account for a budget": ("account", *CALIBRATE),
    "calibrate": ("calibrate", *CALIBRATE),
    "calibrate steps": ("calibrate", *SOLVE, "--batch", "100", "--solve", "steps"),
    "calibrate batch": ("calibrate", *SOLVE, "--steps", "5", "--solve", "batch"),
    "plan": ("plan", *PLAN),
}


def warnings(answer: Any) -> list[str]:
    return list(answer.get("warnings", []))


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_refuse_accept_and_warn(name: str) -> None:
    words = COMMANDS[name]
    refused(run(*words, "--delta", "0.5"), "delta < 1/records = 0.001", "--accept-delta")
    accepted = run(*words, "--delta", "0.01", "--accept-delta", "--json").json
    assert "no single record is protected" in warnings(accepted)[0]
    shown = run(*words, "--delta", WARNED)
    assert shown.code == 0
    assert "Warning: delta 0.000101 is above" in " ".join(shown.out.split())
    assert warnings(run(*words, "--delta", GOOD, "--json").json) == []


def test_training(tmp_path: Path) -> None:
    """digits has 1437 training records."""
    refused(run("train", *TRAIN, "--delta", "0.5", "--out", tmp_path / "a"), "1/records", "--accept-delta")
    assert not (tmp_path / "a").exists()
    words = ("train", *TRAIN, "--delta", "0.5", "--accept-delta", "--out", tmp_path / "b")
    answer = run(*words, "--json").json
    assert "no single record" in answer["spent"]["warnings"][0]
    assert "differentially private" not in (tmp_path / "b" / "privacy-statement.md").read_text()
    assert run("resume", tmp_path / "b", "--json").json == answer
    shown = run("train", *TRAIN, "--delta", "1e-4", "--out", tmp_path / "c")
    assert "Warning: delta 0.0001 is above" in " ".join(shown.out.split())


def test_a_comparison_is_refused_as_a_whole(tmp_path: Path) -> None:
    words = ("compare", "--data", "digits", "--model", "softmax", "--epsilon", "3", "--methods", "dp-sgd")
    words = (*words, "--steps", "2", "--repeats", "1", "--out", str(tmp_path / "a"))
    refused(run(*words, "--delta", "0.5"), "1/records", "--accept-delta")
    shown = run(*words, "--delta", "1e-4")
    assert shown.code == 0, shown.err
    assert "Warning: delta 0.0001 is above" in " ".join(shown.out.split())
    assert "Warning: delta 0.0001 is above" in (tmp_path / "a" / "report.html").read_text()
    held = json.loads((tmp_path / "a" / "report.json").read_text())
    assert comparison_from_json(held).delta == 1e-4


def test_the_planner_asks_too() -> None:
    asked = {"records": RECORDS, "batch": 100, "epochs": 1, "epsilon": 3.0, "methods": ("dp-sgd",)}
    with pytest.raises(Refused, match="1/records"):
        planner.Question(**asked, delta=0.5)
    assert planner.Question(**asked, delta=0.5, accept_large_delta=True).delta == 0.5
