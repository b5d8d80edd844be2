"""The Gaussian mechanism on a random projection of the sum, lifted back after the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, final

from discreet.accounting import events
from discreet.accounting.events import Release
from discreet.core import check
from discreet.stages.bounding import Query
from discreet.stages.gaussian import GaussianNoise
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.engine.layout import Layout
    from discreet.methods.d2p2 import projections
    from discreet.stages.context import StepContext

_PLAIN = GaussianNoise()


# -- how many dimensions stay -------------------------------------------------------------------------------


def width(size: int, reduction: float) -> int:
    """How many of `size` dimensions stay; at least one.

    >>> width(10, 0.3), width(1, 0.9)
    (7, 1)
    """
    return max(1, round((1 - reduction) * size))


def layer_widths(sizes: Sequence[int], reduction: float) -> tuple[int, ...]:
    """The widths of dense projections per layer, from the sizes of the trainable parameters in their order.

    With a model: `layer_widths([p.numel() for p in model.parameters() if p.requires_grad], reduction)`.
    """
    return tuple(width(size, reduction) for size in sizes)


def block_sizes(size: int, block: int) -> tuple[int, ...]:
    """A vector of `size` cut into blocks; the last one may be shorter.

    >>> block_sizes(10, 4)
    (4, 4, 2)
    """
    return tuple(min(block, size - start) for start in range(0, size, block))


def block_widths(size: int, block: int, reduction: float) -> tuple[int, ...]:
    """The widths of dense projections per block of a gradient with `size` coordinates."""
    return layer_widths(block_sizes(size, block), reduction)


# -- how to project -----------------------------------------------------------------------------------------


class ProjectionKind(Protocol):
    """A family of projections."""

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        """What one release costs, before sampling."""

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        """The projection of this step, from its stream."""

    def check(self, layout: Layout, reduction: float) -> None:
        """Refuse a model that the price is not for."""


@final
@dataclass(frozen=True)
class Orthonormal:
    """p of the n rows of a Hadamard matrix with random signs, n >= d the padded size: O(d log d).

    Guarantee: the projection never lengthens a vector, so that the release costs what it would without it
    (docs/proofs/OrthonormalProjection.md).
    """

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        return _PLAIN.event(queries, noise)

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        from discreet.methods.d2p2.projections import Hadamard, padded_size

        kept = width(padded_size(layout.size), reduction)
        return Hadamard(layout.size, kept, context.streams.projection.at(context.step))

    def check(self, layout: Layout, reduction: float) -> None:
        """Any model: the price does not depend on it."""


@final
@dataclass(frozen=True)
class OrthonormalLayers:
    """`Orthonormal` for each parameter by itself: the paper's projection per layer, without its price.

    Guarantee: orthonormal blocks side by side are an orthonormal projection: it never lengthens a vector.
    """

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        return _PLAIN.event(queries, noise)

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        from discreet.methods.d2p2.projections import Blocks, Hadamard, padded_size

        stream = context.streams.projection.at(context.step)
        return Blocks(
            Hadamard(size, width(padded_size(size), reduction), stream.at(part))
            for part, size in enumerate(layout.sizes)
        )

    def check(self, layout: Layout, reduction: float) -> None:
        """Any model: the price does not depend on it."""


@final
@dataclass(frozen=True)
class DenseLayers:
    """A dense Gaussian matrix for each parameter, as D2P2-SGD was published: O(d p).

    Guarantee: a chi-square mixture, dearer than the same noise without projection (docs/proofs/ProjectedGaussian.md).

    dims  the width of each parameter's projection, which the price depends on (`layer_widths`)
    """

    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_dims(self.dims)

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        return _mixture(queries, noise, self.dims)

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        return _dense(layout.sizes, self.dims, context)

    def check(self, layout: Layout, reduction: float) -> None:
        """The widths that were priced are those of this model."""
        _check_fit(layout.sizes, self.dims, reduction)


@final
@dataclass(frozen=True)
class DenseBlocks:
    """The same for each block of `block` coordinates of the flat gradient, whatever parameter they belong to.

    dims  the width of each block's projection (`block_widths`)
    """

    block: int
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        check.count("the number of coordinates that one matrix mixes, e.g. 1024", block=self.block)
        _check_dims(self.dims)

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        return _mixture(queries, noise, self.dims)

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        return _dense(block_sizes(layout.size, self.block), self.dims, context)

    def check(self, layout: Layout, reduction: float) -> None:
        """The widths that were priced are those of this model."""
        _check_fit(block_sizes(layout.size, self.block), self.dims, reduction)


def _check_dims(dims: tuple[int, ...]) -> None:
    remedy = (
        "give the width of every part: layer_widths(sizes, reduction) or block_widths(size, block, reduction)"
    )
    check.require(isinstance(dims, tuple) and len(dims) > 0, "dims, a tuple of widths", f"{dims!r}", remedy)
    for dim in dims:
        check.count(remedy, dim=dim)


def _mixture(queries: Sequence[Query], noise: float, dims: tuple[int, ...]) -> Release:
    check.require(
        len(queries) == 1 and queries[0].sigma is None,
        "one sum under a dense projection",
        f"{len(queries)} queries",
        "no price is proven for several: use Orthonormal(), or a bounder that asks for the gradient alone",
    )
    return events.ProjectedGaussian(queries[0].share * noise, dims)


def _dense(sizes: tuple[int, ...], dims: tuple[int, ...], context: StepContext) -> projections.ProjectionMap:
    from discreet.methods.d2p2.projections import DenseProjection

    return DenseProjection(sizes, dims, lambda: context.streams.projection.at(context.step))


def _check_fit(sizes: tuple[int, ...], dims: tuple[int, ...], reduction: float) -> None:
    fitting = layer_widths(sizes, reduction)
    shown = ",".join(map(str, fitting)) if len(fitting) <= 40 else f"{len(fitting)} widths"
    check.require(
        dims == fitting,
        f"the widths of this model at reduction {reduction}: {shown}",
        ",".join(map(str, dims[:40])),
        "the price depends on them: plan again with the model's widths",
    )


# -- how to lift --------------------------------------------------------------------------------------------


class Lift(Protocol):
    """The scale of lifting back, after the noise: any is free."""

    def factor(self, width: int) -> float:
        """What multiplies the lift that is right on average, for a part of this width."""


@final
@dataclass(frozen=True)
class UnbiasedLift:
    """E[lifted] = gradient."""

    def factor(self, width: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class PaperLift:
    """E[lifted] = sqrt(p) * gradient: Algorithm 1 of D2P2-SGD lifts by A, without a second 1 / sqrt(p)."""

    def factor(self, width: int) -> float:
        return math.sqrt(width)


# -- the mechanism ------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class ProjectedNoise:
    """Projects each sum to fewer dimensions, adds N(0, (noise * share * sensitivity)^2) there, and lifts it back.

    reduction   the share of dimensions that is removed; 0 is the identity, exactly: `GaussianNoise`
    projection  `Orthonormal` or `OrthonormalLayers` (plain price), `DenseLayers` or `DenseBlocks` (dearer); fresh at
                every step, from the projection stream, and never stored
    lift        the scale of the way back; it multiplies the noise as well as the signal

    Single numbers (counts) get plain noise.
    """

    reduction: float
    projection: ProjectionKind = field(default_factory=Orthonormal)
    lift: Lift = field(default_factory=UnbiasedLift)

    def __post_init__(self) -> None:
        check.not_negative("the share of dimensions to remove, e.g. 0.3", reduction=self.reduction)
        check.require(
            self.reduction < 1, "reduction < 1", f"reduction={self.reduction!r}", "something must be left"
        )

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        """What one release costs, before sampling."""
        return (self.projection if self.reduction > 0 else _PLAIN).event(queries, noise)

    def check(self, layout: Layout) -> None:
        """Refuse a model with other widths than those that were priced."""
        if self.reduction > 0:
            self.projection.check(layout, self.reduction)

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """The noisy sums, in the layout of the gradient; the inputs' storage is overwritten."""
        if self.reduction == 0:
            return _PLAIN.release(sums, queries, noise, context)
        self.check(context.layout)
        projection = self.projection.make(context.layout, self.reduction, context)
        noisy = []
        for total, query in zip(sums, queries, strict=True):
            if total.value.shape != (context.layout.size,):
                noisy += _PLAIN.release([total], [query], noise, context)
                continue
            check.require(
                isinstance(total, BoundedSum) and total.sensitivity <= query.sensitivity,
                "sums with the sensitivity that the noise is for",
                f"{total!r} for {query!r}",
                "aggregate with the bounder of the plan",
            )
            if context.mask is not None:
                # Frozen coordinates have no bound: the projection must not mix them in.
                context.mask.apply_(context.layout.views(total.value))
            image = context.streams.noise.add_normal_(projection.project(total.value), query.std(noise))
            for part, dim in zip(image.split(projection.widths), projection.widths, strict=True):
                part.mul_(self.lift.factor(dim))
            noisy.append(total.value.copy_(projection.lift(image, total.value.dtype)))
        return noisy
