"""The form of a call: all that its proof depends on, and the call itself for any number of records.

A form holds the function, and for each argument its type, its sizes and its lineage; a size that is a multiple of
the number of records is taken to follow it, if the call can be proven that way. What was proven for a form holds for
every call of that form.
"""

from __future__ import annotations

import abc
import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from discreet.engine.proof.declared import DECLARED, DeclaredFloat, DeclaredInt
from discreet.engine.proof.forms.bound_arguments import SmallCall
from discreet.engine.proof.forms.moderate_numbers import with_moderate_numbers
from discreet.engine.proof.forms.provable_call import ALL_FOLLOW, Leaf, Numbers, ProvableCall, factor_of
from discreet.engine.proof.forms.rebuilt_arguments import RebuiltArguments
from discreet.engine.proof.forms.small_sizes import MOVES, smaller
from discreet.engine.proof.lineage import MIXED, PUBLIC, SOLE, Origin
from discreet.engine.trace.capture import RecordAxis
from discreet.engine.trace.settings import ELEMENTWISE

TENSORS: Final = (Tensor, nn.Parameter, nn.Buffer)
_MOST_CHOICES: Final = 8
PLAIN: Final = frozenset([type(None), str, torch.dtype, torch.device, type(...), torch.layout, torch.memory_format])


_SHOWN: Final = frozenset([range, complex, type, type(torch.FloatTensor)])
_NO_PYTHON: Final = (np.longdouble, np.clongdouble)  # Python has no such number: their `item` may be themselves
_NUMPY_NUMBERS: Final = frozenset(
    kind for kind in np.sctypeDict.values() if issubclass(kind, (np.number, np.bool_)) and kind not in _NO_PYTHON
)


class Opaque(enum.Enum):
    """An argument that can hold anything."""

    ARRAY = "a NumPy array"
    CALLABLE = "a function"
    OTHER = "an object"


