"""A recipe's parameters as flags, read from its signature: a new recipe needs no line here."""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NoReturn, Union, final, get_args, get_origin

import typer

from discreet.core import check
from discreet.methods import METHODS, Method

__all__ = ["METHODS", "RESERVED", "Given", "Parameter", "arguments", "flags", "method_called", "parameters"]

_REQUIRED = inspect.Parameter.empty
_PANEL = "Parameters of a method"


Given = Mapping[str, str | bool | None]
"""The generated flags of one command, by key; None where a flag was not given."""

RESERVED = frozenset(
    {
        *("accept_delta", "accept_uncertified", "as_json", "average", "batch", "calibrate_to_claim"),
        *("canaries", "canary", "cap", "checkpoint_every", "classes", "curve", "data", "data_dir", "delta"),
        *("device", "directory", "download", "epochs", "epsilon", "eval_every", "everything", "help", "json"),
        *("learning_rate", "ledger", "main", "method", "methods", "micro_batch", "model", "momentum", "noise"),
        *("one_run", "optimizer", "other_repeats", "out", "public_data", "public_records", "quick", "rate"),
        *("record_shape", "records", "relation", "repeats", "run", "sampling", "schedule", "schedule_per"),
        *("seed", "seeds", "solve", "steps", "truth", "tune_on", "version", "weight_decay", "workers"),
    }
)
"""The words that the commands use themselves: the same flag never means two things."""


@final
@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of one recipe, and the flag that sets it."""

    method: str
    name: str
    annotation: Any
    default: Any

    @property
    def key(self) -> str:
        """Its name among all flags; a name that the commands use themselves gets the method's in front.

        >>> Parameter(method="auto-s", name="rate", annotation=float, default=1.0).flag
        '--auto-s-rate'
        """
        return f"{self.method.replace('-', '_')}_{self.name}" if self.name in RESERVED else self.name

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def about(self) -> str:
        """Its type and its default, as text."""
        given = "required" if self.default is _REQUIRED else f"default {shown(self.default)}"
        return f"{words_for(self.annotation)}, {given}"


def parameters(method: Method) -> tuple[Parameter, ...]:
    """The parameters of a recipe that text can set, in its order."""
    return tuple(
        Parameter(method=method.name, name=name, annotation=parameter.annotation, default=parameter.default)
        for name, parameter in inspect.signature(method.recipe, eval_str=True).parameters.items()
        if readable(parameter.annotation)
    )


def flags() -> list[inspect.Parameter]:
    """One command-line option for every parameter of every recipe."""
    shared: dict[str, list[Parameter]] = {}
    for method in METHODS.values():
        for parameter in parameters(method):
            shared.setdefault(parameter.key, []).append(parameter)
    return [_option(key, owners) for key, owners in shared.items()]


def _option(key: str, owners: list[Parameter]) -> inspect.Parameter:
    flag = owners[0].flag
    alike: dict[str, list[str]] = {}
    for owner in owners:
        alike.setdefault(owner.about, []).append(owner.method)
    help_text = "; ".join(f"{', '.join(names)}: {about}" for about, names in alike.items())
    switch = all(owner.annotation is bool for owner in owners)
    annotation: Any = bool | None if switch else str | None
    names = f"{flag}/--no-{flag[2:]}" if switch else flag
    metavar = None if switch else words_for(owners[0].annotation).upper().replace(" ", "-")
    option = typer.Option(names, help=help_text, rich_help_panel=_PANEL, show_default=False, metavar=metavar)
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


def arguments(method: Method, given: Given) -> dict[str, Any]:
    """The recipe's arguments that the flags set; a flag of another method is refused."""
    own = {parameter.key: parameter for parameter in parameters(method)}
    texts = {key: text for key, text in given.items() if text is not None}
    for key in texts:
        if key not in own:
            _belongs_elsewhere(key, method, own.values())
    missing = [p.flag for p in own.values() if p.default is _REQUIRED and p.key not in texts]
    check.require(not missing, f"{' and '.join(missing)} for {method.name}", "none", "give it: it has no default")
    return {own[key].name: read(own[key], text) for key, text in texts.items()}


def _belongs_elsewhere(key: str, method: Method, own: Iterable[Parameter]) -> NoReturn:
    every = (parameter for other in METHODS.values() for parameter in parameters(other))
    owners = [parameter for parameter in every if parameter.key == key]
    mine = ", ".join(parameter.flag for parameter in own) or "none"
    remedy = f"drop it, or choose a method that has it: {', '.join(owner.method for owner in owners)}"
    check.refuse(f"flags of {method.name} ({mine})", "--" + key.replace("_", "-"), remedy)


# -- text to values -----------------------------------------------------------------------------------------


def readable(annotation: Any) -> bool:
    """Whether text can say a value of this type.

    >>> readable(float | None), readable(tuple[int, ...]), readable(dict)
    (True, True, False)
    """
    if optional := _inside_optional(annotation):
        return readable(optional)
    if get_origin(annotation) is tuple:
        return len(get_args(annotation)) == 2 and get_args(annotation)[1] is ... and readable(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    return annotation in (float, int, bool, str) or _is_enum(annotation)


def words_for(annotation: Any) -> str:
    """A type in words.

    >>> words_for(float), words_for(tuple[int, ...])
    ('number', 'list of whole number')
    """
    if optional := _inside_optional(annotation):
        return f"{words_for(optional)} or none"
    if get_origin(annotation) is tuple:
        return f"list of {words_for(get_args(annotation)[0])}"
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if _is_enum(annotation):
        return "|".join(str(member.value) for member in annotation)
    return {float: "number", int: "whole number", bool: "yes|no", str: "text"}[annotation]


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
        return _value(parameter.annotation, text.strip())
    except (ValueError, KeyError):
        remedy = f"{parameter.method} takes {parameter.flag} ({parameter.about})"
        check.refuse(f"{parameter.flag} to be {words_for(parameter.annotation)}", repr(text), remedy)


def _value(annotation: Any, text: str) -> Any:
    if optional := _inside_optional(annotation):
        return None if text.lower() == "none" else _value(optional, text)
    if get_origin(annotation) is tuple:
        return tuple(_value(get_args(annotation)[0], part.strip()) for part in text.split(","))
    if get_origin(annotation) is Literal:
        return {choice: choice for choice in get_args(annotation)}[text]
    if _is_enum(annotation):
        return {str(member.value): member for member in annotation}[text]
    if annotation is bool:
        return {"yes": True, "true": True, "no": False, "false": False}[text.lower()]
    return annotation(text)


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, enum.Enum)


def _inside_optional(annotation: Any) -> Any:
    """X of `X | None`; None for any other type."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return None
    others = [item for item in get_args(annotation) if item is not types.NoneType]
    return others[0] if len(others) == 1 and len(get_args(annotation)) == 2 else None
