"""The command that a page names is one that can be typed."""

import sys

import pytest

from discreet.core.command import command_line


@pytest.mark.parametrize(
    ("program", "told"),
    [("/usr/bin/discreet", "discreet plan"), ("/a/src/discreet/__main__.py", "python -m discreet plan")],
)
def test_the_program_as_it_is_typed(program: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program, "plan"])
    assert command_line() == told
