"""The labels of a table: which columns are predicted, and how their cells become labels of a target.

A message never says which record or which value it is about: it may end up in a log.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.core.own_files import TASKS
from discreet.data.schema import Categories, Column, Numbers, Schema, key, number, text
from discreet.data.targets import Classes, Labels, Number, Target

Columns = dict[str, npt.NDArray[Any]]


class LabelReader(Protocol):
    """Reads the labels of a table.

    columns  the names of the columns that are predicted
    names    what the outputs of a model stand for: classes, or columns
    """

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def target(self) -> Target: ...

    def read(self, table: Columns) -> Tensor:
        """A label for each record; a cell that the schema does not allow is refused."""


@final
@dataclass(frozen=True)
class ClassColumn:
    """One column of classes, in the order of its categories."""

    column: str
    classes: tuple[str, ...]

    @classmethod
    def of(cls, columns: Mapping[str, Column]) -> Self:
        name, column = _only(columns)
        return cls(name, _categories(name, column, "describe its classes, or give --task regression for a number"))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        return self.classes

    @property
    def target(self) -> Classes:
        return Classes(len(self.classes))

    def read(self, table: Columns) -> Tensor:
        return _places(table, self.column, self.classes)


@final
@dataclass(frozen=True)
class NumberColumn:
    """One column of numbers, clamped to its public bounds."""

    column: str
    numbers: Numbers

    @classmethod
    def of(cls, columns: Mapping[str, Column]) -> Self:
        name, column = _only(columns)
        if not isinstance(column, Numbers):
            refuse(f"bounds of the label {name!r}", "none", f'describe it: {{"{name}": {{"bounds": [0, 100]}}}}')
        return cls(name, column)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        return self.columns

    @property
    def target(self) -> Number:
        return Number(self.numbers)

    def read(self, table: Columns) -> Tensor:
        values = np.array([number(cell, math.nan) for cell in _cells(table, self.column)])
        remedy = "remove the records without a label first"
        require(not bool(np.isnan(values).any()), f"a number as {self.column!r} of every record", "none", remedy)
        return self.target.scaled(values)


@final
@dataclass(frozen=True)
class LabelColumns:
    """Several columns of two categories each, of which the second is yes."""

    values: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, columns: Mapping[str, Column]) -> Self:
        remedy = 'describe it as {"categories": ["no", "yes"]}, yes last'
        values = {name: _categories(name, column, remedy) for name, column in columns.items()}
        for name, pair in values.items():
            require(len(pair) == 2, f"two categories of the label {name!r}", len(pair), remedy)
        return cls(MappingProxyType(values))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def names(self) -> tuple[str, ...]:
        return self.columns

    @property
    def target(self) -> Labels:
        return Labels(self.columns)

    def read(self, table: Columns) -> Tensor:
        return torch.stack([_places(table, name, pair).float() for name, pair in self.values.items()], 1)


READERS: Final[Mapping[str, Callable[[Mapping[str, Column]], LabelReader]]] = MappingProxyType(
    dict(zip(TASKS, (ClassColumn.of, NumberColumn.of, LabelColumns.of), strict=True))
)


def label_reader(task: str, label: str, description: Mapping[str, Any]) -> LabelReader:
    """The labels that a task predicts; `label` names a column or, for several labels, columns a,b,c."""
    require(task in READERS, f"a task of {', '.join(READERS)}", repr(task), "choose one of these")
    names = [name.strip() for name in label.split(",")] if task == "multilabel" else [label]
    known = ", ".join(list(description)[:8])
    for name in names:
        close = get_close_matches(name, description, n=1)
        remedy = f"the nearest name is {close[0]}" if close else f"describe it: {{{name!r}: {{'categories': [0, 1]}}}}"
        require(name in description, f"the label {name!r} in the schema", f"a schema of {known}", remedy)
    return READERS[task](Schema.of({name: description[name] for name in names}).columns)


def _only(columns: Mapping[str, Column]) -> tuple[str, Column]:
    ((name, column),) = columns.items()
    return name, column


def _categories(name: str, column: Column, remedy: str) -> tuple[str, ...]:
    if not isinstance(column, Categories):
        refuse(f"categories of the label {name!r}", "none", remedy)
    return tuple(map(text, column.known))


def _cells(table: Columns, name: str) -> Sequence[Any]:
    require(name in table, f"the column {name!r}", ", ".join(list(table)[:8]), "check --label")
    return list(table[name].tolist())


def _places(table: Columns, name: str, known: tuple[str, ...]) -> Tensor:
    place = {key(value): number for number, value in enumerate(known)}
    found = torch.tensor([place.get(key(cell), -1) for cell in _cells(table, name)], dtype=torch.int64)
    listed, remedy = bool((found >= 0).all()), "list every class in the schema"
    require(listed, f"labels of {', '.join(known[:6])}", "another value", remedy)
    return found