class Reading:
    """One call, read once: its description, its tensors and their origins."""

    __slots__ = (
        "declared",
        "generators",
        "multiples",
        "numbers",
        "opaque",
        "origins",
        "records",
        "rows",
        "tensors",
        "values",
    )

    def __init__(self, records: int, numbers: Numbers = ALL_FOLLOW, *, values: bool = False) -> None:
        self.records, self.numbers, self.values = records, numbers, values
        self.rows: tuple[int | None, ...] = ()  # for each tensor, which axis of a public one has a row for each record
        self.multiples: Sequence[int] = ()  # whole numbers that are multiples of the number of records
        self.tensors: list[Tensor] = []
        self.origins: list[Origin] = []
        self.opaque: Opaque | None = None
        self.declared: tuple[Any, ...] = ()
        self.generators: tuple[torch.Generator, ...] = ()

    def read_call(self, args: Any, kwargs: Any, find: Callable[[Tensor], Origin]) -> Any:
        """The arguments of a call, with origins in the places of tensors; most take no recursion."""
        tensors, origins = self.tensors, self.origins
        parts: list[Any] = []
        for arg in args:
            kind = type(arg)
            if kind is Tensor or kind is nn.Parameter:
                origin = find(arg)
                tensors.append(arg)
                origins.append(origin)
                parts.append(origin)
            elif kind is float and arg == arg and arg:
                parts.append(("float", arg))
            else:
                parts.append(self.read(arg, find))
        return tuple(parts), self.read(kwargs, find) if kwargs else ()

    def describe(self, tree: Any, find: Callable[[Tensor], Origin]) -> Any:
        """The argument without its values: equal for calls of one form."""
        return self.described(self.read(tree, find))

    def described(self, read: Any) -> Any:
        """What was read, with the form of each tensor in the place of its origin."""
        for tensor, origin in zip(self.tensors, self.origins, strict=True):
            if origin.form is None:
                origin.form = self._form(tensor, origin)
        return _with_forms(read)

    def read(self, tree: Any, find: Callable[[Tensor], Origin]) -> Any:
        """The argument with origins in the places of tensors: equal for calls of one form on tensors made alike."""
        kind = type(tree)
        if kind in TENSORS or isinstance(tree, Tensor):
            origin = find(tree)
            self.tensors.append(tree)
            self.origins.append(origin)
            return origin
        if kind is int:
            if self.values or tree < self.records:
                return tree
            factor = factor_of(tree, self.records)
            if factor is None:
                return tree
            self.multiples = *self.multiples, tree
            return ("records", factor) if self.numbers.follow(len(self.multiples) - 1) else tree
        if kind in PLAIN:
            return tree
        if kind is bool:
            return "true" if tree else "false"
        if kind is float:
            return ("float", tree if tree else str(tree)) if tree == tree else ("float", "nan")  # -0.0 is not 0.0
        if kind is tuple or kind is torch.Size:
            return tuple([self.read(branch, find) for branch in tree])
        if kind is list:
            return ("list", *[self.read(branch, find) for branch in tree])
        if kind is slice:
            return ("slice", *[self.read(bound, find) for bound in (tree.start, tree.stop, tree.step)])
        if kind is dict:
            return tuple([(name, self.read(branch, find)) for name, branch in tree.items()])
        return self._other(tree, find)

    @property
    def is_plain(self) -> bool:
        """Whether the call takes tensors, numbers, words and the like alone, all of which were read."""
        return self.opaque is None and not self.declared and not self.generators

    def mixed_and_private(self) -> tuple[Origin | None, bool]:
        """A mixed origin among the tensors, and whether any of them holds records that are kept apart."""
        mixed, is_private = None, False
        for origin in self.origins:
            if origin.lineage is MIXED:
                mixed = origin
            elif origin.lineage is not PUBLIC:
                is_private = True
        return mixed, is_private

    def _other(self, tree: Any, find: Callable[[Tensor], Origin]) -> Any:
        """The rest: exact types alone, as a class of the user's shows what it likes."""
        kind: Any = type(tree)
        is_as_shown = _is_as_it_shows(kind)
        if kind is DeclaredFloat or kind is DeclaredInt:
            self.declared = *self.declared, tree
            return DECLARED.description_of(tree.declaration)
        if isinstance(tree, tuple) and is_as_shown:
            return self.read(tuple(tuple.__iter__(tree)), find)
        if isinstance(tree, list) and is_as_shown:  # as an index, a list is not the same as a tuple
            return self.read(list(list.__iter__(tree)), find)
        if kind in _NUMPY_NUMBERS:
            return self.read(tree.item(), find)
        if isinstance(tree, torch.Generator):
            self.generators = *self.generators, tree
            return "generator", str(tree.device)  # torch's own; others are refused
        if kind in _SHOWN:
            return repr(tree)
        if isinstance(tree, enum.Enum) and is_as_shown:
            return "enum", self.read(_value_of(tree), find)
        if isinstance(tree, np.ndarray):
            self.opaque = Opaque.ARRAY
        else:
            self.opaque = Opaque.CALLABLE if callable(tree) else Opaque.OTHER
        return self.opaque

    def _form(self, tensor: Tensor, origin: Origin) -> Any:
        place = origin.lineage
        if type(place) is RecordAxis:
            return tensor.dtype, place.axis, place.minor, sizes_of(tensor, place, self.records)
        if place is SOLE:
            return tensor.dtype, None, None, tuple(tensor.shape)
        if place is not PUBLIC:
            return tensor.dtype, tensor.dim()
        return tensor.dtype, self._public_sizes(tensor, origin), counts(origin), origin.rows

    def _public_sizes(self, tensor: Tensor, origin: Origin) -> tuple[Any, ...]:
        """All sizes that may follow the number of records."""
        if origin.rows is None:
            return tuple(tensor.shape)
        axes = [place.axis for place in origin.rows.axes] or range(tensor.dim())
        factors = [factor_of(size, self.records) if axis in axes else None for axis, size in enumerate(tensor.shape)]
        return tuple(size if factor is None else (factor,) for size, factor in zip(tensor.shape, factors, strict=True))

    def choices_of_rows(self) -> Iterator[tuple[int | None, ...]]:
        """Which axis of each public tensor may have a row for each record."""
        found = [
            () if one.rows is None else dict.fromkeys(place.axis for place in one.rows.axes) for one in self.origins
        ]
        return itertools.islice(itertools.product(*([*axes, None] for axes in found)), _MOST_CHOICES)

    def sizes(self) -> list[tuple[Any, ...]]:
        """Of every tensor; (factor,) times the number of records for axes that follow it."""
        found: list[tuple[Any, ...]] = []
        for i, (tensor, origin) in enumerate(zip(self.tensors, self.origins, strict=True)):
            place = origin.lineage
            row = self.rows[i] if self.rows else None
            axis = place if isinstance(place, RecordAxis) else None if row is None else RecordAxis(row)
            found.append(tuple(tensor.shape) if axis is None else sizes_of(tensor, axis, self.records))
        return found

    def leaf(self, tensor: Tensor, origin: Origin, sizes: tuple[Any, ...], *, exact: bool) -> Leaf:
        """What the proof needs to know of one tensor."""
        place = origin.lineage
        assert place is PUBLIC or isinstance(place, RecordAxis)
        whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        return Leaf(
            like=torch.empty(0, dtype=tensor.dtype, device=tensor.device),
            place=place,
            sizes=sizes,
            needs_grad=tensor.is_floating_point() or tensor.is_complex(),
            values=tensor.detach().clone() if exact and whole and place is PUBLIC else None,
            counts=place is PUBLIC and counts(origin) and not exact,
        )


def _with_forms(read: Any) -> Any:
    if type(read) is Origin:
        return read.form
    return tuple(map(_with_forms, read)) if type(read) is tuple else read


