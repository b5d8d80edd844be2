"""Per-layer clipping and adaptive quantile clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.stages.clipping import ClippedSum, FlatClip, Query, clip_factor, zero_non_finite

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.engine.layout import Layout


@final
@dataclass(frozen=True)
class PerLayer(ClippedSum):
    """Clips the gradient of each of k parameter tensors to C / sqrt(k), so the whole gradient has norm at most C."""

    clip: float

    def __post_init__(self) -> None:
        check.positive("choose a clipping norm for the whole gradient, e.g. 1.0", clip=self.clip)

    def groups(self, layout: Layout) -> Sequence[Sequence[int]]:
        return [[index] for index in range(len(layout.names))]

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(clip_factor(norms_GN, self.clip * scale / math.sqrt(norms_GN.shape[0])), norms_GN)


@final
@dataclass(frozen=True)
class AdaptiveQuantile(ClippedSum):
    """Flat clipping whose clipping norm tracks a quantile of the gradient norms (Andrew et al. 2021).

    Each record adds +1/2 to a count if its norm is at most C, and -1/2 otherwise, so the count has sensitivity 1/2.
    The noisy count is charged. It updates C <- C * exp(-rate * (fraction of norms below C - quantile)).

    clip         initial clipping norm
    quantile     target fraction of unclipped records
    rate         learning rate of the clipping norm
    count_noise  standard deviation of the noise on the count
    """

    clip: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 10.0

    def __post_init__(self) -> None:
        check.positive("choose an initial clipping norm and a rate, e.g. 1.0 and 0.2", clip=self.clip, rate=self.rate)
        check.inside_unit("choose the fraction of records to leave unclipped, e.g. 0.5", quantile=self.quantile)
        check.positive("choose the standard deviation of the count, about batch / 20", count_noise=self.count_noise)

    def scalars(self) -> tuple[Query, ...]:
        return (Query(0.5, sigma=self.count_noise),)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return FlatClip(self.clip).weights(norms_GN, scale)

    def numbers(self, norms_GN: Tensor, scale: float) -> Tensor:
        small = norms_GN <= self.clip * scale  # False for non-finite norms
        return small.to(norms_GN.dtype) - 0.5

    def advance(self, scale: float, released: Sequence[float], batch: float) -> float:
        # Divide by the public batch size; the size of the drawn batch is private.
        small = min(max(released[0] / batch + 0.5, 0.0), 1.0)
        step = math.exp(-self.rate * (small - self.quantile))
        return min(max(scale * step, 1e-6), 1e6)
