"""The Gaussian mechanism on a random projection of the sum. The noisy projection is mapped back to full dimension."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, final

from discreet.accounting import events
from discreet.accounting.events import Release
from discreet.core import check
from discreet.stages.clipping import Query
from discreet.stages.noise import GaussianNoise, Mechanism, add_normal_, check_sensitivity
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.engine.layout import Layout
    from discreet.methods.d2p2 import projections
    from discreet.stages.values import StepContext

_PLAIN = GaussianNoise()


# -- projected dimensions -----------------------------------------------------------------------------------


def width(size: int, reduction: float) -> int:
    """The projected dimension of a vector with `size` coordinates; at least 1."""
    return max(1, round((1 - reduction) * size))


def layer_widths(sizes: Sequence[int], reduction: float) -> tuple[int, ...]:
    """The widths of one dense projection per parameter, from the sizes of the trainable parameters in order.

    For a model: `layer_widths([p.numel() for p in model.parameters() if p.requires_grad], reduction)`.
    """
    return tuple(width(size, reduction) for size in sizes)


def block_sizes(size: int, block: int) -> tuple[int, ...]:
    """The sizes of the blocks of a vector with `size` coordinates; the last block may be smaller."""
    return tuple(min(block, size - start) for start in range(0, size, block))


def block_widths(size: int, block: int, reduction: float) -> tuple[int, ...]:
    """The widths of one dense projection per block of a gradient with `size` coordinates."""
    return layer_widths(block_sizes(size, block), reduction)


# -- kinds of projections -----------------------------------------------------------------------------------


class ProjectionKind(Protocol):
    """A kind of projection, with its privacy cost."""

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        """The privacy event of one release, before amplification by sampling."""

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        """Draw the projection of this step."""

    def check(self, layout: Layout, reduction: float) -> None:
        """Refuse a model to which the stated cost does not apply. By default the cost holds for every model."""
        return


@final
@dataclass(frozen=True)
class Orthonormal(ProjectionKind):
    """Keeps p random rows of an n x n Hadamard matrix with random signs; n >= d is the padded size. O(d log d).

    Guarantee: the projection never increases the norm of a vector, so the release costs the same as without it
    (docs/proofs/OrthonormalProjection.md).
    """

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        return _PLAIN.event(queries, noise)

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        from discreet.methods.d2p2.projections import Hadamard, padded_size

        kept = width(padded_size(layout.size), reduction)
        return Hadamard(layout.size, kept, context.streams.projection.at(context.step))


@final
@dataclass(frozen=True)
class OrthonormalLayers(ProjectionKind):
    """`Orthonormal` for each parameter separately: per layer as in the paper, but at no extra privacy cost.

    Guarantee: a block-diagonal matrix of such projections never increases the norm of a vector either.
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


class _Dense(ProjectionKind):
    """Base of dense projections: a Gaussian matrix for each part of the gradient, as in the D2P2-SGD paper. O(d p).

    Guarantee: a chi-square mixture of Gaussian mechanisms. It costs more than the same noise without projection
    (docs/proofs/ProjectedGaussian.md). The cost depends on `dims`, the width of each part's projection.
    """

    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        remedy = "compute the widths with layer_widths(sizes, reduction) or block_widths(size, block, reduction)"
        given = isinstance(self.dims, tuple) and len(self.dims) > 0
        check.require(given, "dims, a tuple of widths", f"{self.dims!r}", remedy)
        for dim in self.dims:
            check.count(remedy, dim=dim)

    @abc.abstractmethod
    def sizes(self, layout: Layout) -> tuple[int, ...]:
        """The sizes of the parts."""

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        expected = "a single vector query with a dense projection"
        remedy = "use Orthonormal(), or a bounder without further queries such as AutoS"
        check.require(len(queries) == 1 and queries[0].sigma is None, expected, f"{len(queries)} queries", remedy)
        return events.ProjectedGaussian(queries[0].share * noise, self.dims)

    def make(self, layout: Layout, reduction: float, context: StepContext) -> projections.ProjectionMap:
        from discreet.methods.d2p2.projections import DenseProjection

        return DenseProjection(self.sizes(layout), self.dims, lambda: context.streams.projection.at(context.step))

    def check(self, layout: Layout, reduction: float) -> None:
        """Refuse a model whose widths differ from `dims`."""
        fitting = layer_widths(self.sizes(layout), reduction)
        shown = ",".join(map(str, fitting)) if len(fitting) <= 40 else f"{len(fitting)} widths"
        expected = f"the widths of this model at reduction {reduction}: {shown}"
        remedy = "build the plan with the widths of this model: the cost depends on them"
        check.require(self.dims == fitting, expected, ",".join(map(str, self.dims[:40])), remedy)


