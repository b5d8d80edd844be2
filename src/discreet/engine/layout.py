"""The flat layout of the trainable parameters, and masks of active coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Layout:
    """How the trainable parameters lie in one flat vector, in the order of `named_parameters`.

    tables  which parameters are tables of rows, by their modules (engine/tables.py)

    >>> Layout(("w", "b"), ((2, 3), (3,))).size
    9
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    tables: tuple[int, ...] = ()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """The number of coordinates."""
        return sum(self.sizes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameters' shapes as views of `flat`, whose last axis is the coordinates."""
        lead = flat.shape[:-1]
        pieces = flat.split_with_sizes(self.sizes, dim=-1)
        return [piece.view((*lead, *shape)) for piece, shape in zip(pieces, self.shapes, strict=True)]


@final
@dataclass(frozen=True, eq=False)
class Lines:
    """Active rows and columns of one parameter (None: all of them)."""

    rows: Tensor | None
    columns: Tensor | None


Piece = Any  # whole tensor on or off, lines, or a boolean tensor of the parameter's shape


@final
@dataclass(frozen=True, eq=False)
class Mask:
    """The active coordinates of a step, parameter by parameter.

    True or False   the whole tensor
    Lines           rows and columns
    a bool tensor   single elements

    key    what regenerates a random mask; None for any other
    found  what was derived from the pieces, kept so that it is derived once
    """

    pieces: tuple[Piece, ...]
    key: object | None = None
    found: dict[str, object] = field(default_factory=dict, repr=False)

    @staticmethod
    def everything(layout: Layout) -> Mask:
        return Mask(tuple(True for _ in layout.names))

    def of(self, index: int, like: Tensor) -> Tensor | None:
        """The piece as a boolean tensor of the parameter's shape; None where all is active."""
        piece = self.pieces[index]
        if piece is True:
            return None
        if piece is False:
            return like.new_zeros(like.shape).bool()
        if isinstance(piece, Lines):
            active = like.new_ones(like.shape).bool()
            if piece.rows is not None:
                active &= piece.rows.view(-1, *(1,) * (like.dim() - 1))
            if piece.columns is not None:
                active &= piece.columns.view(1, -1, *(1,) * (like.dim() - 2))
            return active
        return piece  # type: ignore[no-any-return]

    def check(self, layout: Layout) -> None:
        """Refuse a mask that is not for these parameters: a wrong shape would broadcast, unnoticed."""
        check.require(
            len(self.pieces) == len(layout.names),
            f"a mask of {len(layout.names)} parameters",
            f"{len(self.pieces)} pieces",
            "make the mask from the engine's layout",
        )
        for piece, name, shape in zip(self.pieces, layout.names, layout.shapes, strict=True):
            if isinstance(piece, bool):
                continue
            lines = isinstance(piece, Lines)
            parts = ((piece.rows, shape[:1]), (piece.columns, shape[1:2])) if lines else ((piece, shape),)
            for tensor, size in parts:
                fits = tensor is None or (tuple(tensor.shape) == size and str(tensor.dtype) == "torch.bool")
                check.require(
                    fits and (tensor is None or not lines or len(size) == 1),
                    f"a boolean mask of shape {list(size)} for {name}",
                    None if tensor is None else f"{tensor.dtype} {list(tensor.shape)}",
                    "give lines of a matrix, or one truth value per element",
                )

    def apply_(self, views: Sequence[Tensor]) -> None:
        """Set the frozen coordinates of the parameters' views to exact zero."""
        for index, view in enumerate(views):
            active = self.of(index, view)
            if active is not None:
                view.masked_fill_(~active, 0)
