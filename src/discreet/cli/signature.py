"""Commands whose flags are the fields of frozen dataclasses and the parameters of every recipe."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

RECIPE_FLAGS = "recipe_flags"  # the field that takes the flags which the recipes give

Command = Callable[..., int | None]


def expanded(command: Command) -> Command:
    """The command with one keyword for each flag, for Typer to read."""
    parameters = inspect.signature(command, eval_str=True).parameters
    kinds: dict[str, Any] = {name: parameter.annotation for name, parameter in parameters.items()}
    groups = _groups(command)
    takers = {name for name, kind in kinds.items() if RECIPE_FLAGS in _fields(kind)}
    generated = _recipe_flags() if takers else []

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


def _recipe_flags() -> list[inspect.Parameter]:
    from discreet.cli import recipes  # which imports every method

    return recipes.flags()


def _groups(command: Command) -> dict[str, dict[str, inspect.Parameter]]:
    """The flags behind each parameter of the command: itself, or the fields of its dataclass."""
    groups: dict[str, dict[str, inspect.Parameter]] = {}
    kind = inspect.Parameter.KEYWORD_ONLY
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        fields = _fields(parameter.annotation)
        hints = get_type_hints(parameter.annotation, include_extras=True) if fields else {}
        groups[parameter.name] = {
            name: inspect.Parameter(name, kind, default=field.default, annotation=hints[name])
            for name, field in fields.items()
            if name != RECIPE_FLAGS
        } or {parameter.name: parameter.replace(kind=kind)}
    return groups


def _fields(annotation: Any) -> dict[str, dataclasses.Field[Any]]:
    is_group = dataclasses.is_dataclass(annotation)
    return {field.name: field for field in dataclasses.fields(annotation)} if is_group else {}
