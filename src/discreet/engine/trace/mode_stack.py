"""Torch function modes that are put on and removed in any order: a `with` block of the user's may lie between."""

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode


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
