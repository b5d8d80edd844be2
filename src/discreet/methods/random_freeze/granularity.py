"""What is frozen together: single elements, rows, columns, or whole tensors.

A kind counts its units over the whole model, and makes the pieces of a mask from one truth value per unit. Every
unit is equally likely to be active, so every coordinate is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.engine.layout import Layout, Lines, Mask, Piece

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@final
@dataclass(frozen=True)
class Elements:
    """Single coordinates."""

    def units(self, shape: Shape) -> int:
        """How many units a parameter of this shape has."""
        return Layout(("",), (shape,)).size

    def piece(self, active: Tensor, shape: Shape) -> Piece:
        """The piece of a parameter whose units are active where `active` is true."""
        return active.view(shape)


@final
@dataclass(frozen=True)
class Rows:
    """Rows of matrices, filters of convolutions, elements of vectors: what makes one output."""

    def units(self, shape: Shape) -> int:
        return shape[0] if shape else 1

    def piece(self, active: Tensor, shape: Shape) -> Piece:
        return Lines(active, None) if len(shape) > 1 else active.view(shape)


@final
@dataclass(frozen=True)
class Columns:
    """Columns of matrices, input channels of convolutions, elements of vectors: what one input feeds."""

    def units(self, shape: Shape) -> int:
        return shape[1] if len(shape) > 1 else Rows().units(shape)

    def piece(self, active: Tensor, shape: Shape) -> Piece:
        return Lines(None, active) if len(shape) > 1 else active.view(shape)


@final
@dataclass(frozen=True)
class Tensors:
    """Whole parameters."""

    def units(self, shape: Shape) -> int:
        return 1

    def piece(self, active: Tensor, shape: Shape) -> Piece:
        return bool(active)


Kind = Elements | Rows | Columns | Tensors
_KINDS: tuple[Kind, ...] = (Elements(), Rows(), Columns(), Tensors())


class Granularity(enum.StrEnum):
    """The kinds by name, for recipes, command lines and files."""

    ELEMENTS = "elements"
    ROWS = "rows"
    COLUMNS = "columns"
    TENSORS = "tensors"

    @property
    def kind(self) -> Kind:
        """The kind of this name."""
        return next(kind for kind in _KINDS if Granularity.of(kind) is self)

    @staticmethod
    def of(kind: Kind) -> Granularity:
        """The name of a kind."""
        return Granularity(type(kind).__name__.lower())


def units_of(kind: Kind, layout: Layout) -> int:
    """All units of a model.

    >>> units_of(Rows(), Layout(("w", "b"), ((2, 3), (2,))))
    4
    """
    return sum(kind.units(shape) for shape in layout.shapes)


def pieces_of(kind: Kind, active: Tensor, layout: Layout) -> Iterator[Piece]:
    """One truth value per unit, in the order of the layout, as pieces of a mask."""
    parts = active.split([kind.units(shape) for shape in layout.shapes])
    return (kind.piece(part, shape) for part, shape in zip(parts, layout.shapes, strict=True))


@final
@dataclass(frozen=True, kw_only=True)
class MaskKey:
    """Everything that a random mask is: `active` units of a kind, chosen by a public stream.

    It is what a sparse release carries instead of indices.
    """

    stream: bytes
    kind: Kind
    active: int

    def mask(self, layout: Layout) -> Mask:
        """The mask, regenerated."""
        from discreet.methods.random_freeze.masks import regenerate

        return regenerate(self, layout)
