"""Bounders that only the DP-SGD family uses: per-layer clipping and adaptive quantile clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.stages.bounding import (
    FlatClip,
    NonAdaptive,
    OneGroup,
    Query,
    WeightsOnly,
    clip_factor,
    zero_non_finite,
)

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.engine.layout import Layout


@final
@dataclass(frozen=True)
class PerLayer(NonAdaptive):
    """Each parameter clipped on its own to C / sqrt(number of parameters): the whole stays within C."""

    clip: float

    def __post_init__(self) -> None:
        check.positive("the clip bounds each record's whole gradient, e.g. 1.0", clip=self.clip)

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)

    def groups(self, layout: Layout) -> Sequence[Sequence[int]]:
        return [[index] for index in range(len(layout.names))]

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(
            clip_factor(norms_GN, self.clip * scale / math.sqrt(norms_GN.shape[0])), norms_GN
        )


@final
@dataclass(frozen=True)
class AdaptiveQuantile(WeightsOnly, OneGroup):
    """Flat clip whose bound follows a quantile of the norms, from a noisy count that is charged.

    Every record adds +1/2 if its norm is at most the bound, else -1/2 (so that the count has sensitivity 1/2);
    the released count moves the bound: C <- C * exp(-rate * (share of small norms - quantile)).
    """

    clip: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 10.0

    def __post_init__(self) -> None:
        check.positive(
            "clip is where the bound starts, rate how fast it moves", clip=self.clip, rate=self.rate
        )
        check.inside_unit("the quantile of norms that stays unclipped, e.g. 0.5", quantile=self.quantile)
        check.positive(
            "standard deviation of the noise on the count, about batch / 20", count_noise=self.count_noise
        )

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)

    def scalars(self) -> tuple[Query, ...]:
        return (Query(0.5, sigma=self.count_noise),)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return FlatClip(self.clip).weights(norms_GN, scale)

    def numbers(self, norms_GN: Tensor, scale: float) -> Tensor:
        small = norms_GN <= self.clip * scale  # false for norms that are not finite
        return small.to(norms_GN.dtype) - 0.5

    def advance(self, scale: float, released: Sequence[float], batch: float) -> float:
        # The divisor is the public batch: the true size of the sample is private.
        small = min(max(released[0] / batch + 0.5, 0.0), 1.0)
        step = math.exp(-self.rate * (small - self.quantile))
        return min(max(scale * step, 1e-6), 1e6)
