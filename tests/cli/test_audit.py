from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cli_runner import refused, run

from discreet.auditing import truth
from discreet.auditing.truth import Attack, Effort
from discreet.runs.audit_rows import AuditRow

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
def test_a_stopped_table_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, flags = tmp_path / "table.json", ("audit", "--method", "dp-sgd", "--quick", "--out")
    played: list[str] = []
    whole = Attack.row

    def row(attack: Attack, *args: Any) -> AuditRow:
        if len(played) == 1:
            played.append("stopped")
            raise KeyboardInterrupt
        played.append(attack.label)
        return whole(attack, *args)

    monkeypatch.setattr(Attack, "row", row)
    stopped = run(*flags, out)
    assert stopped.code == 130
    assert f"Finished rows are kept in {out}.part" in stopped.err
    assert not out.exists()
    answer = run(*flags, out, "--json").json
    rest = ["dp-sgd, one number a trial", "dp-sgd, sampled users", "dp-sgd, capped records"]
    assert played == ["dp-sgd, one step", "stopped", *rest]
    assert [row["parameters"]["game"] for row in answer["rows"]][:2] == [
        "one step, crafted gradient",
        "one step, sufficient statistic",
    ]
    assert list(tmp_path.iterdir()) == [out]  # the rows are in the table now


@pytest.mark.usefixtures("small")
def test_the_command_prints_a_table() -> None:
    told = run("audit", "--method", "geodp", "--quick")
    assert told.code == 0
    assert told.err == ""
    assert "claim" in told.out
    assert "audited: a lower bound" in told.out


def test_a_broken_certificate_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    row = AuditRow(
        method="dp-sgd",
        parameters=MappingProxyType({"noise": 1.0}),
        certified=1.0,
        claimed=None,
        analytic=None,
        audited=2.0,
        confidence=0.999,
    )
    monkeypatch.setattr(truth, "truth_table", lambda *_, **__: (row,))
    told = run("audit", "--method", "dp-sgd", "--json")
    assert told.code == 1
    assert json.loads(told.out)["rows"][0]["verdict"] == "CERTIFICATE BROKEN"


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    refused(run("audit"), "--method, --all and --run", "neither")
    refused(run("audit", "--all", "--method", "dp-sgd"), "--method and --all")
    refused(run("audit", "--all", "--run", tmp_path), "--all and --run")
    refused(run("audit", "--method", "dp-sdg"), "dp-sgd")
    refused(run("audit", "--all", "--one-run"), "--one-run with --method")
    refused(run("audit", "--method", "dp-sgd", "--workers", "2"), "--workers with --all")
    refused(run("audit", "--all", "--quick", "--workers", "0"), "workers")
    refused(run("audit", "--method", "dp-sgd", "--canaries", "5"), "--run or --one-run")
    for others in (("--method", "dp-sgd", "--out", __file__), ("--all",), ("--all", "--out", tmp_path / "none.json")):
        refused(run("audit", "--missing", *others), "--missing with --all and --out FILE, an earlier table")
    refused(run("audit", "--method", "dp-sgd", "--one-run", "--canaries", "5"), "canaries")
    refused(run("audit", "--run", tmp_path / "nothing"), "directory of a run")


def test_one_run_of_a_method(tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    flags = ("audit", "--method", "dp-sgd", "--one-run", "--quick", "--canaries", "40")
    answer = run(*flags, "--out", out, "--json").json
    assert answer["method"] == "dp-sgd"
    assert answer["canary"] == "gradient"
    assert 0 <= answer["audited"] <= answer["certified"]
    assert json.loads(out.read_text()) == answer
    assert list(tmp_path.iterdir()) == [out]  # an audit leaves nothing else behind


def test_a_run_directory_is_audited_by_its_recipe(tmp_path: Path) -> None:
    made = tmp_path / "run"
    trained = (
        "--method",
        "dp-sgd",
        "--noise",
        "2",
        "--delta",
        "1e-5",
        "--steps",
        "3",
        "--model",
        "softmax",
        "--out",
        made,
    )
    assert run("train", *trained).code == 0
    before = sorted(path.name for path in made.iterdir())
    told = run("audit", "--run", made, "--canary", "data", "--canaries", "50")
    assert told.code == 0
    assert "50 data canaries in one run of 3 steps" in told.out
    assert "tightness" in told.out
    assert sorted(path.name for path in made.iterdir()) == before


def test_a_run_on_private_records_is_not_trained_again(tmp_path: Path) -> None:
    import numpy as np

    x = np.zeros((40, 4), dtype=np.float32)
    y = np.arange(40) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ("--model", "softmax", "--method", "dp-sgd", "--noise", "1", "--delta", "1e-5", "--batch", "10")
    own = ("--data", tmp_path / "own.npz", "--classes", "2", "--records", "40", "--steps", "2")
    assert run("train", *words, *own, "--out", tmp_path / "run", "--json").code == 0
    refused(run("audit", "--run", tmp_path / "run"), "public records", "no ledger pays")
