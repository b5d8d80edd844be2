"""Bounding direction and magnitude of a gradient as two queries on one sample.

Both bounders split the noise by `split`, the share of 1/z^2 that the direction gets: its multiplier is
z / sqrt(split), that of the magnitude z / sqrt(1 - split), and whitened the two are one Gaussian with multiplier z.
Index legend: N records, G groups of parameters, n records of a chunk, d coordinates.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.geodp.spherical import middle, to_spherical, wrapped
from discreet.stages.bounding import ROUND_DOWN, OneGroup, Query, zero_non_finite

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_SPLIT = 0.99
"""Within 5 % of the least error for every model of at least 1000 parameters (docs/methods/geodp.md)."""

DEFAULT_RADIUS = 0.5
"""Of a window of angles: a release then averages the last few steps (docs/methods/geodp.md)."""

ANGLES = "geodp.angles"
"""Where the last released angles are remembered."""


@dataclass(frozen=True)
class _TwoQueries(OneGroup):
    """A vector of norm <= clip for the direction, and a number in [0, 1] for the magnitude."""

    clip: float = 1.0
    split: float = DEFAULT_SPLIT

    def __post_init__(self) -> None:
        check.positive("the clip bounds each record's gradient norm, e.g. 1.0", clip=self.clip)
        check.inside_unit("the direction's share of the information, e.g. 0.99", split=self.split)

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale, share=self.split**-0.5),)

    def scalars(self) -> tuple[Query, ...]:
        return (Query(1.0, share=(1 - self.split) ** -0.5),)

    def numbers(self, norms_GN: Tensor, scale: float) -> Tensor:
        """min(n, C) / C, and 0 for a norm that is not finite: [1, N]."""
        shares = (norms_GN / (self.clip * scale)).clamp(max=1)
        return shares.where(norms_GN.isfinite(), norms_GN.new_zeros(()))

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        return norms_GN.new_zeros(0, *norms_GN.shape)

    def advance(self, scale: float, released: Sequence[float], batch: float) -> float:
        return scale


@final
@dataclass(frozen=True)
class Polar(_TwoQueries):
    """Sums of C g / n and of min(n, C) / C: directions, and magnitudes in units of the clip. n = 0 gives 0, 0.

    Guarantee: sensitivities C and 1, for every gradient (docs/proofs/Polar.md).
    """

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(self.clip * scale * ROUND_DOWN / norms_GN, norms_GN)

    def contribution_map(self, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
        return None


class Window(enum.StrEnum):
    """What bounds the angles of a record; both have the radius R = beta pi/2 sqrt(d + 2), hence the same price."""

    BALL = "ball"
    """Scaled down to length R where they are longer: the box lies inside, so that this cuts less."""
    BOX = "box"
    """Each clamped to beta pi/2, the last to beta pi: the ranges of the paper."""


@final
@dataclass(frozen=True)
class AngleWindow(_TwoQueries):
    """Sums of angles within a window around the last released ones, and of min(n, C) / C.

    A record gives its angles less the reference (the last one wrapped), cut to the window of radius R and divided by
    R / C; a gradient of zero gives zeros. The sum has d entries, the last one 0.
    The reference is public: the angles of the release before, at first the middle of every range.

    beta  R over pi/2 sqrt(d + 2); None: R = 1/2, whatever the model's size

    Guarantee: sensitivities C and 1, for every gradient and every reference (docs/proofs/AngleWindow.md).
    """

    beta: float | None = None
    window: Window = Window.BALL

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta is not None:
            check.fraction("beta is the window's share of all directions, e.g. 0.01", beta=self.beta)

    def radius(self, size: int) -> float:
        """The longest difference of angles that passes the window, for gradients of `size` coordinates.

        >>> round(AngleWindow(beta=0.1).radius(98), 6), round(AngleWindow().radius(98), 6)
        (1.570796, 0.5)
        """
        return DEFAULT_RADIUS if self.beta is None else self.beta * math.pi / 2 * math.sqrt(size + 2)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        """Nothing is weighed: `contribution_map` maps whole gradients."""
        return norms_GN.new_zeros(1, *norms_GN.shape)

    def contribution_map(self, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
        known = memory.get(ANGLES)

        def contributions(gradients_nd: Tensor) -> Tensor:
            return self._within(gradients_nd, known).sum(0, keepdim=True)

        return contributions

    def _within(self, gradients_nd: Tensor, known: Tensor | None) -> Tensor:
        """What each record adds, [n, d]."""
        size = gradients_nd.shape[1]
        norms_n, angles = to_spherical(gradients_nd)
        angles -= middle(size, angles) if known is None else known.to(angles.device)
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
