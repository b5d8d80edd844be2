"""Containers with other contents, made by Python's own code alone.

A class may have code of its own that runs when an object is made, copied or filled. Such code would see the rows of
several records at once, where no watch follows it. So none is run here: `__new__`, `__init__`, `__copy__`,
`__setitem__` and properties of a class are passed over.
"""

import struct
import types
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Final

_HEAP: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that was written in Python
_POINTER: Final = struct.calcsize("P")
_SIMPLE: Final = frozenset((str, bytes, int, bool, float, complex, type(None)))


class _Plain:
    """An object that holds attributes and nothing else."""


class _Bare:
    """An object that holds nothing."""

    __slots__ = ()


def base_of(kind: type) -> Any:
    """The class of Python's own from which a class comes.

    >>> from collections import OrderedDict
    >>> base_of(OrderedDict), base_of(UserDict)
    (<class 'collections.OrderedDict'>, <class 'object'>)
    """
    return next(one for one in kind.__mro__ if not one.__flags__ & _HEAP)


def is_container(one: Any) -> bool:
    """Whether an object is one of those that hold the parts of a record by declaration."""
    kind = type(one)
    if kind in _SIMPLE:
        return False
    return isinstance(one, (tuple, list, dict, UserDict)) or (kind is not type and is_dataclass(kind))


def holds_attributes_only(one: Any) -> bool:
    """Whether its attributes are all that an object holds, and a class written in Python has declared them."""
    kind = type(one)
    if kind in _SIMPLE or not (kind.__flags__ & _HEAP and base_of(kind) is object):
        return kind is types.SimpleNamespace
    return kind.__basicsize__ in (_Plain.__basicsize__, _Bare.__basicsize__ + _POINTER * len(_slots(one)))


def entries_of(one: Any) -> Any:
    """The entries of a tuple, a list or a dictionary; none of any other object."""
    if isinstance(one, dict):
        return dict(dict.items(one))
    if isinstance(one, tuple):
        return list(tuple.__iter__(one))
    return list(list.__iter__(one)) if isinstance(one, list) else ()


def attributes_of(one: Any) -> dict[str, Any]:
    """What an object holds beside its entries, also in slots.

    >>> from collections import defaultdict
    >>> attributes_of(defaultdict(int, x=3))
    {'default_factory': <class 'int'>}
    """
    found = {name: slot.__get__(one) for name, slot in _slots(one).items() if _is_set(slot, one)}
    return found | getattr(one, "__dict__", {})


def rebuilt(like: Any, entries: Any, attributes: Mapping[str, Any]) -> Any:
    """An object of the class of `like` with other entries and attributes."""
    kind = type(like)
    if kind in (tuple, list, dict):
        return kind(entries)
    base, slots = base_of(kind), _slots(like)
    made = base.__new__(kind, list(entries)) if isinstance(like, tuple) else base.__new__(kind)
    if isinstance(like, list):
        list.extend(made, entries)
    if isinstance(like, dict):
        for key, value in entries.items():
            base.__setitem__(made, key, value)
    for name, value in attributes.items():
        if name in slots:
            slots[name].__set__(made, value)
        else:
            made.__dict__[name] = value
    return made


def with_parts(like: Any, change: Callable[[Any], Any]) -> Any:
    """A container of the same class with every entry and attribute changed."""
    held = entries_of(like)
    entries: Any = {key: change(part) for key, part in held.items()} if type(held) is dict else map(change, held)
    kind = type(like)
    if kind in (tuple, list, dict):
        return kind(entries)
    return rebuilt(like, entries, {name: change(part) for name, part in attributes_of(like).items()})


def _slots(one: Any) -> dict[str, types.MemberDescriptorType]:
    if isinstance(one, tuple):  # it has none, but torch's own named results show their entries in this way
        return {}
    found = (item for kind in reversed(type(one).__mro__) for item in vars(kind).items())
    slots = {name: slot for name, slot in found if isinstance(slot, types.MemberDescriptorType)}
    slots.pop("__dict__", None)  # of a SimpleNamespace
    return slots


def _is_set(slot: types.MemberDescriptorType, one: Any) -> bool:
    try:
        slot.__get__(one)
    except AttributeError:
        return False
    return True
