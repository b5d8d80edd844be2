"""Lines off a terminal: the first soon, then one every half minute."""

from __future__ import annotations

import pytest

from discreet.report.progress import Lines


def test_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    for step in range(1, 101):
        now = step - 1.0
        lines("step", step, 100, f"epsilon {step / 100:.2f}" if step % 10 == 0 else "")
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "step 6/100 · 94 s left".replace("94 s", "2 min"),
        "step 36/100 · epsilon 0.30 · 64 s left",
        "step 66/100 · epsilon 0.60 · 34 s left",
        "step 96/100 · epsilon 0.90 · 4 s left",
    ]


def test_another_run_has_a_pace_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    lines("run 1", 1, 10, "epsilon 1.00")
    now = 100.0
    lines("run 2", 1, 10, "")
    assert capsys.readouterr().err == "run 2 1/10\n"  # neither the news nor the pace of run 1
