"""Bounders for error feedback: the clipped sum leaves, and what the clip took away stays as a hidden sum.

Guarantee, besides that of every bounder: a record moves the hidden sum by at most `kept`, however large it is; one
that is not finite moves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.stages.bounding import (
    ROUND_DOWN,
    FlatClip,
    NonAdaptive,
    OneGroup,
    Query,
    clip_factor,
    zero_non_finite,
)

if TYPE_CHECKING:
    from torch import Tensor

LOUDEST = 1e6
"""Without a pre-clip a record's gradient counts up to this many clips: the error stays finite, whatever a record is."""


@final
@dataclass(frozen=True)
class FeedbackClip(NonAdaptive, OneGroup):
    """clip(g, C) is released; clip(g, G) - clip(g, C) is kept, where G is the pre-clip.

    preclip  G; None: nothing is promised about gradients, and a record counts up to LOUDEST clips

    >>> import torch
    >>> norms = torch.tensor([[0.5, 2.0, 5.0]])
    >>> FeedbackClip(1.0, preclip=3.0).hidden(norms, 1.0).mul(norms).round(decimals=3)
    tensor([[[0., 1., 2.]]])
    """

    clip: float
    preclip: float | None = None

    def __post_init__(self) -> None:
        check.positive("the clip bounds each record's gradient norm, e.g. 1.0", clip=self.clip)
        if self.preclip is not None:
            check.positive("the pre-clip bounds every gradient before anything else", preclip=self.preclip)
            check.require(
                self.preclip > self.clip,
                f"preclip > clip={self.clip}",
                f"preclip={self.preclip!r}",
                "a clip that cuts nothing off leaves no error to feed back: use dp-sgd",
            )

    @property
    def kept(self) -> float:
        """How far one record moves the hidden sum."""
        return (LOUDEST * self.clip if self.preclip is None else self.preclip) - self.clip

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return FlatClip(self.clip).weights(norms_GN, scale)

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        # Of the two sums of two-level clipping the second: exactly zero where nothing is cut off.
        return TwoLevel(self.clip, self.kept).weights(norms_GN, scale)[1:]


@final
@dataclass(frozen=True)
class FeedbackNormalised(NonAdaptive, OneGroup):
    """C g / |g| is released; g - C g / |g| is kept, of gradients up to LOUDEST clips. n = 0 gives 0 to both."""

    clip: float = 1.0

    def __post_init__(self) -> None:
        check.positive("the clip is the norm that every record gets, e.g. 1.0", clip=self.clip)

    @property
    def kept(self) -> float:
        """How far one record moves the hidden sum."""
        return LOUDEST * self.clip

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(self.clip * scale * ROUND_DOWN / norms_GN, norms_GN)

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        largest = LOUDEST * self.clip * scale
        whole = zero_non_finite(largest / norms_GN.clamp(min=largest), norms_GN)
        return whole - self.weights(norms_GN, scale)


@final
@dataclass(frozen=True)
class TwoLevel(NonAdaptive, OneGroup):
    """Two sums from one sample: clip(g, C) and clip(g - clip(g, C), R), the part that clipping took away.

    `share` and its partner split the noise: 1/share^2 + 1/partner^2 = 1.
    """

    clip: float
    residual: float
    share: float = math.sqrt(2)

    @staticmethod
    def smoothed(clip: float, residual: float, kappa: float) -> TwoLevel:
        """The split with the least noise per step if the second sum passes a moving average of weight `kappa`.

        The average lets through r = kappa/(2 - kappa) of the variance, and C^2 a^2 + r R^2 b^2 is least, under
        1/a^2 + 1/b^2 = 1, at a^2 = (C + sqrt(r) R) / C: noise C + sqrt(r) R per step instead of C + R.

        >>> round(TwoLevel.smoothed(1.0, 9.0, 0.1).share ** 2, 3)
        3.065
        """
        check.positive("both bounds are norms, e.g. 1.0 and 9.0", clip=clip, residual=residual)
        check.fraction("kappa is the weight of the newest value; 1 is no averaging", kappa=kappa)
        passed = math.sqrt(kappa / (2 - kappa))
        return TwoLevel(clip, residual, math.sqrt((clip + passed * residual) / clip))

    def __post_init__(self) -> None:
        check.positive("both bounds are norms, e.g. 1.0 and 9.0", clip=self.clip, residual=self.residual)
        check.require(
            self.residual >= 1e-9 * self.clip,
            "a residual of at least 1e-9 clips",
            f"residual={self.residual!r} for clip={self.clip!r}",
            "far below the clip, what is cut off drowns in rounding",
        )
        check.require(
            1 < self.share < math.inf,
            "share > 1",
            f"share={self.share!r}",
            "the two shares satisfy 1/a^2 + 1/b^2 = 1; sqrt(2) splits evenly",
        )

    def vectors(self, scale: float) -> tuple[Query, ...]:
        partner = self.share / math.sqrt(self.share**2 - 1)
        return Query(self.clip * scale, self.share), Query(self.residual * scale, partner)

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
