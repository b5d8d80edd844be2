"""Command-line entry point and error handling."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, final

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

import discreet
from discreet.cli.output import BAD_INPUT, DAMAGED, FILES, INTERNAL, NO_MEMORY, PROCESS_LOST, STOPPED
from discreet.cli.signature import Command, expanded
from discreet.core.check import Damaged, Refused
from discreet.core.errors import ProcessLost, RunStopped, is_out_of_memory

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})


@final
@dataclass(frozen=True)
class ListedCommand:
    """A command of `discreet`. Its module is imported only if the command is called.

    summary  the first line of the help, which is the docstring of the function `name` in `discreet.cli.<module>`
    """

    name: str
    module: str
    summary: str

    def load(self) -> Command:
        """The function of the command."""
        command: Command = getattr(import_module(f"discreet.cli.{self.module}"), self.name)
        return command

    def listed(self) -> Command:
        """A function without flags in its place, for the list of all commands."""

        def command() -> None: ...

        command.__name__, command.__doc__ = self.name, self.summary
        return command


COMMANDS = (
    ListedCommand(
        "account",
        "account",
        "The certified epsilon of a plan or of ledgers, beside the one that the method's paper claims.",
    ),
    ListedCommand(
        "calibrate",
        "account",
        "The least noise, the most steps or the largest batch whose certificate stays within a budget.",
    ),
    ListedCommand(
        "check",
        "check",
        "Whether a model can be trained privately, what is refused and where, and what a private step costs.",
    ),
    ListedCommand(
        "plan",
        "plan",
        "The noise that a budget needs, by method, sampler and batch size, with time and memory. Nothing is trained.",
    ),
    ListedCommand(
        "train", "train", "Train privately and leave a run directory: model, ledger, metrics and a privacy statement."
    ),
    ListedCommand(
        "resume", "train", "Resume a run after a crash or Ctrl-C; steps that were charged are not run again."
    ),
    ListedCommand(
        "compare",
        "compare",
        "Train every certified method at equal budgets, rank them, and write one page; rerun the command to resume.",
    ),
    ListedCommand(
        "audit",
        "audit",
        "Attack a method: a lower bound on epsilon (99.9 % confidence), beside the certificate and the claim.",
    ),
    ListedCommand("methods", "methods", "Every method: its guarantee in words and its own parameters."),
)


def _without_validation(option: TyperOption | None) -> TyperOption | None:
    """Make --help false by default: Typer validates None with pydantic, whose import takes as long as numpy's."""
    if option is not None:
        option.default = False
    return option


@final
class _Group(TyperGroup):
    def get_help_option(self, ctx: typer.Context) -> TyperOption | None:  # type: ignore[override]
        return _without_validation(super().get_help_option(ctx))


@final
class _Command(TyperCommand):
    def get_help_option(self, ctx: typer.Context) -> TyperOption | None:  # type: ignore[override]
        return _without_validation(super().get_help_option(ctx))


def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train PyTorch models with differential privacy, and tell the truth about epsilon."""
    if version:
        print(f"discreet {discreet.__version__}")
        raise typer.Exit


def build(commands: Sequence[Command]) -> typer.Typer:
    """The application of these commands, with the flags of every recipe."""
    app = typer.Typer(cls=_Group, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.callback(invoke_without_command=True)(_root)
    for command in commands:
        app.command(command.__name__, cls=_Command)(expanded(command))
    return app


def main(
    args: Sequence[str] | None = None, *, commands: Sequence[Command] | None = None, program: str = "discreet"
) -> int:
    """Run one command and return its exit code; errors are one line on standard error.

    commands  the functions of another program's commands; None for those of `discreet`, of which only the one that
              is called is imported
    """
    words = list(sys.argv[1:] if args is None else args) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        if commands is None:
            commands = [listed.load() if listed.name in words else listed.listed() for listed in COMMANDS]
        code = get_command(build(commands)).main(args=words, prog_name=program, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        _say(_sentence(error.format_message(), words, program))
        return BAD_INPUT
    except RunStopped as error:
        code, message = _told(error.__cause__)
        _say(f"{message} {error.outcome}")
        if code == BAD_INPUT:
            return FILES if isinstance(error.__cause__, OSError) else STOPPED
        return code
    except Exception as error:
        code, message = _told(error)
        _say(message)
        return code


def _told(error: BaseException | None) -> tuple[int, str]:
    """The exit code of an error and its sentence; the code for bad input is for commands that spent nothing."""
    if isinstance(error, Refused):
        return DAMAGED if isinstance(error, Damaged) else BAD_INPUT, str(error)
    if isinstance(error, ProcessLost):
        return PROCESS_LOST, str(error)
    if isinstance(error, OSError):
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        is_full = error.errno in _DISK
        remedy = "free space on the disk, or mend it" if is_full else "check the path"
        message = f"Expected files that can be read and written, got {what}. Remedy: {remedy}."
        return FILES if is_full else BAD_INPUT, message
    if is_out_of_memory(error):
        first = (str(error).splitlines() or [""])[0]
        return NO_MEMORY, (
            f"Expected enough memory, got {type(error).__name__}: {first}. "
            "Remedy: a smaller --micro-batch, a smaller model, or less extreme values."
        )
    if isinstance(error, ArithmeticError):
        return BAD_INPUT, (
            f"Expected numbers that can be computed with, got {type(error).__name__}: {error}. "
            "Remedy: give less extreme values."
        )
    if os.environ.get("DISCREET_TRACEBACK"):
        traceback.print_exception(error)
    return INTERNAL, (
        f"A fault in discreet, not in your input: {type(error).__name__}: {error}. "
        "Remedy: set DISCREET_TRACEBACK=1, run it again and report what it prints."
    )


def _sentence(message: str, words: list[str], program: str) -> str:
    names = [listed.name for listed in COMMANDS]
    command = next((f"{program} {word}" for word in words if word in names), program)
    expected = f"Expected flags and values that `{command}` takes"
    return f"{expected}, got: {message.rstrip('.')}. Remedy: see `{command} --help`."


def _say(message: str) -> None:
    """Exactly one line."""
    print(" ".join(message.split()), file=sys.stderr)
