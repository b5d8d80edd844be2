"""Bounders for error feedback and for two-level clipping, and the combination of two-level clipping.

Error feedback releases the clipped sum, and the clipped-off part becomes a hidden sum. Guarantee, besides that of every
bounder: a record moves the hidden sum by at most `kept`, whatever its norm. A record with a non-finite norm does not
move it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.stages.clipping import ROUND_DOWN, Bounder, ClippedSum, FlatClip, Query, clip_factor, zero_non_finite
from discreet.stages.combination import whole_gradient
from discreet.stages.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext

MAX_CLIPS = 1e6
"""Without a pre-clip, gradients are clipped to this multiple of the clipping norm, which keeps the error finite."""


@final
@dataclass(frozen=True)
class FeedbackClip(ClippedSum):
    """Releases the sum of clip(g, C) and hides the sum of clip(g, G) - clip(g, C), where G is the pre-clip.

    clip     C
    preclip  G; None: MAX_CLIPS * C, and the certificate does not use G
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
        import torch

        return torch.cat([zero_non_finite(first, norms_GN), zero_non_finite(second, norms_GN)])


HELD = "two-level.held"


@final
@dataclass(frozen=True)
class SmoothedResidual:
    """Adds `used`, a part of the accumulated residuals `held`, to the first noisy sum.

        held <- held + second;   used = clip(kappa * held, batch * limit);   held <- held - used

    Without a limit, `used` is the moving average (1 - kappa) used + kappa second. With a limit it is error feedback:
    the clipped-off part is used in later steps. Nothing is lost: the sum of all `used`, plus `held`, equals the sum of
    all released residuals.

    kappa  weight of the newest residual; 1 means no averaging
    limit  bound on `used` on the scale of the mean gradient; None: no bound
    """

    kappa: float
    limit: float | None = None

    def __post_init__(self) -> None:
        check.fraction("choose the weight of the newest value, e.g. 0.1; 1 means no averaging", kappa=self.kappa)
        if self.limit is not None:
            check.positive("choose the largest norm of the residual in one step, e.g. 1.0", limit=self.limit)

    def check(self, bounder: Bounder, selection: Selection) -> None:
        expected = "the bounder TwoLevel"
        check.require(isinstance(bounder, TwoLevel), expected, repr(bounder), "use the recipe methods.two_level(...)")
        whole_gradient(selection, "accumulated residuals may belong to frozen coordinates")

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        first, second = vectors
        before = context.memory.get(HELD)
        held = second if before is None else second + before.to(second)
        used = self.kappa * held
        if self.limit is not None:
            used *= min(1.0, context.batch * self.limit / max(float(used.norm()), 1e-300))
        context.memory[HELD] = held - used
        return first + used
