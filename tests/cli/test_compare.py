from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import refused, replaced, run

from discreet.runs.comparison import compare as comparison
from research.readme import read_comparison

RUN = ("--epsilon", "3", "--delta", "1e-5", "--methods", "dp-sgd,psac", "--model", "softmax")
RUN += ("--batch", "64", "--steps", "3")


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is this very process; starting others takes seconds."""
    monkeypatch.setattr("discreet.core.workers.cores", lambda: 1)


def test_a_comparison_from_the_command_line(tmp_path: Path) -> None:
    words = (*RUN, "--out", str(tmp_path / "page"), "--seeds", "0,1")
    shown = run("compare", *words)
    assert shown.code == 0
    assert all(line.startswith("run ") for line in shown.err.splitlines())  # progress alone
    for part in ("dp-sgd", "psac", "certified", "not private", "report.html"):
        assert part in shown.out
    answer = run("compare", *words, "--json").json
    assert [len(entry["runs"]) for entry in answer["entries"]] == [2, 2]
    assert {entry["method"] for entry in answer["entries"]} == {"dp-sgd", "psac"}
    page = Path(answer["page"])
    assert page == tmp_path / "page" / "report.html"
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert read_comparison(Path(answer["file"])).epsilon == 3.0


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"out": None}, ["--out"]),
        ({"epsilon": None}, ["--epsilon"]),
        ({"epsilon": "0"}, ["epsilon > 0"]),
        ({"delta": None}, ["--delta"]),
        ({"methods": "dp-sgd,dp-sdg"}, ["did you mean dp-sgd"]),
        ({"methods": ""}, ["a method of"]),
        ({"seeds": "0,x"}, ["--seeds", "'0,x'"]),
        ({"seeds": "1,1"}, ["different seeds"]),
        ({"seeds": "-1"}, ["seed"]),
        ({"seeds": "1", "repeats": "3"}, ["--repeats"]),
        ({"repeats": "0"}, ["repeats"]),
        ({"epochs": "3"}, ["epochs", "steps"]),
        ({"data": "digit"}, ["digits"]),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_line(tmp_path: Path, changes: dict[str, str | None], parts: list[str]) -> None:
    words = replaced((*RUN, "--out", str(tmp_path / "page")), **changes)
    refused(run("compare", *words), *parts)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "compare", stopped)
    result = run("compare", *RUN, "--out", tmp_path / "page")
    assert result.code == 130
    assert result.err == "Stopped and saved. Rerun the command to resume.\n"


def test_a_comparison_in_which_nothing_finished_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("discreet.runs.comparison.runner.train_on", broken)
    in_this_process(monkeypatch)
    result = run("compare", *RUN, "--out", tmp_path / "page", "--seeds", "0")
    assert result.code == 1
    assert "out of luck" in result.out


def test_several_budgets_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    words = replaced((*RUN, "--out", str(tmp_path / "page")), epsilon="8,1,3", methods="dp-sgd")
    answer = run("compare", *words, "--seeds", "0,1", "--other-repeats", "1", "--json").json
    assert answer["epsilon"] == 3.0  # the middle one is ranked
    assert [(stage["epsilon"], stage["repeats"]) for stage in answer["others"]] == [(8.0, 1), (1.0, 1)]
    shown = run("compare", *words, "--seeds", "0,1", "--other-repeats", "1")
    assert "each budget" in shown.out
    assert "epsilon 8" in shown.out


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"epsilon": "1,x"}, ["--epsilon", "'1,x'"]),
        ({"epsilon": "1,1"}, ["different budgets"]),
        ({"epsilon": "1,0"}, ["epsilon > 0"]),
        ({"epsilon": "1,3", "main": "2"}, ["--main"]),
        ({"main": "3"}, ["several budgets"]),
        ({"other_repeats": "2"}, ["several budgets"]),
        ({"truth": "nowhere.json"}, ["a truth table"]),
        ({"tune_on": "digit"}, ["digits"]),
        ({"tuned_in": "nowhere.json"}, ["nowhere.json"]),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_bad_budgets_and_files_are_one_line(tmp_path: Path, changes: dict[str, str | None], parts: list[str]) -> None:
    words = replaced((*RUN, "--out", str(tmp_path / "page")), **changes)
    refused(run("compare", *words), *parts)
