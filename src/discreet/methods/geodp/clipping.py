"""Bounders for direction and magnitude of a gradient, as two queries on one batch.

`split` is the fraction of 1/z^2 that the direction gets, where z is the noise multiplier. The direction has noise
multiplier z / sqrt(split), the magnitude z / sqrt(1 - split). Together they cost one Gaussian release with noise
multiplier z.

Shape suffixes: N records, G groups of parameters, n records of a chunk, d coordinates.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.geodp.spherical import middle, to_spherical, wrapped
from discreet.stages.clipping import ROUND_DOWN, Bounder, Query, zero_non_finite

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
