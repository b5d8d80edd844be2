"""The settings of a call: its arguments that are neither tensors nor values, such as axes, sizes and words.

A call that kept the records apart along one axis may mix them along another. So the probe learns the settings of
every call, and a pass on records that makes the same call with others is refused. Numbers that an element-wise call
adds or multiplies are values, and fractions are values everywhere: they cannot tell one record from another.
"""

import enum
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

SMALL, LARGE = 3, 5  # records in a probe; coprime, so that no fixed size can follow both


class Mark(enum.Enum):
    """What stands in the place of an argument that is no setting, or of one that is never twice the same."""

    VALUE = "a value"
    VARIES = "anything"
    OTHER = "a tensor or the like"

    def __repr__(self) -> str:
        return self.value


@dataclass(frozen=True)
class LinearSize:
    """A size that grows with the number of records: what it was for the probe's two numbers."""

    small: int
    large: int

    def at(self, records: int) -> int | float:
        """What it has to be for another; a fraction if nothing fits."""
        value = self.small + (self.large - self.small) * (records - SMALL) / (LARGE - SMALL)
        return int(value) if value.is_integer() else value


_OTHER: Final = Mark.OTHER  # members of an enum are slow to find
_PLAIN: Final = frozenset([int, bool, str, type(None), type(...), torch.dtype, torch.device])
_LISTS: Final = frozenset([tuple, list, torch.Size])
_OPERATIONS: Final = (
    *("add", "sub", "rsub", "subtract", "mul", "multiply", "div", "divide", "truediv", "true_divide", "pow"),
    *("mod", "fmod", "remainder", "lerp", "addcmul", "addcdiv", "full_like"),
    *("clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum", "masked_fill", "where"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
)
ELEMENTWISE: Final = frozenset(
    func
    for name in _OPERATIONS
    for form in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")
    for func in (getattr(torch, form, None), getattr(Tensor, form, None))
    if func is not None
)
"""Calls that put every entry in its own place, whatever their numbers are."""


def settings_of(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The settings of a call, nested as its arguments are.

    >>> settings_of(torch.sum, (torch.zeros(2, 3), [0, 1]), {"keepdim": True})
    (a tensor or the like, (0, 1), ('keepdim', True))
    >>> settings_of(torch.mul, (torch.zeros(2, 3), 2), {})
    ()
    """
    if func in ELEMENTWISE:
        return ()
    places = tuple(map(_collect, args))
    return places + tuple((name, _collect(kwargs[name])) for name in sorted(kwargs)) if kwargs else places


def _collect(tree: Any) -> Any:
    kind = type(tree)
    if kind is Tensor:  # nearly always
        return _OTHER
    if kind in _PLAIN:
        return tree
    if kind in _LISTS:
        return tuple(map(_collect, tree))
    if kind is float:
        return Mark.VALUE
    if isinstance(tree, Tensor):
        return _OTHER
    if kind is slice:
        return tuple(int(b) if isinstance(b, Tensor) else _collect(b) for b in (tree.start, tree.stop, tree.step))
    if isinstance(tree, dict):
        return tuple((name, _collect(branch)) for name, branch in tree.items())
    if isinstance(tree, np.ndarray):
        return _collect(tree.tolist())
    if isinstance(tree, (tuple, range)):
        return tuple(map(_collect, tree))
    if isinstance(tree, numbers.Real):
        return int(tree) if isinstance(tree, numbers.Integral) else Mark.VALUE
    return str(tree) if isinstance(tree, str) else _OTHER


def learned(small: Any, large: Any, redrawn: Sequence[Any]) -> Any:
    """What settings have to be, from passes of two sizes and passes of the large one with other draws."""
    seen = (small, large, *redrawn)
    if all(type(one) is tuple and len(one) == len(small) for one in seen):
        places = zip(small, large, *redrawn, strict=True)
        return tuple(learned(first, second, rest) for first, second, *rest in places)
    if any(other != large for other in redrawn):
        return Mark.VARIES
    if small == large:
        return small
    if _is_number(small) and _is_number(large):
        return LinearSize(small, large) if type(small) is type(large) is int else Mark.VALUE
    return Mark.VARIES


def first_mismatch(came: Any, expected: Any, records: int) -> tuple[Any, Any] | None:
    """The first setting that is not as learned, beside what it has to be; None if all are.

    >>> first_mismatch((0, True), (1, True), records=7)
    (0, 1)
    >>> first_mismatch((14, True), learned((6, True), (10, True), []), records=7)
    """
    if came == expected or expected is Mark.VARIES:
        return None
    if type(expected) is tuple and type(came) is tuple and len(came) == len(expected):
        return _first(first_mismatch(own, known, records) for own, known in zip(came, expected, strict=True))
    if type(expected) is LinearSize:
        return None if came == expected.at(records) else (came, expected.at(records))
    both_numbers = _is_number(came) and _is_number(expected)
    return None if both_numbers and Mark.VALUE in (came, expected) else (came, expected)


def _is_number(setting: Any) -> bool:
    return type(setting) is int or setting is Mark.VALUE


def _first(found: Iterable[tuple[Any, Any] | None]) -> tuple[Any, Any] | None:
    return next((one for one in found if one is not None), None)
