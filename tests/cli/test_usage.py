"""Command lines that cannot be parsed, help on one screen, and completion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cli_runner import refused, run

SCREEN = 50  # lines of a terminal window


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("train --lr 3", ["got --lr", "the flag is --learning-rate"]),
        ("train --max-grad-norm 3", ["the flag is --clip"]),
        ("account --batch-size 3", ["the flag is --batch"]),
        ("train --epsilom 3", ["the nearest flag is --epsilon"]),
        ("train --qqqq 3", ["got --qqqq", "see `discreet train --help`"]),
        ("train --epsilon x", ["--epsilon to be a number, got 'x'"]),
        ("train --batch=2.5", ["--batch to be a whole number, got '2.5'"]),
        ("train --optimizer fish", ["--optimizer to be one of sgd, adam, got 'fish'"]),
        ("train --epsilon", ["a value after --epsilon, got none"]),
        ("train fish", ["flags that start with --, got 'fish' by itself"]),
        ("check", ["Expected MODULE:FACTORY, got none"]),
        ("trian", ["got 'trian'", "the nearest is `discreet train`"]),
        ("xyzzy", ["`discreet --help` lists them"]),
        ("train", ["--epsilon, --delta and --out, got none of them", "--epsilon 3 --delta 1e-5 --out runs/first"]),
        ("compare --delta 1e-5", ["--epsilon and --out, got neither"]),
    ],
)
def test_our_own_words(words: str, parts: list[str]) -> None:
    refused(run(*words.split()), *parts)


def help_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*words)
    assert result.code == 0, result.err
    return result.out


@pytest.mark.parametrize("command", ["train", "compare", "account", "plan"])
def test_the_help_fits_on_a_screen(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert help_of(monkeypatch, command, "--help").count("\n") <= SCREEN


def test_rare_flags_and_flags_of_a_method_are_listed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    short = help_of(monkeypatch, "train", "--help")
    assert "--weight-decay" not in short
    assert "--gamma" not in short
    assert "train --help all" in short
    assert "--weight-decay" in help_of(monkeypatch, "train", "--help", "all")
    own = help_of(monkeypatch, "train", "--help", "auto-s")
    assert "--gamma" in own
    assert "--count-noise" not in own


def test_the_shell_completes_flags() -> None:
    words = {"_DISCREET_COMPLETE": "complete_bash", "COMP_WORDS": "discreet train --ep", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['discreet']; from discreet.cli import main; main()"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **words},
    )
    assert done.stdout.split() == ["--epochs", "--epsilon"], done.stderr
