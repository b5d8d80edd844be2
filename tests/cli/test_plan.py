"""`discreet plan` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import refused, replaced, run

RUN = ("--records", "1000", "--batch", "100", "--epochs", "2", "--epsilon", "3", "--delta", "1e-5")
RUN += ("--methods", "dp-sgd,adaptive-quantile")


def test_a_plan_at_the_terminal_as_json_and_as_a_page(tmp_path: Path) -> None:
    page = tmp_path / "deep" / "plan.html"
    trial = ("--model", "softmax", "--data", "digits", "--out", str(page))
    shown = run("plan", *RUN, *trial)
    assert (shown.code, shown.err) == (0, "")
    for part in ("dp-sgd", "poisson", "Least noise on a step", "Sensible: batch", "time: about", "plan.html"):
        assert part in shown.out
    answer = run("plan", *RUN, *trial, "--json").json
    assert [method["name"] for method in answer["methods"]] == ["dp-sgd", "adaptive-quantile"]
    assert answer["trial"]["parameters"] == 650
    assert answer["quietest_batch"] == 1000
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert "650 parameters" in text
    figures = sorted(path.name for path in (tmp_path / "deep" / "plan-figures").iterdir())
    assert figures == [f"noise-by-{what}.{kind}" for what in ("batch", "epsilon") for kind in ("png", "svg")]


def test_without_a_model_time_and_memory_are_unknown() -> None:
    answer = run("plan", *RUN, "--json").json
    assert answer["trial"] is None
    assert answer["time"].startswith("unknown")
    assert answer["memory"].startswith("unknown")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"records": None}, ["--records"]),
        ({"epsilon": None}, ["--epsilon"]),
        ({"records": None, "epsilon": None}, ["--records and --epsilon, got neither"]),
        ({"batch": "2000"}, ["batch <= records"]),
        ({"methods": "dp-sdg"}, ["did you mean dp-sgd"]),
        ({"model": "softmax"}, ["--record-shape"]),
        ({"record_shape": "1,8,8"}, ["--model"]),
        ({"model": "softmax", "record_shape": "1,x", "classes": "10"}, ["--record-shape"]),
        ({"model": "softmax", "data": "own.npz"}, ["--data"]),
        ({"model": "hardmax", "data": "digits"}, ["a model of"]),
        ({"micro_batch": "0"}, ["micro_batch"]),
        ({"out": "plan.pdf"}, [".html"]),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_line(changes: dict[str, str | None], parts: list[str]) -> None:
    refused(run("plan", *replaced(RUN, **changes)), *parts)
