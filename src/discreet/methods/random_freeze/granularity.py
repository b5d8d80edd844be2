"""What is frozen together: single elements, rows, columns, or whole tensors.

A granularity divides every parameter into units, and makes a mask from one boolean per unit. All units are equally
likely to be active, and therefore all coordinates are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.engine.layout import Layout, Lines, Piece

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


class Granularity(enum.StrEnum):
    """The unit that a mask freezes or leaves active as a whole."""

    ELEMENTS = "elements"
    """Single coordinates."""
    ROWS = "rows"
    """Rows of a matrix, filters of a convolution, elements of a vector: the weights of one output."""
    COLUMNS = "columns"
    """Columns of a matrix, input channels of a convolution, elements of a vector: the weights of one input."""
    TENSORS = "tensors"
    """Whole parameters."""

    def units(self, shape: Shape) -> int:
        """The number of units in a parameter of this shape."""
        match self:
            case Granularity.ELEMENTS:
                return Layout(("",), (shape,)).size
            case Granularity.ROWS:
                return shape[0] if shape else 1
            case Granularity.COLUMNS:
                return shape[1] if len(shape) > 1 else Granularity.ROWS.units(shape)
            case Granularity.TENSORS:
                return 1

    def piece(self, active: Tensor, shape: Shape) -> Piece:
        """The mask of one parameter; `active` holds one boolean per unit."""
        if self is Granularity.TENSORS:
            return bool(active)
        if self is Granularity.ELEMENTS or len(shape) < 2:
            return active.view(shape)
        return Lines(active, None) if self is Granularity.ROWS else Lines(None, active)

    def total_units(self, layout: Layout) -> int:
        """The number of units in a model.

        >>> Granularity.ROWS.total_units(Layout(("w", "b"), ((2, 3), (2,))))
        4
        """
        return sum(self.units(shape) for shape in layout.shapes)

    def pieces(self, active: Tensor, layout: Layout) -> Iterator[Piece]:
        """The mask of each parameter; `active` holds one boolean per unit, in the order of the layout."""
        parts = active.split([self.units(shape) for shape in layout.shapes])
        return (self.piece(part, shape) for part, shape in zip(parts, layout.shapes, strict=True))


@final
@dataclass(frozen=True, kw_only=True)
class MaskKey:
    """What regenerates a random mask: a public stream, a granularity, and the number of active units."""

    stream: bytes
    granularity: Granularity
    active: int
