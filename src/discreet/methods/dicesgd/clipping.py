"""Bounders for error feedback: the clipped sum is released, and the clipped-off part becomes a hidden sum.

Guarantee, besides that of every bounder: a record moves the hidden sum by at most `kept`, whatever its norm. A record
with a non-finite norm does not move it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.stages.clipping import ROUND_DOWN, Bounder, ClippedSum, FlatClip, Query, clip_factor, zero_non_finite

if TYPE_CHECKING:
    from torch import Tensor

MAX_CLIPS = 1e6
"""Without a pre-clip, gradients are clipped to this multiple of the clipping norm, which keeps the error finite."""


@final
@dataclass(frozen=True)
class FeedbackClip(ClippedSum):
    """Releases the sum of clip(g, C) and hides the sum of clip(g, G) - clip(g, C), where G is the pre-clip.

    clip     C
    preclip  G; None: MAX_CLIPS * C, and the certificate does not use G

    >>> import torch
    >>> norms = torch.tensor([[0.5, 2.0, 5.0]])
    >>> FeedbackClip(1.0, preclip=3.0).hidden(norms, 1.0).mul(norms).round(decimals=3)
    tensor([[[0., 1., 2.]]])
    """

    clip: float
    preclip: float | None = None

    def __post_init__(self) -> None:
        check.positive("choose a clipping norm, e.g. 1.0", clip=self.clip)
        if self.preclip is not None:
            check.positive("choose a pre-clip, e.g. 3 * clip", preclip=self.preclip)
            remedy = "increase preclip; without an error to feed back, use dp-sgd"
            check.require(self.preclip > self.clip, f"preclip > clip={self.clip}", f"preclip={self.preclip!r}", remedy)

    @property
    def kept(self) -> float:
        """The bound on how far one record moves the hidden sum."""
        return (MAX_CLIPS * self.clip if self.preclip is None else self.preclip) - self.clip

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return FlatClip(self.clip).weights(norms_GN, scale)

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        # The second sum of two-level clipping: exactly zero for gradients that are not clipped.
        return TwoLevel(self.clip, self.kept).weights(norms_GN, scale)[1:]


@final
@dataclass(frozen=True)
class FeedbackNormalised(ClippedSum):
    """Releases the sum of C g / |g| and hides the sum of g - C g / |g|. A gradient of zero contributes 0 to both.

    Gradients are clipped to MAX_CLIPS * C first.
    """

    clip: float = 1.0

    def __post_init__(self) -> None:
        check.positive("choose the norm of the normalised gradients, e.g. 1.0", clip=self.clip)

    @property
    def kept(self) -> float:
        """The bound on how far one record moves the hidden sum."""
        return MAX_CLIPS * self.clip

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(self.clip * scale * ROUND_DOWN / norms_GN, norms_GN)

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        largest = MAX_CLIPS * self.clip * scale
        whole = zero_non_finite(largest / norms_GN.clamp(min=largest), norms_GN)
        return whole - self.weights(norms_GN, scale)


@final
@dataclass(frozen=True)
class TwoLevel(Bounder):
    """Two sums over one batch: clip(g, C), and clip(g - clip(g, C), R), the clipped-off residual.

    clip      C
    residual  R
    share     factor on the noise multiplier of the first sum; that of the second, b, satisfies 1/share^2 + 1/b^2 = 1
    """

    clip: float
    residual: float
    share: float = math.sqrt(2)

    @staticmethod
    def smoothed(clip: float, residual: float, kappa: float) -> TwoLevel:
        """The split with the least noise per step if the second sum enters a moving average with weight `kappa`.

        The average keeps r = kappa/(2 - kappa) of the variance. Under 1/a^2 + 1/b^2 = 1, the total C^2 a^2 + r R^2 b^2
        is smallest at a^2 = (C + sqrt(r) R) / C. The noise per step is then C + sqrt(r) R instead of C + R.

        >>> round(TwoLevel.smoothed(1.0, 9.0, 0.1).share ** 2, 3)
        3.065
        """
        check.positive("choose both clipping norms, e.g. 1.0 and 9.0", clip=clip, residual=residual)
        check.fraction("choose the weight of the newest value, e.g. 0.1; 1 means no averaging", kappa=kappa)
        passed = math.sqrt(kappa / (2 - kappa))
        return TwoLevel(clip, residual, math.sqrt((clip + passed * residual) / clip))

    def __post_init__(self) -> None:
        check.positive("choose both clipping norms, e.g. 1.0 and 9.0", clip=self.clip, residual=self.residual)
        got = f"residual={self.residual!r} for clip={self.clip!r}"
        remedy = "increase residual: below this it is lost in rounding errors"
        check.require(self.residual >= 1e-9 * self.clip, "residual >= 1e-9 * clip", got, remedy)
        remedy = "use sqrt(2) for an even split; the shares satisfy 1/a^2 + 1/b^2 = 1"
        check.require(1 < self.share < math.inf, "share > 1", f"share={self.share!r}", remedy)

    def vectors(self, scale: float) -> tuple[Query, ...]:
        other = self.share / math.sqrt(self.share**2 - 1)
        return Query(self.clip * scale, self.share), Query(self.residual * scale, other)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        clip, residual = self.clip * scale, self.residual * scale
        first = clip_factor(norms_GN, clip)
        # 0 for gradients that the first clip leaves unchanged
        second = (1 - first) * clip_factor(norms_GN - clip * ROUND_DOWN, residual)
        return _stack(zero_non_finite(first, norms_GN), zero_non_finite(second, norms_GN))


def _stack(first: Tensor, second: Tensor) -> Tensor:
    joined = first.new_empty(2, *first.shape[1:])
    joined[0], joined[1] = first[0], second[0]
    return joined
