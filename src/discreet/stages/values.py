"""Values that hold tensors and carry what is known about them.

    engine --factors--> aggregation --BoundedSum--> mechanism --Released--> update

A mechanism accepts only `BoundedSum`s, an update only a `Released`; hidden state is a `PrivateState`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.kinds import MaskKey


@final
@dataclass(frozen=True)
class Layout:
    """How the trainable parameters lie in one flat vector, in the order of `named_parameters`.

    >>> Layout(("w", "b"), ((2, 3), (3,))).size
    9
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

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
        pieces = flat.split(self.sizes, dim=-1)
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
    key: MaskKey | None = None
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


_AGGREGATION = object()  # the key that only aggregation.py holds


@final
class BoundedSum:
    """A sum over records in which adding or removing one record moves at most `sensitivity` (L2).

    Built by aggregation alone. Division by a public number divides the sensitivity too; the size of a batch
    is private and is refused by type, because it is not a `Public`.
    """

    __slots__ = ("sensitivity", "value")
    sensitivity: float
    value: Tensor

    def __init__(self, value: Tensor, sensitivity: float, *, key: object) -> None:
        check.require(
            key is _AGGREGATION,
            "a BoundedSum from aggregation, which proves the bound",
            "a BoundedSum built elsewhere",
            "sum per-sample contributions through a bounder",
        )
        check.positive("the sensitivity is the bounder's proven bound", sensitivity=sensitivity)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "sensitivity", sensitivity)

    def __setattr__(self, name: str, _: object) -> None:
        check.refuse("a sum that keeps its bound", f"a new {name}", "divide it, or sum anew")

    def __truediv__(self, divisor: Public) -> BoundedSum:
        check.require(
            isinstance(divisor, Public),
            "a Public divisor",
            f"a {type(divisor).__name__}",
            "divide by the plan's batch size: the size of the drawn batch is private",
        )
        return BoundedSum(self.value / divisor.number, self.sensitivity / divisor.number, key=_AGGREGATION)

    def __repr__(self) -> str:
        return f"BoundedSum(<private>, sensitivity={self.sensitivity})"


@final
@dataclass(frozen=True)
class Public:
    """A number that is the same for neighbouring datasets: a plan's batch, a clip, a count of steps."""

    number: float

    def __post_init__(self) -> None:
        check.positive("a public divisor is a positive number of the plan", number=self.number)


@final
@dataclass(frozen=True, eq=False)
class Released:
    """What left a mechanism: safe to log, store, and feed to any optimizer.

    active  the released values: all coordinates, or those that the mask leaves active
    """

    active: Tensor
    layout: Layout
    mask: Mask | None = None

    @staticmethod
    def on(mask: Mask | None, value: Tensor, layout: Layout, batch: float) -> Released:
        """value / batch on the active coordinates: of frozen ones nothing is kept, whatever they hold.

        A value of all coordinates is cut down; one of the active coordinates alone is taken as it is.
        """
        if mask is None:
            return Released(value.div_(batch), layout)
        from discreet.stages.active import Active

        index = Active.of(mask, layout, value.device).whole
        active = value if len(value) == len(index) else value.index_select(0, index)
        return Released(active.div_(batch), layout, mask)

    @property
    def value(self) -> Tensor:
        """The whole vector, with exact zeros on frozen coordinates."""
        if self.mask is None:
            return self.active
        from discreet.stages.active import Active

        whole = self.active.new_zeros(self.layout.size)
        return whole.scatter_(0, Active.of(self.mask, self.layout, self.active.device).whole, self.active)

    def views(self) -> Iterator[Tensor]:
        """One view per parameter."""
        return iter(self.layout.views(self.value))


@final
class PrivateState:
    """State that depends on private records without a mechanism in between: never logged, never published.

    >>> print(PrivateState([1.0]))
    PrivateState(<hidden>)
    """

    __slots__ = ("_hidden",)

    def __init__(self, hidden: Any) -> None:
        self._hidden = hidden

    def reveal_to_mechanism(self) -> Any:
        """The state, for the mechanism that owns it."""
        return self._hidden

    def __repr__(self) -> str:
        return "PrivateState(<hidden>)"

    def __reduce__(self) -> str:
        check.refuse(
            "private state to stay in memory",
            "a copy or pickle of a PrivateState",
            "write it only through a private checkpoint",
        )
