"""The user's word that a value does not come from the records."""

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.core.check import refuse, require
from discreet.engine.proof.blame import user_line
from discreet.engine.proof.declared import DECLARED, DeclaredFloat, DeclaredInt
from discreet.engine.record_watch import RecordWatch


def public(value: Any) -> Any:
    """Declare that a number, a choice, a tensor or a module, or a list of them, does not come from the records.

        loss = loss * discreet.public(temperature)
        if discreet.public(step > 100): ...
        teacher = discreet.public(copy.deepcopy(model))     # and update it from the model's parameters after each step

    It is your word: the certificate rests on it, and ledger and statement name the line. Schedules, constants, random
    numbers and released parameters are public; whatever was computed from a batch is not. A tensor, or a module with
    its parameters and buffers, stays public in later steps, whatever is written into it between them. Arithmetic on a
    declared number gives a declared number: `(1 - a) * first + a * second`.
    """
    line = user_line()
    modes = map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))
    watches = [mode for mode in modes if isinstance(mode, RecordWatch)]
    require(
        not any(watch.backwards.is_running for watch in watches),
        "values that are declared public before the losses are made",
        f"discreet.public inside a backward pass at {line}",
        "declare the value in the training loop, and hand it to the function's forward pass",
    )
    if isinstance(value, np.generic):
        value = value.item()  # numbers of NumPy are numbers, too
    if isinstance(value, (Tensor, nn.Module)):
        DECLARED.add(value, line)
    for lines in [watch.declarations for watch in watches] or [DECLARED.outside_of_steps]:
        lines[_without_folder(line)] = None
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        number = DeclaredFloat(value) if isinstance(value, float) else DeclaredInt(value)
        number.declaration = DECLARED.note_number(line)
        return number
    if type(value) in (tuple, list):
        return type(value)([public(one) for one in value])
    if not isinstance(value, (Tensor, nn.Module)):
        _check_choice(value)
    for watch in watches:
        watch.declare(value)
    return value


def _check_choice(value: Any) -> None:
    """Refuse a choice that cannot be compared with those of other batches."""
    try:
        hash(value)
    except TypeError:
        remedy = "declare the values inside it one by one, as a list of them, or an array as torch.as_tensor(array)"
        refuse("a number, a choice, a tensor or a module to declare public", f"a {type(value).__name__}", remedy)


def _without_folder(line: str) -> str:
    """The name of the file, the number and the text of a line.

    >>> _without_folder("/home/me/train.py:12 `loss / discreet.public(t)`")
    'train.py:12 `loss / discreet.public(t)`'
    """
    place, quoted, text = line.partition(" `")
    return os.path.basename(place) + quoted + text
