"""Clipped error feedback (DiceSGD, arXiv 2311.14632): what the clip took away is fed back, clipped itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from discreet.accounting.events import NonPrivate, Release
from discreet.core import check
from discreet.engine.layout import Layout
from discreet.stages.bounding import ROUND_DOWN, Query
from discreet.stages.gaussian import GaussianNoise
from discreet.stages.values import BoundedSum, PrivateState

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext

ERROR = "clipped-feedback.error"
_PLAIN = GaussianNoise()


class Shortening(Protocol):
    """How the error is brought to its bound."""

    def factor(self, norm: float, radius: float) -> float:
        """What multiplies a vector of this norm; factor * norm <= radius."""

    @property
    def is_projection(self) -> bool:
        """Whether it is the projection on the ball: the energy bound needs that."""


@final
@dataclass(frozen=True)
class Projecting:
    """min(1, radius / norm): Algorithm 2."""

    def factor(self, norm: float, radius: float) -> float:
        return 1.0 if norm <= radius else radius / norm

    @property
    def is_projection(self) -> bool:
        return True


@final
@dataclass(frozen=True)
class Normalising:
    """radius / norm, and 0 for 0: Algorithm 4."""

    def factor(self, norm: float, radius: float) -> float:
        return radius / norm if norm > 0 else 0.0

    @property
    def is_projection(self) -> bool:
        return False


@final
@dataclass(frozen=True)
class ErrorFeedback:
    """Releases sum clip(g) + clip(E, batch * clip) + noise; E, the error on the scale of the sum, stays hidden.

        E <- E + sum (g - clip(g)) - clip(E, batch * clip),   E = 0 before the first step and after a resume

    clip        C2, the bound on the error of the MEAN; 0 is no feedback: the Gaussian mechanism, bit for bit
    shortening  how the error is clipped

    The noise is N(0, (noise * C1)^2) on the sum, so on the mean noise * C1 / batch: `noise` is what it is for DP-SGD.

    Guarantee: the fed vector has norm at most batch * clip whatever the error is, also if it is not finite (it is
    then forgotten). A single step has no price of its own, because the error remembers records: `event` says
    non-private, and `FeedbackRun` prices the run as a whole (docs/proofs/ClippedFeedback.md).
    Of several processes each computes the same error from sums over all of them; what the first gives leaves.
    """

    clip: float
    shortening: Shortening = Projecting()

    def __post_init__(self) -> None:
        check.not_negative("the bound on the error that is fed back; 0 means none", clip=self.clip)

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        """What one release costs on its own, before sampling: without bound, unless nothing is fed back."""
        return _PLAIN.event(queries, noise) if self.clip == 0 else NonPrivate()

    def check(self, layout: Layout) -> None:
        """Any model: the price does not depend on it."""

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """The noisy sum; the error is brought up to date."""
        if self.clip > 0:
            self._check(sums, context)
            self._feed_back(sums[0].value, context)
        return _PLAIN.release(sums, queries, noise, context)

    def _check(self, sums: Sequence[BoundedSum], context: StepContext) -> None:
        check.require(
            len(sums) == 1 and context.mask is None,
            "one sum of all coordinates",
            f"{len(sums)} sums" if context.mask is None else "a mask",
            "error feedback is proven for plain clipping alone: use FeedbackClip and no selection",
        )
        check.require(
            context.raw is not None and len(context.raw.reveal_to_mechanism()) == 1,
            "a bounder that keeps what its clip takes away",
            "none",
            "use FeedbackClip or FeedbackNormalised",
        )

    def _feed_back(self, total: Tensor, context: StepContext) -> None:
        """total += clip(E), and the next E."""
        assert context.raw is not None
        (cut_off,) = context.raw.reveal_to_mechanism()
        kept = context.secrets.get(ERROR)
        error = cut_off.double().new_zeros(cut_off.shape) if kept is None else kept.reveal_to_mechanism()
        fed = self.shortened(error, context.batch)
        total.add_(fed)
        context.secrets[ERROR] = PrivateState(error.sub_(fed).add_(cut_off))
        cut_off.zero_()

    def shortened(self, error: Tensor, batch: float) -> Tensor:
        """clip(error, batch * clip); an error that is not finite is set to 0 and gives 0."""
        norm = float(error.norm())
        if not norm < float("inf"):
            error.zero_()
            norm = 0.0
        # One radius for all errors, a little smaller: a projection to the last digit, and float32 stays inside.
        return error * self.shortening.factor(norm, batch * self.clip * ROUND_DOWN)
