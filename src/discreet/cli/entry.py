"""Command-line entry point and error handling."""

import copy
import dataclasses
import errno
import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple, final, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

import discreet
from discreet.cli.flags import BAD_INPUT, DAMAGED, FILES, INTERNAL, NO_MEMORY, PROCESS_LOST, STOPPED
from discreet.cli.usage import sentence
from discreet.core import check
from discreet.core.check import Damaged, Refused
from discreet.core.errors import ProcessLost, RunStopped, is_out_of_memory
from discreet.core.launch import process_number, processes

try:
    from typer import TyperException as UsageError
except ImportError:  # an older Typer, which Flower needs, raises the exceptions of click
    from click import ClickException as UsageError  # type: ignore[assignment]

COMPLETE = "_DISCREET_COMPLETE"  # the shell sets it to ask for completions
ALL = "all"  # `--help all` lists the rare flags, too
RECIPE_FLAGS = "recipe_flags"  # the field that takes the flags which the recipes give

Command = Callable[..., int | None]

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})


@final
class ListedCommand(NamedTuple):
    """A command of `discreet`. Its module is imported only if the command is called.

    summary  the first line of the help, which is the docstring of the function `name` in `discreet.cli.<module>`
    """

    name: str
    module: str
    summary: str

    def load(self) -> Command:
        command: Command = getattr(import_module(f"discreet.cli.{self.module}"), self.name)
        return command

    def listed(self) -> Command:
        """A function without flags in its place, for the list of all commands."""

        def command() -> None: ...

        command.__name__, command.__doc__ = self.name, self.summary
        return command


_SUMMARIES = {
    "advise": "What to do with a budget: batch, steps, clip, learning rate, the reason for each, and the command.",
    "account": "The certified epsilon of a plan or of ledgers, beside the one that the method's paper claims.",
    "calibrate": "The least noise, the most steps or the largest batch whose certificate stays within a budget.",
    "check": "Whether a model can be trained privately, what is refused and where, and what a private step costs.",
    "plan": "The noise that a budget needs, by method, sampler and batch size, with time and memory. "
    "Nothing is trained.",
    "train": "Train privately and leave a run directory: model, ledger, metrics and a privacy statement.",
    "resume": "Resume a run after a crash or Ctrl-C; steps that were charged are not run again.",
    "predict": "The prediction for every record of a file, with the probability of each class; costs no privacy.",
    "evaluate": "Measure a run: on records that need no protection, or on private ones by a charged noisy count.",
    "schema": "Draft a schema: from public data for free, or noisy bounds of private columns, which are charged.",
    "images": "Store folders of pictures as one .npz file for `train` and `compare`; without --classes for `predict`.",
    "tune": "Search settings at random within one budget that also pays for the choice; rerun the command to resume.",
    "budget": "Make the budget file of a dataset, or show what is left of it.",
    "compare": "Train every certified method at equal budgets, rank them, and write one page; "
    "rerun the command to resume.",
    "audit": "Attack a method: a lower bound on epsilon (99.9 % confidence), beside the certificate and the claim.",
    "presets": "Settings that need no tuning, by dataset, and what they reached.",
    "methods": "Every method: its guarantee in words and its own parameters.",
}
_TOGETHER = ("train", "resume")  # commands that several processes run together
_MODULES = {"calibrate": "account", "resume": "train"}  # others have a module of their own
COMMANDS = tuple(ListedCommand(name, _MODULES.get(name, name), text) for name, text in _SUMMARIES.items())


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


