"""Bounders for error feedback: the clipped sum leaves, and what the clip took away stays as a hidden sum.

Guarantee, besides that of every bounder: a record moves the hidden sum by at most `kept`, however large it is; one
that is not finite moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.stages.bounding import AutoV, FlatClip, OneGroup, Query, Still, TwoLevel, finite

if TYPE_CHECKING:
    from torch import Tensor

LOUDEST = 1e6
"""Without a pre-clip a record's gradient counts up to this many clips: the error stays finite, whatever a record is."""


@final
@dataclass(frozen=True)
class FeedbackClip(Still, OneGroup):
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
class FeedbackNormalised(Still, OneGroup):
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
        return AutoV(self.clip).weights(norms_GN, scale)

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        largest = LOUDEST * self.clip * scale
        whole = finite(largest / norms_GN.clamp(min=largest), norms_GN)
        return whole - self.weights(norms_GN, scale)
