"""Settings as JSON values, for plans, run directories and digests."""

import dataclasses
import enum
import hashlib
import json
import math
import numbers
from collections.abc import Iterable, Mapping
from itertools import repeat
from types import MappingProxyType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from discreet.core import check


def plain(value: Any) -> Any:
    """Frozen settings as JSON values: a dataclass becomes its fields and its class name.

    >>> plain((1.5, math.inf))
    [1.5, 'inf']
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):  # of NumPy
        return int(value)
    raise TypeError(f"{type(value).__name__} is not a setting: {value!r}")


def check_frozen(name: str, value: Any) -> None:
    """Refuse a setting that can change after its charge: a list, an array, a tensor, a dataclass that is not frozen.

    Objects that are no dataclass, such as the stage of a test, are taken as they are.

    >>> check_frozen("factors", [1.0])
    Traceback (most recent call last):
    ...
    discreet.core.check.Refused: Expected factors to be a number, text, tuple or frozen dataclass, got [1.0]. Remedy: \
use a tuple, or @dataclass(frozen=True) for a stage of your own; it must not change during the run.
    """
    held: dict[str, Any] = {}
    if isinstance(value, tuple):
        held = {f"{name}[{place}]": item for place, item in enumerate(value)}
        is_fixed = True
    elif dataclasses.is_dataclass(value):
        held = {f"{name}.{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
        is_fixed = bool(value.__dataclass_params__.frozen)  # type: ignore[union-attr]
    else:
        is_fixed = isinstance(value, (str, frozenset)) or not isinstance(value, Iterable)
    expected = f"{name} to be a number, text, tuple or frozen dataclass"
    remedy = "use a tuple, or @dataclass(frozen=True) for a stage of your own; it must not change during the run"
    check.require(is_fixed, expected, repr(value), remedy)
    for place, item in held.items():
        check_frozen(place, item)


def from_plain(kind: Any, held: Any) -> Any:
    """The value of type `kind` that `plain` wrote: a dataclass, tuple, mapping, enumeration, number or string.

    >>> from_plain(tuple[tuple[str, float], ...], [["a", 1], ["b", "inf"]])
    (('a', 1.0), ('b', inf))
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{f.name: from_plain(kinds[f.name], held[f.name]) for f in dataclasses.fields(kind)})
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(map(from_plain, repeat(arguments[0]), held))
    if origin is tuple:
        return tuple(from_plain(inner, item) for inner, item in zip(arguments, held, strict=True))
    if origin is MappingProxyType:
        return MappingProxyType(dict(held))
    if origin is UnionType:  # a setting of several types stays as JSON has it
        inner = [one for one in arguments if one is not type(None)]
        return from_plain(inner[0], held) if held is not None and len(inner) == 1 else held
    return kind(held)


def digest(value: Any) -> str:
    """A sha256 of the canonical JSON form."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