def expanded(command: Command, shown: Sequence[str] = ()) -> Command:
    """The command with one keyword for each flag, for Typer to read.

    shown  the methods whose own flags the help lists
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    kinds: dict[str, Any] = {name: parameter.annotation for name, parameter in parameters.items()}
    groups = _groups(command, every=ALL in shown)
    takers = {name for name, kind in kinds.items() if RECIPE_FLAGS in _fields(kind)}
    generated = _recipe_flags(shown) if takers else []

    def call(**values: Any) -> int | None:
        arguments: dict[str, Any] = {}
        for name, kind in kinds.items():
            own = {flag: values[flag] for flag in groups[name]}
            if name in takers:
                own[RECIPE_FLAGS] = {flag.name: values[flag.name] for flag in generated}
            arguments |= {name: kind(**own)} if _fields(kind) else own
        return command(**arguments)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    own = [parameter for group in groups.values() for parameter in group.values()]
    vars(call)["__signature__"] = inspect.Signature(own + generated)
    return call


def _recipe_flags(shown: Sequence[str]) -> list[inspect.Parameter]:
    from discreet.cli import recipes  # which imports every method

    return recipes.flags(shown)


def _groups(command: Command, *, every: bool = False) -> dict[str, dict[str, inspect.Parameter]]:
    """The flags behind each parameter of the command: itself, or the fields of its dataclass."""
    groups: dict[str, dict[str, inspect.Parameter]] = {}
    kind = inspect.Parameter.KEYWORD_ONLY
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        fields = _fields(parameter.annotation)
        hints = get_type_hints(parameter.annotation, include_extras=True) if fields else {}
        groups[parameter.name] = {
            name: inspect.Parameter(name, kind, default=field.default, annotation=_shown(hints[name], name, every))
            for name, field in fields.items()
            if name != RECIPE_FLAGS
        } or {parameter.name: parameter.replace(kind=kind)}
    return groups


def _shown(annotation: Any, name: str, every: bool) -> Any:
    """A flag as the help shows it: a switch without its opposite, a rare flag only among `every` flag."""
    kind, option = get_args(annotation)
    option = copy.copy(option)
    option.hidden = option.hidden and not every
    if kind is bool and not option.param_decls:
        option.param_decls = (f"--{name.replace('_', '-')}",)
    return Annotated[kind, option]


def _fields(annotation: Any) -> dict[str, dataclasses.Field[Any]]:
    is_group = dataclasses.is_dataclass(annotation)
    return {field.name: field for field in dataclasses.fields(annotation)} if is_group else {}


def build(commands: Sequence[Command], words: Sequence[str] = ()) -> typer.Typer:
    """The program; `words` is the command line, whose methods show their own flags in the help."""
    # The flags of completion are validated with pydantic: see `_without_validation`.
    completes = COMPLETE in os.environ or (bool(words) and words[0].startswith("-"))
    app = typer.Typer(cls=_Group, add_completion=completes, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.callback(invoke_without_command=True)(_root)
    for command in commands:
        app.command(command.__name__, cls=_Command, epilog=_hint(command))(expanded(command, words))
    return app


def _hint(command: Command) -> str | None:
    """How to see the flags that the help leaves out."""
    kinds = [parameter.annotation for parameter in inspect.signature(command).parameters.values()]
    takes = any(RECIPE_FLAGS in _fields(kind) for kind in kinds)
    more = f"All flags: discreet {command.__name__} --help {ALL}"
    return f"{more}. Flags of a method: discreet {command.__name__} --help METHOD" if takes else None


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
            _check_launch(words)
            typed = [*words, *os.environ.get("COMP_WORDS", "").split()]  # the shell completes a command line
            commands = [listed.load() if listed.name in typed else listed.listed() for listed in COMMANDS]
        code = get_command(build(commands, words)).main(args=words, prog_name=program, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageError as error:
        _say(sentence(error, words, [listed.name for listed in COMMANDS], program))
        return BAD_INPUT
    except RunStopped as error:
        code, message = _told(error.__cause__)
        _say(f"{message} {error.outcome}")
        spent = FILES if isinstance(error.__cause__, OSError) else STOPPED
        return spent if code == BAD_INPUT else code
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
    kind, text = type(error).__name__, str(error)
    if is_out_of_memory(error):
        first, remedy = (
            (text.splitlines() or [""])[0],
            "a smaller --micro-batch, a smaller model, or less extreme values",
        )
        return NO_MEMORY, f"Expected enough memory, got {kind}: {first}. Remedy: {remedy}."
    if isinstance(error, ArithmeticError):
        remedy = "give less extreme values"
        return BAD_INPUT, f"Expected numbers that can be computed with, got {kind}: {text}. Remedy: {remedy}."
    if os.environ.get("DISCREET_TRACEBACK"):
        traceback.print_exception(error)
    remedy = "set DISCREET_TRACEBACK=1, run it again and report what it prints"
    return INTERNAL, f"A fault in discreet, not in your input: {kind}: {text}. Remedy: {remedy}."


def _check_launch(words: Sequence[str]) -> None:
    """Refuse torchrun for commands that its processes would run once each."""
    fits = processes() == 1 or bool({*_TOGETHER, "--help", "--version"} & set(words))
    remedy = "run it without torchrun; commands that train several models start processes of their own"
    check.require(fits, f"discreet {' or '.join(_TOGETHER)} under torchrun", f"discreet {words[0]}", remedy)


def _say(message: str) -> None:
    """Exactly one line; under torchrun with the rank."""
    rank = f"rank {process_number()}: " if processes() > 1 else ""
    print(rank + " ".join(message.split()), file=sys.stderr)
