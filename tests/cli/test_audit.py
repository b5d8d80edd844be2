from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import pytest
from cli_runner import refused, run

from discreet.auditing import truth
from discreet.auditing.truth import Effort, Row

KEYS = {"method", "parameters", "certified", "claimed", "analytic", "audited", "confidence", "verdict"}
SMALL = Effort(scalar=2000, canaries=1000, runs=16)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "QUICK", SMALL)


@pytest.mark.usefixtures("small")
def test_the_command_prints_one_json_object(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "table.json"
    answer = run("audit", "--method", "geodp", "--quick", "--out", out, "--json").json
    assert [set(row) for row in answer["rows"]] == [KEYS] * len(answer["rows"])
    assert "claim broken" in {row["verdict"] for row in answer["rows"]}
    assert set(answer["versions"]) >= {"python", "discreet", "numpy", "torch"}
    assert json.loads(out.read_text()) == answer


@pytest.mark.usefixtures("small")
def test_the_command_prints_a_table() -> None:
    told = run("audit", "--method", "geodp", "--quick")
    assert told.code == 0
    assert told.err == ""
    assert "claim" in told.out
    assert "audited: a lower bound" in told.out


def test_a_broken_certificate_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(
        method="dp-sgd",
        parameters=MappingProxyType({"noise": 1.0}),
        certified=1.0,
        claimed=None,
        analytic=None,
        audited=2.0,
        confidence=0.999,
    )
    monkeypatch.setattr(truth, "truth_table", lambda *_, **__: iter([row]))
    told = run("audit", "--method", "dp-sgd", "--json")
    assert told.code == 1
    assert json.loads(told.out)["rows"][0]["verdict"] == "CERTIFICATE BROKEN"


def test_bad_input_is_refused_in_one_line() -> None:
    refused(run("audit"), "--method or --all", "neither")
    refused(run("audit", "--all", "--method", "dp-sgd"), "both")
    refused(run("audit", "--method", "dp-sdg"), "dp-sgd")
