"""Arguments of a call by name, whose tensors can get other sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from torch import Tensor

from discreet.engine.proof.forms.provable_call import Numbers, factor_of

SHARED: Final = 4  # entries of an axis whose size does not matter, unless it is 0 or 1

Sizes = tuple[Any, ...]  # per axis, a fixed size or (factor,) times the number of records


@final
@dataclass(frozen=True)
class SmallCall:
    """A call with smaller tensors; `sizes` are those of its tensors, in order.

    is_fixed   whether no number among the arguments is a size that can follow the number of records
    has_rows   whether all axes that can follow the number of records have the sizes of the call itself
    """

    args: Any
    kwargs: Any
    sizes: list[Sizes]
    is_fixed: bool = False
    has_rows: bool = False


@final
@dataclass(frozen=True)
class Given:
    """A whole number among the arguments of a smaller call: itself, or (factor,) times the number of records."""

    size: Any

    def for_records(self, records: int) -> int:
        return int(self.size[0] * records if type(self.size) is tuple else self.size)


def capped(size: Any) -> Any:
    """The size that stands for all sizes like this one; what has one entry is broadcast, so that 1 stays 1."""
    if type(size) is tuple:
        return (capped(size[0]),)
    return SHARED if size > 1 else size


def whole(*sizes: Any) -> None:
    """Only axes that are no record axes are made smaller."""
    if any(type(size) is not int for size in sizes):
        raise ValueError("a record axis")


def _given(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_given, value))
    return Given(value) if value != -1 else value  # -1 is no number of entries


@final
class BoundArguments:
    """Arguments by name, and sizes that can be changed.

    numbers, records  which whole numbers follow the number of records, and what that was in the call
    """

    def __init__(
        self, args: Any, kwargs: Any, tensors: list[Tensor], sizes: list[Sizes], numbers: Numbers, records: int
    ) -> None:
        self._args, self._kwargs, self._numbers, self.records = list(args), dict(kwargs), numbers, records
        self._index = {id(tensor): i for i, tensor in enumerate(tensors)}
        if len(self._index) < len(tensors):
            raise ValueError("one tensor in two places")
        self.sizes = list(sizes)

    def get(self, place: int, name: str, default: Any = None) -> Any:
        return self._args[place] if place < len(self._args) else self._kwargs.get(name, default)

    def put(self, place: int, name: str, value: Any) -> None:
        if place < len(self._args):
            self._args[place] = value
        elif name in self._kwargs:
            self._kwargs[name] = value

    def size(self, place: int, name: str) -> Sizes:
        return self.size_of(self.get(place, name))

    def size_of(self, tensor: Tensor) -> Sizes:
        return self.sizes[self._index[id(tensor)]]

    def resize(self, place: int, name: str, sizes: Sizes) -> None:
        self.resize_tensor(self.get(place, name), sizes)

    def resize_tensor(self, tensor: Tensor, sizes: Sizes) -> None:
        self.sizes[self._index[id(tensor)]] = sizes

    def given(self) -> list[Any]:
        """The whole numbers after the first argument, as sizes; lists for sequences of them."""
        multiples = itertools.count()
        return [self._sizes_of(value, multiples) for value in (*self._args[1:], *self._kwargs.values())]

    def put_given(self, values: list[Any]) -> None:
        """Whole numbers in the places of those that were given, as sizes."""
        own = [_given(value) for value in values]
        places = len(self._args) - 1
        self._args[1:], self._kwargs = own[:places], dict(zip(self._kwargs, own[places:], strict=True))

    def _sizes_of(self, value: Any, multiples: Iterator[int]) -> Any:
        if isinstance(value, (tuple, list)):  # also torch.Size
            return [self._sizes_of(one, multiples) for one in value]
        if type(value) is not int:
            raise TypeError("no size")
        factor = factor_of(value, self.records)  # as they are counted where the call is read
        return value if factor is None or not self._numbers.follow(next(multiples)) else (factor,)

    def done(self, *, is_fixed: bool = True, has_rows: bool = False) -> SmallCall:
        return SmallCall(tuple(self._args), self._kwargs, self.sizes, is_fixed=is_fixed, has_rows=has_rows)