def counts(origin: Origin) -> bool:
    """Whether a tensor holds 0, 1, 2, ..., one number for each entry, along its one axis that is longer than 1."""
    while origin.func is Tensor.__getitem__ and _adds_axes(origin.settings):
        origin = origin.parents[0]
    if origin.func is not torch.arange or not origin.settings:
        return False
    bounds, names = origin.settings[0], {name for name, _ in origin.settings[1]}
    if names - {"dtype", "device"}:
        return False
    return len(bounds) == 1 or (len(bounds) == 2 and bounds[0] == 0 and type(bounds[0]) is int)


_READ_BY: Final = frozenset(
    [
        *("__iter__", "__getitem__", "__len__", "__contains__", "__reversed__", "__bool__", "__eq__"),
        *("__index__", "__int__", "__float__", "__complex__", "__getattribute__", "__getattr__", "__torch_function__"),
    ]
)
"""Methods by which torch, or a function of it that is written in Python, reads a sequence or a number."""
_WRITTEN_IN_PYTHON: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_KINDS_OF_CLASSES: Final = (type, enum.EnumMeta, abc.ABCMeta)
_ENUMERATIONS: Final = frozenset(one for one in vars(enum).values() if isinstance(one, type))


def _is_as_it_shows(kind: Any) -> bool:
    """Whether a class of the user's changes nothing in how its instances are read; it may at any time."""
    if type(kind) not in _KINDS_OF_CLASSES:
        return False  # a metaclass of the user's shows other methods than there are
    own = [base for base in kind.__mro__ if base.__flags__ & _WRITTEN_IN_PYTHON and base not in _ENUMERATIONS]
    return not any(_READ_BY & vars(base).keys() for base in own)


def _value_of(member: enum.Enum) -> Any:
    """What torch reads of a member of an enumeration: the number or the string that it is, else its value."""
    for kind in (int, float, complex, str):
        if isinstance(member, kind):
            return kind.__str__(member) if kind is str else ("a number", repr(kind.__add__(member, kind(0))))
    value = member._value_
    return ("a value", repr(value)) if type(value) in (int, float, bool, str) else object()


def _adds_axes(settings: Any) -> bool:
    """Whether an index is made of None and whole slices, such as [:, None, None]: it keeps all entries."""
    _, index = settings[0]
    parts = index if isinstance(index, tuple) and index[:1] != ("slice",) else (index,)
    return all(part is None or part == ("slice", None, None, None) for part in parts)


def sizes_of(tensor: Tensor, axis: RecordAxis, records: int) -> tuple[Any, ...]:
    sizes: list[Any] = list(tensor.shape)
    sizes[axis.axis] = (sizes[axis.axis] // records,)
    return tuple(sizes)


def provable(func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading, *, exact: bool) -> ProvableCall:
    """The call as something that can be run on other values, for other numbers of records."""
    return _provable(func, reading, SmallCall(args, kwargs, reading.sizes()), exact=exact)


def provable_small(func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading) -> ProvableCall | None:
    """The same on smaller tensors; None if the sizes of the function matter."""
    sizes, numbers = reading.sizes(), reading.numbers
    small = smaller(func, args, kwargs, reading.tensors, sizes, numbers, reading.records)
    return None if small is None else _provable(func, reading, small, exact=False)


def _provable(func: Callable[..., Any], reading: Reading, small: SmallCall, *, exact: bool) -> ProvableCall:
    leaves = tuple(
        reading.leaf(tensor, origin, sizes, exact=exact)
        for tensor, origin, sizes in zip(reading.tensors, reading.origins, small.sizes, strict=True)
    )
    are_values, changes = reading.values, func in ELEMENTWISE
    rebuild = RebuiltArguments(small, reading.numbers, reading.records, are_values=are_values, changes=changes)
    moderate, again = with_moderate_numbers((tuple(small.args), small.kwargs), whole=are_values), None
    if moderate is not None and not changes:  # else its numbers are moderate as they are
        other = replace(small, args=moderate[0], kwargs=moderate[1])
        again = RebuiltArguments(other, reading.numbers, reading.records, are_values=are_values, changes=False)
    special = tuple({number for number in _numbers((small.args, small.kwargs)) if number < 0})[:3]
    moves = func in MOVES and len(leaves) == 1
    fixed, rows = small.is_fixed, small.has_rows
    return ProvableCall(func, leaves, rebuild, special, moves, fixed, rows, again)


def _numbers(tree: Any) -> list[int]:
    if type(tree) is int:
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [number for branch in tree for number in _numbers(branch)]
    if isinstance(tree, dict):
        return _numbers(list(tree.values()))
    return []


def without_values(description: Any) -> Any:
    """The description of an element-wise call without its numbers."""
    if isinstance(description, tuple):
        if description[:1] == ("float",) or (description[:1] == ("records",) and len(description) == 2):
            return "a number"
        return tuple(
            part if isinstance(part, tuple) and part and isinstance(part[0], torch.dtype) else without_values(part)
            for part in description
        )
    return "a number" if type(description) is int else description
