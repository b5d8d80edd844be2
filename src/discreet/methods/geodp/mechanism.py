"""GeoDP as published: Gaussian noise on the norm and on the angles of the average. Nothing is proven for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.accounting.events import NonPrivate
from discreet.core import check
from discreet.engine.layout import Layout
from discreet.methods.geodp.spherical import from_spherical, to_spherical
from discreet.stages.bounding import Query
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext


@final
@dataclass(frozen=True)
class GeometricNoise:
    """Norm + (C / B) sigma n, each angle + sqrt(d + 2) (beta pi / B) sigma n (GeoDP, Algorithm 1, step 6).

    No guarantee: the angle of an average has no sensitivity of range / B, because one record turns an average that is
    near zero. Every release is charged as non-private (docs/methods/geodp.md has the attack).
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        check.fraction("beta is the bounding factor of the paper, e.g. 0.1", beta=self.beta)

    def norm_std(self, clip: float, noise: float, batch: float) -> float:
        """The noise on the norm of the average."""
        return clip * noise / batch

    def angle_std(self, size: int, noise: float, batch: float) -> float:
        """The noise on each angle of the average.

        >>> round(GeometricNoise(beta=1.0).angle_std(3, 1.0, 100.0), 6)
        0.070248
        """
        return math.sqrt(size + 2) * self.beta * math.pi * noise / batch

    def event(self, queries: Sequence[Query], noise: float) -> NonPrivate:
        """What one release costs: no bound is known."""
        return NonPrivate()

    def check(self, layout: Layout) -> None:
        """Any model: there is no price."""

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """The noisy sum; of a masked one its active coordinates, whose angles are taken by themselves."""
        check.require(
            len(sums) == 1 and isinstance(sums[0], BoundedSum),
            "one sum, the clipped gradients'",
            f"{len(sums)} sums",
            "the published mechanism knows no other query: use a bounder with one, such as FlatClip",
        )
        total, query = sums[0].value, queries[0]
        if context.mask is not None:
            from discreet.stages.active import Active

            kept = total.index_select(0, Active.of(context.mask, context.layout, total.device).whole)
            total.zero_()  # no exact sum stays behind
            total = kept
        norm, angles = to_spherical(total.double() / context.batch)
        draw = context.streams.noise
        norm = draw.add_normal_(norm.reshape(1), self.norm_std(query.sensitivity, noise, context.batch))
        draw.add_normal_(angles, self.angle_std(len(total), noise, context.batch))
        return [total.copy_(from_spherical(norm[0], angles).mul_(context.batch))]