@final
@dataclass(frozen=True)
class DenseLayers(_Dense):
    """A dense Gaussian matrix for each parameter; `layer_widths` computes `dims`."""

    dims: tuple[int, ...]

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        return layout.sizes


@final
@dataclass(frozen=True)
class DenseBlocks(_Dense):
    """A dense Gaussian matrix for each block of `block` coordinates; `block_widths` computes `dims`."""

    block: int
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        check.count("choose the number of coordinates in a block, e.g. 1024", block=self.block)
        super().__post_init__()

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        return block_sizes(layout.size, self.block)


# -- scale of the lift --------------------------------------------------------------------------------------


class Lift(Protocol):
    """The scale of the lift. It is applied after the noise, so it does not affect privacy."""

    def factor(self, width: int) -> float:
        """The factor on the unbiased lift, for a part of this width."""


@final
@dataclass(frozen=True)
class UnbiasedLift:
    """The unbiased lift: E[lifted] = gradient."""

    def factor(self, width: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class PaperLift:
    """The lift of D2P2-SGD's Algorithm 1, without a second factor 1 / sqrt(p): E[lifted] = sqrt(p) * gradient."""

    def factor(self, width: int) -> float:
        return math.sqrt(width)


# -- the mechanism ------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class ProjectedNoise(Mechanism):
    """Projects each sum to fewer dimensions, adds N(0, (noise * share * sensitivity)^2), and lifts the result back.

    reduction   fraction of dimensions that is removed; 0 means no projection: exactly `GaussianNoise`
    projection  `Orthonormal` or `OrthonormalLayers` cost the same as no projection; `DenseLayers` and `DenseBlocks`
                cost more. A new projection is drawn at every step and never stored
    lift        scale of the lift; it multiplies noise and signal alike

    Scalar queries (counts) get Gaussian noise without projection.
    """

    reduction: float
    projection: ProjectionKind = field(default_factory=Orthonormal)
    lift: Lift = field(default_factory=UnbiasedLift)

    def __post_init__(self) -> None:
        check.not_negative("choose the fraction of dimensions to remove, e.g. 0.3", reduction=self.reduction)
        check.require(
            self.reduction < 1, "reduction < 1", f"reduction={self.reduction!r}", "remove fewer dimensions, e.g. 0.3"
        )

    @property
    def in_parts(self) -> bool:
        return self.reduction == 0  # a projection mixes coordinates

    def event(self, queries: Sequence[Query], noise: float) -> Release:
        return (self.projection if self.reduction > 0 else _PLAIN).event(queries, noise)

    def check(self, layout: Layout) -> None:
        """Refuse a model whose widths differ from those of the plan."""
        if self.reduction > 0:
            self.projection.check(layout, self.reduction)

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """Return the noisy sums in the layout of the gradient. The exact sums are overwritten."""
        if self.reduction == 0:
            return _PLAIN.release(sums, queries, noise, context)
        self.check(context.layout)
        projection = self.projection.make(context.layout, self.reduction, context)
        noisy = []
        for total, query in zip(sums, queries, strict=True):
            if total.value.shape != (context.layout.size,):
                noisy += _PLAIN.release([total], [query], noise, context)
                continue
            check_sensitivity(total, query)
            if context.mask is not None:
                # Frozen coordinates are not clipped, so they must not enter the projection.
                context.mask.apply_(context.layout.views(total.value))
            image = add_normal_(projection.project(total.value), query.std(noise), context)
            for part, dim in zip(image.split(projection.widths), projection.widths, strict=True):
                part.mul_(self.lift.factor(dim))
            noisy.append(total.value.copy_(projection.lift(image, total.value.dtype)))
        return noisy
