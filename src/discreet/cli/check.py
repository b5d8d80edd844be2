"""`discreet check`: whether a model can be trained privately."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli.flags import FAILED, JsonFlag, emit, flag
from discreet.core.check import count, refuse, require

_EXAMPLE = "a function in my_model.py is my_model:make; it returns (model, inputs) or (model, inputs, loss)"


def check(
    factory: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="A function: (model, inputs[, loss]).")],
    batch: Annotated[int, flag("Public batch size, for the micro-batch (default: 256).")] = 256,
    as_json: JsonFlag = False,
) -> int:
    """Whether a model can be trained privately, what is refused and where, and what a private step costs."""
    count("the public batch size", batch=batch)
    from discreet.report import terminal
    from discreet.training.model_check import check as tried

    model, inputs, loss = _made(factory)
    found = tried(model, inputs, loss=loss, batch=batch)
    if as_json:
        emit(found.to_json())
    else:
        terminal.show(terminal.check_table(found))
    return 0 if found.accepted else FAILED


def _made(name: str) -> tuple[Any, Any, Any]:
    """What the function called `module:function` returns; modules of the current directory come first."""
    module, _, function = name.partition(":")
    require(bool(module and function), "MODULE:FACTORY", repr(name), _EXAMPLE)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), function, None)
        made = found() if callable(found) else None
    except Exception as error:  # of the user's code
        refuse(f"{name} to run", f"{type(error).__name__}: {error}", f"run the command beside the module; {_EXAMPLE}")
    finally:
        sys.path.pop(0)
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        got = f"a {type(made).__name__}" if callable(found) else "no such function"
        refuse(f"{name} to return (model, inputs) or (model, inputs, loss)", got, _EXAMPLE)
    model, inputs, *loss = made
    return model, inputs, loss[0] if loss else None
