"""Validators with one style of message: what was expected, what came, what to do.

>>> positive("the clip bounds each record's norm", clip=-1)
Traceback (most recent call last):
...
discreet.core.check.Refused: Expected clip > 0, got clip=-1. Remedy: the clip bounds each record's norm.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn


class Refused(ValueError):
    """Bad input, refused before anything is released or spent."""


class Damaged(Refused):
    """A file of a run that was changed after it was written."""


def refuse(expected: str, got: object, remedy: str) -> NoReturn:
    raise Refused(f"Expected {expected}, got {got}. Remedy: {remedy.rstrip('.')}.")


def damaged(expected: str, got: object, remedy: str) -> NoReturn:
    raise Damaged(f"Expected {expected}, got {got}. Remedy: {remedy.rstrip('.')}.")


def require(condition: bool, expected: str, got: object, remedy: str) -> None:
    if not condition:
        refuse(expected, got, remedy)


def _each(remedy: str, named: Mapping[str, Any], range_: str, holds: Callable[[float], bool]) -> None:
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            refuse(f"{name} to be a number", f"{name}={value!r}", remedy)
        require(holds(value), f"{name} {range_}", f"{name}={value!r}", remedy)


def positive(remedy: str, /, **named: Any) -> None:
    """Refuse anything but finite numbers above zero."""
    _each(remedy, named, "> 0", lambda value: 0 < value < math.inf)


def not_negative(remedy: str, /, **named: Any) -> None:
    """Refuse anything but finite numbers of at least zero."""
    _each(remedy, named, ">= 0", lambda value: 0 <= value < math.inf)


def fraction(remedy: str, /, **named: Any) -> None:
    """Refuse anything outside (0, 1]."""
    _each(remedy, named, "in (0, 1]", lambda value: 0 < value <= 1)


def inside_unit(remedy: str, /, **named: Any) -> None:
    """Refuse anything outside the open interval (0, 1)."""
    _each(remedy, named, "in (0, 1)", lambda value: 0 < value < 1)


def count(remedy: str, /, *, least: int = 1, **named: Any) -> None:
    """Refuse anything but whole numbers of at least `least`."""
    for name, value in named.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
        require(whole, f"{name} to be a whole number >= {least}", f"{name}={value!r}", remedy)


def numbers(remedy: str, /, *, least: int = 1, **named: Iterable[Any]) -> tuple[float, ...]:
    """The numbers of a list, tuple or array as a tuple, which cannot change any more."""
    ((name, values),) = named.items()
    given = tuple(values) if isinstance(values, Iterable) else ()
    real = all(isinstance(one, Real) and not isinstance(one, bool) for one in given)
    expected = f"{name} to be {least} or more numbers"
    require(real and len(given) >= least, expected, f"{name}={values!r}", remedy)
    return tuple(one if isinstance(one, int) else float(one) for one in given)
