"""The stages of GeoDP: direction and magnitude of a gradient as two queries on one batch, and the noise as published.

`split` is the fraction of 1/z^2 that the direction gets, where z is the noise multiplier. The direction has noise
multiplier z / sqrt(split), the magnitude z / sqrt(1 - split). Together they cost one Gaussian release with noise
multiplier z. Combining noisy directions and magnitudes into one gradient is post-processing and costs no privacy.

Shape suffixes: N records, G groups of parameters, n records of a chunk, d coordinates.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.accounting.events import NonPrivate
from discreet.core import check
from discreet.methods.geodp.spherical import canonical_, from_spherical, middle, to_spherical, wrapped
from discreet.stages.clipping import ROUND_DOWN, Bounder, Query, zero_non_finite
from discreet.stages.combination import Combination, whole_gradient
from discreet.stages.noise import Mechanism, active_part, add_normal_
from discreet.stages.selection import Selection
from discreet.stages.values import BoundedSum, StepContext

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_SPLIT = 0.99
"""Its error is within 5 % of the best for every model with at least 1000 parameters (docs/methods/geodp.md)."""

DEFAULT_RADIUS = 0.5
"""Radius of the window of angles. With it a release averages the last few steps (docs/methods/geodp.md)."""

ANGLES = "geodp.angles"
"""Key of the last released angles in `context.memory`."""


@dataclass(frozen=True)
class _TwoQueries(Bounder):
    """Each record contributes a vector of norm <= clip (direction) and a number in [0, 1] (magnitude)."""

    clip: float = 1.0
    split: float = DEFAULT_SPLIT

    def __post_init__(self) -> None:
        check.positive("choose a clipping norm, e.g. 1.0", clip=self.clip)
        check.inside_unit("choose the fraction of 1/z^2 for the direction, e.g. 0.99", split=self.split)

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale, share=self.split**-0.5),)

    def scalars(self) -> tuple[Query, ...]:
        return (Query(1.0, share=(1 - self.split) ** -0.5),)

    def numbers(self, norms_GN: Tensor, scale: float) -> Tensor:
        """Return min(n, C) / C as [1, N], and 0 for non-finite norms n."""
        shares = (norms_GN / (self.clip * scale)).clamp(max=1)
        return shares.where(norms_GN.isfinite(), norms_GN.new_zeros(()))


@final
@dataclass(frozen=True)
class Polar(_TwoQueries):
    """Sums the directions C g / n and the magnitudes min(n, C) / C. A gradient of zero contributes 0 to both.

    Guarantee: sensitivities C and 1 for every gradient (docs/proofs/Polar.md).
    """

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(self.clip * scale * ROUND_DOWN / norms_GN, norms_GN)


class Window(enum.StrEnum):
    """The set that bounds the angles of a record. Both have radius R = beta pi/2 sqrt(d + 2), so they cost the same."""

    BALL = "ball"  # clip the vector of angles to norm R; the ball contains the box, so it cuts off less
    BOX = "box"  # clamp each angle to beta pi/2 and the last one to beta pi, as in the paper


@final
@dataclass(frozen=True)
class AngleWindow(_TwoQueries):
    """Sums angles, each within a window around the last released angles, and magnitudes min(n, C) / C.

    A record contributes its angles minus the reference (with the last angle wrapped), clipped to the window of radius R
    and multiplied by C / R. A gradient of zero contributes zeros. The sum has d entries, of which the last is 0.
    The reference is public: the angles of the previous release, or the middle of every range at the first step.

    beta    sets R = beta pi/2 sqrt(d + 2); None: R = 1/2 for models of any size
    window  shape of the window

    Guarantee: sensitivities C and 1 for every gradient and every reference (docs/proofs/AngleWindow.md).
    """

    beta: float | None = None
    window: Window = Window.BALL

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta is not None:
            check.fraction("choose the fraction of all directions in the window, e.g. 0.01", beta=self.beta)

    def radius(self, size: int) -> float:
        """The radius R of the window, for gradients with `size` coordinates."""
        return DEFAULT_RADIUS if self.beta is None else self.beta * math.pi / 2 * math.sqrt(size + 2)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        """Unused zeros: `contribution_map` maps whole gradients instead."""
        return norms_GN.new_zeros(1, *norms_GN.shape)

    def contribution_map(self, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
        reference = memory.get(ANGLES)

        def contributions(gradients_nd: Tensor) -> Tensor:
            return self._within(gradients_nd, reference).sum(0, keepdim=True)

        return contributions

    def _within(self, gradients_nd: Tensor, reference: Tensor | None) -> Tensor:
        """The contribution of each record, [n, d]."""
        size = gradients_nd.shape[1]
        norms_n, angles = to_spherical(gradients_nd)
        angles -= middle(size, angles) if reference is None else reference.to(angles.device)
        angles[:, -1] = wrapped(angles[:, -1])
        angles.nan_to_num_(0.0)
        radius = self.radius(size)
        if self.window is Window.BOX:
            half = radius / math.sqrt(size + 2)
            angles[:, :-1].clamp_(-half, half)
            angles[:, -1].clamp_(-2 * half, 2 * half)
        else:
            angles *= (radius / angles.norm(dim=1, keepdim=True).clamp(min=radius)).clamp(max=1)
        present = (norms_n > 0) & norms_n.isfinite()
        out = angles.new_zeros(len(angles), size)
        out[:, :-1] = angles.mul_(self.clip * ROUND_DOWN / radius)
        return out.masked_fill_(~present.unsqueeze(1), 0)


def mean_share(number: float, batch: float) -> float:
    """The mean magnitude: a noisy sum divided by the public batch size, clamped to [0, 1]."""
    return min(max(number / batch, 0.0), 1.0)


@final
@dataclass(frozen=True)
class FromPolar(Combination):
    """Mean magnitude times sum of directions, for the bounder `Polar`.

    This equals the sum of clipped gradients if magnitudes and directions are uncorrelated.
    """

    def check(self, bounder: Bounder, selection: Selection) -> None:
        check.require(
            isinstance(bounder, Polar), "the bounder Polar", repr(bounder), "use the recipe methods.polar(...)"
        )

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        return vectors[0].mul_(mean_share(numbers[0], context.batch))


class Tails(enum.StrEnum):
    """The assumed norm of coordinates k..d of a direction, used to turn mean angle k into coordinate k."""

    EVEN = "even"  # sqrt((d - k + 1) / d): the norm for a direction with equal weight on all coordinates
    PRODUCT = "product"  # the product of the preceding sines (Equation 27 of the paper), exact for a single record


@final
@dataclass(frozen=True)
class FromAngles(Combination):
    """Turns mean angles and mean magnitude into a gradient, for the bounder `window`.

    It stores the released angles as the reference of the next step.
    """

    window: AngleWindow
    tails: Tails = Tails.EVEN

    def check(self, bounder: Bounder, selection: Selection) -> None:
        expected = f"the bounder {self.window!r}"
        check.require(bounder == self.window, expected, repr(bounder), "use the recipe methods.geodp_sound(...)")
        whole_gradient(selection, "angles need all coordinates; methods.polar(...) supports masks")

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        noisy, size = vectors[0], context.layout.size
        reference = context.memory.get(ANGLES)
        angles = middle(size, noisy) if reference is None else reference.clone()
        angles += noisy[:-1].double() * (self.window.radius(size) / (self.window.clip * context.batch))
        context.memory[ANGLES] = canonical_(angles)
        length = self.window.clip * mean_share(numbers[0], context.batch) * context.batch
        return noisy.copy_(self.direction(angles).mul_(length))

    def direction(self, angles: Tensor) -> Tensor:
        """The mean direction, [d]. With even tails its norm is below 1 if the records disagree."""
        if self.tails is Tails.PRODUCT:
            return from_spherical(angles.new_ones(()), angles)
        size = len(angles) + 1
        direction = angles.new_ones(size).flip(0).cumsum(0).flip(0).div_(size).sqrt_()
        direction[:-1] *= angles.cos()
        direction[-1] = math.sqrt(2 / size) * angles[-1].sin()
        return direction


@final
@dataclass(frozen=True)
class GeometricNoise(Mechanism):
    """Adds N(0, 1) times (C / B) sigma to the norm, and times sqrt(d + 2) (beta pi / B) sigma to each angle.

    This is GeoDP, Algorithm 1, step 6.

    No guarantee: the paper assumes that the angle of a mean of B gradients has sensitivity (range of the angle) / B.
    This is false, because one record can turn a mean that is near zero to any direction. Every release is charged as
    non-private (docs/methods/geodp.md describes the attack).
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        check.fraction("choose the bounding factor of the paper, e.g. 0.1", beta=self.beta)

    def norm_std(self, clip: float, noise: float, batch: float) -> float:
        """The standard deviation of the noise on the norm of the mean."""
        return clip * noise / batch

    def angle_std(self, size: int, noise: float, batch: float) -> float:
        """The standard deviation of the noise on each angle of the mean."""
        return math.sqrt(size + 2) * self.beta * math.pi * noise / batch

    def event(self, queries: Sequence[Query], noise: float) -> NonPrivate:
        return NonPrivate()

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """Return the noisy sum. Under a mask, only the active coordinates are converted to angles and returned."""
        expected, remedy = "one sum of clipped gradients", "use a bounder with a single query, such as FlatClip"
        check.require(len(sums) == 1 and isinstance(sums[0], BoundedSum), expected, f"{len(sums)} sums", remedy)
        total, query = active_part(sums[0].value, context), queries[0]
        norm, angles = to_spherical(total.double() / context.batch)
        norm = add_normal_(norm.reshape(1), self.norm_std(query.sensitivity, noise, context.batch), context)
        add_normal_(angles, self.angle_std(len(total), noise, context.batch), context)
        return [total.copy_(from_spherical(norm[0], angles).mul_(context.batch))]
