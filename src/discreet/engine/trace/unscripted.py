"""Scripted functions: a model's library runs the Python functions that they were made from, others are announced.

The watch does not see calls inside a function that `torch.jit.script` compiled (DeBERTa has six). TorchScript keeps the
Python function, which computes the same values. While a private pass runs, the modules that define the model's classes
hold the Python functions instead.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, final

import torch
from torch import nn

from discreet.engine.model.support import modules_in


@final
class Unscripted:
    """The scripted functions that the code of one model may call by name."""

    def __init__(self, model: nn.Module) -> None:
        classes = {cls for module in modules_in(model) for cls in type(module).__mro__}
        rooms = {cls.__module__ for cls in classes if cls.__module__.split(".")[0] not in ("torch", "builtins")}
        self._found: list[tuple[dict[str, Any], str, Any, Callable[..., Any]]] = []
        self._depth = 0
        for room in sorted(rooms):
            names = vars(sys.modules[room]) if room in sys.modules else {}
            for name, value in names.items():
                if isinstance(value, torch.jit.ScriptFunction):
                    self._found.append((names, name, value, value._torchdynamo_inline))  # type: ignore[attr-defined]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the Python functions inside the block; blocks may be nested."""
        self._depth += 1
        try:
            if self._depth == 1:
                for names, name, _, plain in self._found:
                    names[name] = plain
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                for names, name, scripted, _ in self._found:
                    names[name] = scripted


_TYPES: Final[tuple[Any, ...]] = (torch.jit.ScriptFunction, torch._C.ScriptMethod)
_RUN: Final = tuple(kind.__call__ for kind in _TYPES)
_told: list[Callable[[Any], None]] = []


def watch_scripts(tell: Callable[[Any], None]) -> None:
    """Call `tell` with the arguments of every scripted function before it runs: torch shows its calls to no mode."""
    _install()
    _told.append(tell)


def unwatch_scripts(tell: Callable[[Any], None]) -> None:
    """Undo `watch_scripts`, if it was done: Ctrl-C may come between."""
    if tell in _told:
        _told.remove(tell)


@cache
def _install() -> None:
    """Once and for all: torch's classes are slow after each change."""
    for kind, run in zip(_TYPES, _RUN, strict=True):
        kind.__call__ = _told_of(run)


def _told_of(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(scripted: Any, *args: Any, **kwargs: Any) -> Any:
        for tell in _told:
            tell((args, kwargs))
        return run(scripted, *args, **kwargs)

    return call
