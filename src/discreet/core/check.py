"""Validators with one message style: what was expected, what came, what to do instead.

>>> positive("the clip bounds each record's norm", clip=-1)
Traceback (most recent call last):
...
discreet.core.check.Refused: Expected clip > 0, got clip=-1. Remedy: the clip bounds each record's norm.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NoReturn


class Refused(ValueError):
    """Bad input, refused before anything is released or spent."""


class Damaged(Refused):
    """A file of a run that is not as it was written."""


def refuse(expected: str, got: object, remedy: str) -> NoReturn:
    """Raise `Refused` with the library's one message style."""
    raise Refused(f"Expected {expected}, got {got}. Remedy: {remedy.rstrip('.')}.")


def damaged(expected: str, got: object, remedy: str) -> NoReturn:
    """Raise `Damaged` in the same style."""
    raise Damaged(f"Expected {expected}, got {got}. Remedy: {remedy.rstrip('.')}.")


def require(condition: bool, expected: str, got: object, remedy: str) -> None:
    """Refuse unless `condition` holds."""
    if not condition:
        refuse(expected, got, remedy)


def _number(name: str, value: Any, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(f"{name} to be a number", f"{name}={value!r}", remedy)
    if math.isnan(value):
        refuse(f"{name} to be a number", f"{name}=nan", remedy)
    return value


def positive(remedy: str, /, **named: Any) -> None:
    """Refuse anything but finite numbers above zero."""
    for name, value in named.items():
        number = _number(name, value, remedy)
        require(0 < number < math.inf, f"{name} > 0", f"{name}={value!r}", remedy)


def not_negative(remedy: str, /, **named: Any) -> None:
    """Refuse anything but finite numbers of at least zero."""
    for name, value in named.items():
        number = _number(name, value, remedy)
        require(0 <= number < math.inf, f"{name} >= 0", f"{name}={value!r}", remedy)


def fraction(remedy: str, /, **named: Any) -> None:
    """Refuse anything outside (0, 1]."""
    for name, value in named.items():
        number = _number(name, value, remedy)
        require(0 < number <= 1, f"{name} in (0, 1]", f"{name}={value!r}", remedy)


def inside_unit(remedy: str, /, **named: Any) -> None:
    """Refuse anything outside the open interval (0, 1)."""
    for name, value in named.items():
        number = _number(name, value, remedy)
        require(0 < number < 1, f"{name} in (0, 1)", f"{name}={value!r}", remedy)


def count(remedy: str, /, *, least: int = 1, **named: Any) -> None:
    """Refuse anything but whole numbers of at least `least`."""
    for name, value in named.items():
        try:
            whole = not isinstance(value, bool) and operator.index(value) >= least
        except TypeError:
            whole = False
        require(whole, f"{name} to be a whole number >= {least}", f"{name}={value!r}", remedy)
