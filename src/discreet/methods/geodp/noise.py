"""GeoDP as published: Gaussian noise on the norm and the angles of the mean gradient. No guarantee is proven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.accounting.events import NonPrivate
from discreet.core import check
from discreet.methods.geodp.spherical import from_spherical, to_spherical
from discreet.stages.clipping import Query
from discreet.stages.noise import Mechanism
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext


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
        total, query = sums[0].value, queries[0]
        if context.mask is not None:
            from discreet.engine.active import Active

            active = total.index_select(0, Active.of(context.mask, context.layout, total.device).whole)
            total.zero_()  # keep no exact sum in memory
            total = active
        norm, angles = to_spherical(total.double() / context.batch)
        stream = context.streams.noise
        norm = stream.add_normal_(norm.reshape(1), self.norm_std(query.sensitivity, noise, context.batch))
        stream.add_normal_(angles, self.angle_std(len(total), noise, context.batch))
        return [total.copy_(from_spherical(norm[0], angles).mul_(context.batch))]
