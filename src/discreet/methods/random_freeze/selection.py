"""The selections of random freeze and ranked freeze (arXiv 2112.00845, Algorithms 1 and 2)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.engine.layout import Layout, Lines, Mask, Piece
from discreet.stages.selection import Frozen, Order, Selection, density_of

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.sampling import Horizon
    from discreet.stages.values import Released, StepContext

Shape = tuple[int, ...]


class Granularity(enum.StrEnum):
    """The unit that a mask freezes or leaves active as a whole.

    A mask holds one boolean per unit. All units are equally likely to be active, and therefore all coordinates are.
    """

    ELEMENTS = "elements"  # single coordinates
    ROWS = "rows"  # rows of a matrix, filters of a convolution, elements of a vector: the weights of one output
    COLUMNS = "columns"  # columns of a matrix, input channels, elements of a vector: the weights of one input
    TENSORS = "tensors"  # whole parameters

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
        """The number of units in a model."""
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


class Refresh(enum.StrEnum):
    """How often a new mask is drawn. Every logical batch uses one mask."""

    EPOCH = "epoch"
    STEP = "step"


@dataclass(frozen=True, kw_only=True)
class _Cooling(Selection):
    """The freeze rate of epoch e: r(e) = r* min(e / (e* - 1), 1). With e* = 1 it is r* from the start.

    final_rate      r*: the fraction of coordinates that is frozen at the end
    cooling_epochs  e*: the number of epochs until the final rate
    """

    final_rate: float
    cooling_epochs: int = 1
    order: Order = Order.FREEZE_THEN_CLIP
    frozen: Frozen = Frozen.STILL

    def __post_init__(self) -> None:
        check.not_negative("choose the fraction of frozen coordinates, e.g. 0.9", final_rate=self.final_rate)
        got = f"final_rate={self.final_rate!r}"
        check.require(self.final_rate < 1, "final_rate < 1", got, "leave some coordinates active, e.g. 0.9")
        check.count("give the number of epochs until the final rate", cooling_epochs=self.cooling_epochs)

    @property
    def takes_all(self) -> bool:
        return self.final_rate == 0

    def rate(self, epoch: int) -> float:
        """The freeze rate of an epoch."""
        if self.cooling_epochs == 1:
            return self.final_rate
        return self.final_rate * min(epoch / (self.cooling_epochs - 1), 1)

    def active(self, units: int, epoch: int) -> int:
        """The number of active units in an epoch: round((1 - r) * units), at least 1."""
        return max(1, round((1 - self.rate(epoch)) * units))


@final
@dataclass(frozen=True, kw_only=True)
class RandomFreeze(_Cooling):
    """Freezes a random subset of the coordinates, which grows over the epochs (Algorithm 1 of arXiv 2112.00845).

    The mask of an epoch (or step) is generated from the public stream `mask` and is never stored or sent. With
    granularity ELEMENTS exactly round((1 - r) d) of the d coordinates are active. With any other granularity a
    fraction 1 - r of the units is active, so (1 - r) d coordinates on average.

    Guarantee: masks are independent of the data.
    """

    granularity: Granularity = Granularity.ELEMENTS
    refresh: Refresh = Refresh.EPOCH

    def mask(self, context: StepContext) -> Mask | None:
        units = self.granularity.total_units(context.layout)
        active = self.active(units, context.epoch)
        if active == units:
            return None
        from discreet.methods.random_freeze.masks import cached_mask

        index = context.epoch if self.refresh is Refresh.EPOCH else context.step
        stream = context.streams.mask.at(index).public_key
        key = MaskKey(stream=stream, granularity=self.granularity, active=active)
        return cached_mask(key, context.layout, context.device)

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        """See `Selection.density`."""
        return density_of(horizon, self.rate, baseline_epochs)


@final
@dataclass(frozen=True, kw_only=True)
class RankedFreeze(_Cooling):
    """Freezes the coordinates with the smallest released gradients in the previous epoch (Algorithm 2).

    Active coordinates are ranked by their released (noisy) gradients. Frozen coordinates are ranked by fresh noise
    with the variance that their releases would have had. The first epoch freezes nothing.

    Guarantee: masks depend on earlier releases and a public stream only, so they cost no privacy.
    """

    def mask(self, context: StepContext) -> Mask | None:
        active = self.active(context.layout.size, context.epoch)
        if context.epoch == 0 or active == context.layout.size:
            return None
        from discreet.methods.random_freeze.masks import rank

        return rank(context, active)

    def observe(self, released: Released, std: float, context: StepContext) -> None:
        from discreet.methods.random_freeze.masks import remember

        remember(released, std, context)

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        return density_of(horizon, lambda epoch: self.rate(epoch) if epoch else 0.0, baseline_epochs)
