"""Torch function modes that are put on and removed in any order: a `with` block of the user's may lie between."""

from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

_MOST_HELD: Final = 10_000  # objects that one mode may hold


def push_mode(mode: TorchFunctionMode) -> None:
    """Put a mode on the stack."""
    _push_mode(mode)


def remove_mode(mode: TorchFunctionMode) -> None:
    """Remove this mode, and no other, from wherever it is on the stack."""
    above = []
    while torch._C._len_torch_function_stack():
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)


def code_in(mode: Any) -> str | None:
    """The name of a function that is not torch's and that one of torch's modes may call; None if it holds none.

    Such a function gets the tensors of each call, and no call inside of it is seen: the policy of a selective
    checkpoint, the formula of a counter of operations. It may write to what the call made.
    """
    ahead, seen = [mode], set[int]()
    for held in ahead:
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, FunctionType) and not _is_torchs(held.__module__):
            return held.__qualname__
        if len(seen) > _MOST_HELD:
            return "one of thousands of objects"
        ahead += _held_by(held)
    return None


def _held_by(held: Any) -> Iterator[Any]:
    if isinstance(held, (Tensor, nn.Module, type)):
        return
    if isinstance(held, FunctionType):
        yield from (cell.cell_contents for cell in held.__closure__ or ())
    elif isinstance(held, MethodType):
        yield from (held.__func__, held.__self__)
    elif isinstance(held, partial):
        yield from (held.func, held.args, held.keywords)
    elif isinstance(held, Mapping):
        yield from held.values()
    elif isinstance(held, (list, tuple, set, frozenset)):
        yield from held
    elif _is_torchs(type(held).__module__):
        yield from getattr(held, "__dict__", {}).values()
    elif callable(held) and isinstance(type(held).__call__, FunctionType):
        yield type(held).__call__


def _is_torchs(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "torch"
