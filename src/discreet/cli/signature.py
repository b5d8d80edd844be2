"""Commands whose flags are the fields of frozen dataclasses and the parameters of every recipe."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

RECIPE_FLAGS = "recipe_flags"
"""The field that takes the flags which the recipes give."""

Command = Callable[..., int | None]


def expanded(command: Command) -> Command:
    """The command with one keyword for each flag, for Typer to read."""
    groups = _groups(command)
    generated = _recipe_flags() if any(_takes_recipes(p.annotation) for p in _parameters(command)) else []
    parameters = [parameter for group in groups.values() for parameter in group.values()]

    def call(**values: Any) -> int | None:
        arguments: dict[str, Any] = {}
        for parameter in _parameters(command):
            own = {name: values[name] for name in groups[parameter.name]}
            kind: Any = parameter.annotation
            if not _is_group(kind):
                arguments.update(own)
                continue
            if _takes_recipes(kind):
                own[RECIPE_FLAGS] = {flag.name: values[flag.name] for flag in generated}
            arguments[parameter.name] = kind(**own)
        return command(**arguments)

    signature = inspect.Signature(parameters + generated)
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    vars(call)["__signature__"] = signature
    return call


def _recipe_flags() -> list[inspect.Parameter]:
    from discreet.cli import recipes  # which imports every method

    return recipes.flags()


def _parameters(command: Command) -> Iterable[inspect.Parameter]:
    return inspect.signature(command, eval_str=True).parameters.values()


def _groups(command: Command) -> dict[str, dict[str, inspect.Parameter]]:
    """The flags behind each parameter of the command: itself, or the fields of its dataclass."""
    groups: dict[str, dict[str, inspect.Parameter]] = {}
    for parameter in _parameters(command):
        kind = inspect.Parameter.KEYWORD_ONLY
        if not _is_group(parameter.annotation):
            groups[parameter.name] = {parameter.name: parameter.replace(kind=kind)}
            continue
        hints = get_type_hints(parameter.annotation, include_extras=True)
        groups[parameter.name] = {
            field.name: inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
            for field in dataclasses.fields(parameter.annotation)
            if field.name != RECIPE_FLAGS
        }
    return groups


def _is_group(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation)


def _takes_recipes(annotation: Any) -> bool:
    return _is_group(annotation) and any(field.name == RECIPE_FLAGS for field in dataclasses.fields(annotation))
