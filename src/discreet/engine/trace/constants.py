"""Constants compared bit by bit: -0.0 == 0.0 and True == 1, but a loss that reads them can tell them apart."""

import datetime
import decimal
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_TIMES: Final = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
_WRITTEN: Final = (str, bytes, int, bool, range, decimal.Decimal, torch.device, *_TIMES)  # repr shows all they hold


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are one object, or equal constants of one type; other objects may hold more than they show.

    >>> is_same(1, 1), is_same(1, True), is_same(0.0, -0.0), is_same([], [])
    (True, False, False, False)
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.generic) or type(one) in (float, complex):
        return np.asarray(one).tobytes() == np.asarray(other).tobytes()
    return type(one) in _WRITTEN and repr(one) == repr(other)


def is_same_tensor(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and type, and the same bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(_bits(tensor) for tensor in (one, other)))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().flatten().contiguous().view(torch.uint8)
