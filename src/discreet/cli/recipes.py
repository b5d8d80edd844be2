"""A recipe's parameters as flags, read from its signature: a new recipe needs no line here."""

import enum
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, final, get_args, get_origin

import typer

from discreet.core import check
from discreet.methods import METHODS, Method

__all__ = ["METHODS", "RESERVED", "Given", "Parameter", "arguments", "flags", "method_called", "parameters"]

_REQUIRED = inspect.Parameter.empty
_PANEL = "Parameters of a method"


Given = Mapping[str, str | bool | None]  # the generated flags of one command, by key; None where a flag was not given

RESERVED = frozenset(
    {
        *("accept_delta", "accept_uncertified", "as_json", "average", "batch", "budget", "calibrate_to_claim"),
        *(
            "folder",
            "grey",
            "held_out",
            "keep_best",
            "missing",
            "not_before",
            "part",
            "release",
            "runs",
            "score_on_test",
            "size",
            "runs_shape",
            "space",
        ),
        *("canaries", "canary", "cap", "checkpoint_every", "classes", "curve", "data", "data_dir", "delta"),
        *("device", "directory", "download", "epochs", "epsilon", "eval_every", "everything", "help", "json"),
        *("learning_rate", "ledger", "main", "method", "methods", "micro_batch", "model", "momentum", "noise"),
        *("one_run", "optimizer", "other_repeats", "out", "public_data", "public_records", "quick", "rate"),
        *("factory", "features", "file", "hold_out", "label", "minutes", "parameters", "place", "preset", "public"),
        *("finished_only", "numbers", "schema", "spend", "task", "test", "unit", "per_user", "sample", "users"),
        *("record_shape", "records", "relation", "repeats", "run", "sampling", "schedule", "schedule_per"),
        *("seed", "seeds", "solve", "steps", "truth", "tune_on", "version", "weight_decay", "workers"),
        *("fixed_rows", "trials", "tuned_in"),
    }
)
"""The words that the commands use themselves: the same flag never means two things."""


@final
@dataclass(frozen=True)
class Kind:
    """A type that text can say: its name in words, and the value of a text (KeyError or ValueError: not one)."""

    words: str
    value: Callable[[str], Any]


