"""Command-line entry point and error handling."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

import discreet
from discreet.cli.account import account, calibrate, methods
from discreet.cli.audit import audit
from discreet.cli.compare import compare
from discreet.cli.output import BAD_INPUT, INTERNAL
from discreet.cli.plan import plan
from discreet.cli.signature import Command, expanded
from discreet.cli.train import resume, train
from discreet.core.check import Refused

COMMANDS: tuple[Command, ...] = (
    account,
    calibrate,
    plan,
    train,
    resume,
    compare,
    audit,
    methods,
)


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train PyTorch models with differential privacy, and tell the truth about epsilon."""
    if version:
        print(f"discreet {discreet.__version__}")
        raise typer.Exit


def build(commands: Sequence[Command] = COMMANDS) -> typer.Typer:
    """The application, with the flags of every recipe."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.callback(invoke_without_command=True)(_root)
    for command in commands:
        app.command(command.__name__)(expanded(command))
    return app


def main(
    args: Sequence[str] | None = None,
    *,
    commands: Sequence[Command] = COMMANDS,
    program: str = "discreet",
) -> int:
    """Run one command and return its exit code; bad input is one line on standard error and code 2."""
    words = list(sys.argv[1:] if args is None else args) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = get_command(build(commands)).main(args=words, prog_name=program, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Refused as error:
        return _refuse(str(error))
    except typer.TyperException as error:
        return _refuse(_sentence(error.format_message(), words))
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _refuse(f"Expected files that can be read and written, got {what}. Remedy: check the path.")
    except (ArithmeticError, MemoryError) as error:
        return _refuse(
            f"Expected numbers that can be computed with, got {type(error).__name__}: {error}. "
            "Remedy: give less extreme values."
        )
    except Exception as error:  # a fault of ours: said in one line all the same
        if os.environ.get("DISCREET_TRACEBACK"):
            traceback.print_exc()
        _say(
            f"A fault in discreet, not in your input: {type(error).__name__}: {error}. "
            "Remedy: set DISCREET_TRACEBACK=1, run it again and report what it prints."
        )
        return INTERNAL


def _sentence(message: str, words: list[str]) -> str:
    names = [command.__name__ for command in COMMANDS]
    command = next((f"discreet {word}" for word in words if word in names), "discreet")
    expected = f"Expected flags and values that `{command}` takes"
    return f"{expected}, got: {message.rstrip('.')}. Remedy: see `{command} --help`."


def _refuse(message: str) -> int:
    _say(message)
    return BAD_INPUT


def _say(message: str) -> None:
    """Exactly one line."""
    print(" ".join(message.split()), file=sys.stderr)
