"""The arguments of a call again, with other tensors, for any number of records."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from discreet.engine.proof.forms.bound_arguments import Given, SmallCall
from discreet.engine.proof.forms.moderate_numbers import MOST_WHOLE
from discreet.engine.proof.forms.provable_call import Numbers, factor_of


@final
class RebuiltArguments:
    """Gives the arguments of a call with other tensors, for any number of records.

    numbers, records  which whole numbers follow the number of records, and what that was in the call
    are_values        whether whole numbers of the call are never sizes
    changes           whether numbers are replaced by plain ones: the call adds or multiplies them entry by entry

    A proof runs a call a hundred times for each number of records: what follows that number is put in once.
    """

    def __init__(self, call: SmallCall, numbers: Numbers, records: int, *, are_values: bool, changes: bool) -> None:
        self._call, self._numbers, self._records = call, numbers, records
        self._are_values, self._changes = are_values, changes
        self._moulds: dict[int, tuple[Any, Any]] = {}

    def __call__(self, tensors: Sequence[Any], records: int) -> tuple[Any, Any]:
        if records not in self._moulds:
            sized = _Sized(self._call.is_fixed, self._numbers, self._records, records, self._are_values, self._changes)
            self._moulds[records] = sized.of(tuple(self._call.args)), sized.of(self._call.kwargs)
        args, kwargs = self._moulds[records]
        return _filled(args, tensors), _filled(kwargs, tensors)


@final
class _Place:
    """Stands for the tensor of this number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


@final
class _Mould:
    """A list, a tuple, a slice or a dictionary (of pairs) that is made anew for each run."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: type, parts: list[Any]) -> None:
        self.kind, self.parts = kind, parts


def _mould(kind: type, parts: list[Any]) -> Any:
    """What has no tensor in it, and cannot be changed by a call, is shared by all runs."""
    is_shared = kind in (tuple, slice) and not any(type(part) in (_Place, _Mould) for part in parts)
    return _made(kind, parts) if is_shared else _Mould(kind, parts)


def _filled(tree: Any, tensors: Sequence[Any]) -> Any:
    kind = type(tree)
    if kind is _Place:
        return tensors[tree.number]
    return _made(tree.kind, [_filled(part, tensors) for part in tree.parts]) if kind is _Mould else tree


def _made(kind: type, parts: list[Any]) -> Any:
    return slice(*parts) if kind is slice else parts if kind is list else kind(parts)


@dataclass
class _Sized:
    """Puts sizes for another number of records into arguments, and places for their tensors.

    It is no function inside another, which would refer to itself and hold all tensors until garbage is collected.
    """

    is_fixed: bool
    numbers: Numbers
    before: int
    records: int
    are_values: bool
    changes: bool
    places: Iterator[int] = field(default_factory=itertools.count)
    multiples: Iterator[int] = field(default_factory=itertools.count)

    def of(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return _Place(next(self.places))
        tree = tree.item() if isinstance(tree, np.generic) else tree  # as it is read
        kind = type(tree)
        if kind is Given:
            return tree.for_records(self.records)
        if kind is bool or (self.is_fixed and isinstance(tree, (int, float))):
            return tree
        if isinstance(tree, int) and not self.changes:
            if self.are_values:
                return tree
            factor = factor_of(tree, self.before) if kind is int else None
            if factor is None or not self.numbers.follow(next(self.multiples)):
                return tree
            return factor * self.records
        if isinstance(tree, (int, float, complex)):
            return _plain_value(tree) if self.changes else tree
        if isinstance(tree, (tuple, list)):  # also torch.Size
            return _mould(list if isinstance(tree, list) else tuple, [self.of(branch) for branch in tree])
        if isinstance(tree, slice):
            return _mould(slice, [self.of(tree.start), self.of(tree.stop), self.of(tree.step)])
        if isinstance(tree, dict):
            return _mould(dict, [_mould(tuple, [name, self.of(branch)]) for name, branch in tree.items()])
        return None if isinstance(tree, torch.Generator) else tree


def _plain_value(number: Any) -> Any:
    """Numbers of element-wise calls change; zero, or one out of scale, would hide what it multiplies."""
    if isinstance(number, (float, complex)):
        return 0.75
    return number if 0 < abs(number) <= MOST_WHOLE else 1