@final
@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of one recipe, and the flag that sets it."""

    method: str
    name: str
    kind: Kind
    default: Any

    @property
    def key(self) -> str:
        """Its name among all flags; a name that the commands use themselves gets the method's in front.

        >>> Parameter(method="auto-s", name="rate", kind=kind_of(float), default=1.0).flag
        '--auto-s-rate'
        """
        return f"{self.method.replace('-', '_')}_{self.name}" if self.name in RESERVED else self.name

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def about(self) -> str:
        given = "required" if self.default is _REQUIRED else f"default {shown(self.default)}"
        return f"{self.kind.words}, {given}"


def parameters(method: Method) -> tuple[Parameter, ...]:
    """The parameters of a recipe that text can set, in its order."""
    return tuple(
        Parameter(method=method.name, name=name, kind=kind, default=parameter.default)
        for name, parameter in inspect.signature(method.recipe, eval_str=True).parameters.items()
        if (kind := kind_of(parameter.annotation)) is not None
    )


def flags(shown: Sequence[str] = ()) -> list[inspect.Parameter]:
    """One command-line option for every parameter of every recipe; the help lists those of the methods in `shown`."""
    shared: dict[str, list[Parameter]] = {}
    for method in METHODS.values():
        for parameter in parameters(method):
            shared.setdefault(parameter.key, []).append(parameter)
    return [_option(key, owners, shown) for key, owners in shared.items()]


def _option(key: str, owners: list[Parameter], shown: Sequence[str]) -> inspect.Parameter:
    flag = owners[0].flag
    alike: dict[str, list[str]] = {}
    for owner in owners:
        alike.setdefault(owner.about, []).append(owner.method)
    help_text = "; ".join(f"{', '.join(names)}: {about}" for about, names in alike.items())
    switch = all(owner.kind.value is _truth for owner in owners)
    annotation: Any = bool | None if switch else str | None
    names = f"{flag}/--no-{flag[2:]}" if switch else flag
    metavar = None if switch else owners[0].kind.words.upper().replace(" ", "-")
    hidden = not any(owner.method in shown for owner in owners)
    option = typer.Option(
        names, help=help_text, rich_help_panel=_PANEL, show_default=False, metavar=metavar, hidden=hidden
    )
    return inspect.Parameter(
        key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, option]
    )


def method_called(name: str | None) -> Method:
    """The method of this name; another name is refused with the nearest one."""
    if name is None:
        check.refuse("--method", "none", "`discreet methods` lists them")
    if name not in METHODS:
        close = get_close_matches(name.lower(), METHODS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        check.refuse(f"a method of {', '.join(METHODS)}", repr(name), f"{hint}`discreet methods` describes them")
    return METHODS[name]


def methods_called(text: str) -> list[str]:
    return [method_called(name.strip()).name for name in text.split(",")]


def arguments(method: Method, given: Given) -> dict[str, Any]:
    """The recipe's arguments that the flags set; a flag of another method is refused."""
    own = {parameter.key: parameter for parameter in parameters(method)}
    texts = {key: text for key, text in given.items() if text is not None}
    for key in (key for key in texts if key not in own):
        every = (parameter for other in METHODS.values() for parameter in parameters(other))
        owners = ", ".join(parameter.method for parameter in every if parameter.key == key)
        mine, got = ", ".join(parameter.flag for parameter in own.values()) or "none", "--" + key.replace("_", "-")
        check.refuse(f"flags of {method.name} ({mine})", got, f"drop it, or choose a method that has it: {owners}")
    missing = [p.flag for p in own.values() if p.default is _REQUIRED and p.key not in texts]
    check.require(not missing, f"{' and '.join(missing)} for {method.name}", "none", "give it: it has no default")
    return {own[key].name: read(own[key], text) for key, text in texts.items()}


def _truth(text: str) -> bool:
    return {"yes": True, "true": True, "no": False, "false": False}[text.lower()]


_NUMBERS = {float: Kind("number", float), int: Kind("whole number", int)}
_KINDS: dict[Any, Kind] = {**_NUMBERS, bool: Kind("yes|no", _truth), str: Kind("text", str)}


def kind_of(annotation: Any) -> Kind | None:
    """What text can say of a type; None for types that it cannot.

    >>> [kind.words for kind in map(kind_of, (float | None, tuple[int, ...], dict)) if kind]
    ['number or none', 'list of whole number']
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    choices: dict[str, Any] = {}
    if origin in (Union, types.UnionType) and len(inner) == 2 and types.NoneType in inner:
        one = kind_of(inner[inner[0] is types.NoneType])
        return one and Kind(f"{one.words} or none", lambda text: None if text.lower() == "none" else one.value(text))
    if origin is tuple and len(inner) == 2 and inner[1] is ...:
        item = kind_of(inner[0])
        return item and Kind(
            f"list of {item.words}", lambda text: tuple(item.value(p.strip()) for p in text.split(","))
        )
    if origin is Literal and all(isinstance(choice, str) for choice in inner):
        choices = {choice: choice for choice in inner}
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        choices = {str(member.value): member for member in annotation}
    return Kind("|".join(choices), choices.__getitem__) if choices else _KINDS.get(annotation)


def shown(default: Any) -> str:
    """A default as the flag would say it."""
    if isinstance(default, enum.Enum):
        return str(default.value)
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        return ",".join(shown(item) for item in default)
    return "none" if default is None else str(default)


def read(parameter: Parameter, text: str | bool) -> Any:
    """The value that the text of a flag stands for."""
    if isinstance(text, bool):
        return text
    try:
        return parameter.kind.value(text.strip())
    except (ValueError, KeyError):
        remedy = f"{parameter.method} takes {parameter.flag} ({parameter.about})"
        check.refuse(f"{parameter.flag} to be {parameter.kind.words}", repr(text), remedy)
