"""Scripted functions of a model's library, run as the Python functions that they were made from.

The watch does not see calls inside a function that `torch.jit.script` compiled (DeBERTa has six). TorchScript keeps the
Python function, which computes the same values. While a private pass runs, the modules that define the model's classes
hold the Python functions instead.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import nn

from discreet.engine.support import modules_in


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
