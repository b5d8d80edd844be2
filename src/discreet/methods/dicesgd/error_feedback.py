"""Clipped error feedback (DiceSGD, arXiv 2311.14632): the clipped-off part is fed back, clipped itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

from discreet.accounting.events import NonPrivate, Release
from discreet.core import check
from discreet.stages.clipping import ROUND_DOWN, Query
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.values import BoundedSum, PrivateState

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext

ERROR = "clipped-feedback.error"
_PLAIN = GaussianNoise()


class Shortening(Protocol):
    """How the error is clipped."""

    is_projection: ClassVar[bool]  # onto the ball, which the energy bound requires

    def factor(self, norm: float, radius: float) -> float:
        """The factor for a vector of this norm; factor * norm <= radius."""


@final
@dataclass(frozen=True)
class Projecting:
    """Projection onto the ball, min(1, radius / norm), as in Algorithm 2."""

    is_projection: ClassVar[bool] = True

    def factor(self, norm: float, radius: float) -> float:
        return 1.0 if norm <= radius else radius / norm


@final
@dataclass(frozen=True)
class Normalising:
    """Normalisation, radius / norm (0 for a norm of 0), as in Algorithm 4."""

    is_projection: ClassVar[bool] = False

    def factor(self, norm: float, radius: float) -> float:
        return radius / norm if norm > 0 else 0.0


@final
@dataclass(frozen=True)
class ErrorFeedback(Mechanism):
    """Releases sum clip(g) + clip(E, batch * clip) + noise. The error E, on the scale of the sum, stays hidden.

        E <- E + sum (g - clip(g)) - clip(E, batch * clip),   E = 0 before the first step and after a resume

    clip        C2, the bound on the error of the MEAN; 0 means no feedback: exactly the Gaussian mechanism
    shortening  how the error is clipped

    The noise on the sum is N(0, (noise * C1)^2), so `noise` has the same meaning as for DP-SGD.

    Guarantee: the fed-back vector has norm at most batch * clip, whatever the error is. A non-finite error is reset to
    zero. A single step has no finite cost, because the error depends on earlier records: `event` returns NonPrivate,
    and `FeedbackRun` charges the run as a whole (docs/proofs/ClippedFeedback.md).

    With several processes, each computes the same error from the global sums, and the result of the first is released.
    """

    clip: float
    shortening: Shortening = Projecting()

    def __post_init__(self) -> None:
        check.not_negative("choose a bound on the fed-back error, e.g. 1.0; 0 means no feedback", clip=self.clip)

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        """Non-private unless `clip` is 0: see the class."""
        return _PLAIN.event(queries, noise) if self.clip == 0 else NonPrivate()

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """Return the noisy sum and update the error."""
        if self.clip > 0:
            self._check(sums, context)
            self._feed_back(sums[0].value, context)
        return _PLAIN.release(sums, queries, noise, context)

    def _check(self, sums: Sequence[BoundedSum], context: StepContext) -> None:
        got = f"{len(sums)} sums" if context.mask is None else "a mask"
        remedy = "use FeedbackClip without a selection: error feedback is proven for it only"
        check.require(len(sums) == 1 and context.mask is None, "one sum of all coordinates", got, remedy)
        expected, got = "a bounder that provides the clipped-off part", "a bounder without hidden sums"
        remedy = "use FeedbackClip or FeedbackNormalised"
        check.require(context.raw is not None and len(context.raw.reveal_to_mechanism()) == 1, expected, got, remedy)

    def _feed_back(self, total: Tensor, context: StepContext) -> None:
        """Add clip(E) to `total`, and compute the next E."""
        assert context.raw is not None
        (cut_off,) = context.raw.reveal_to_mechanism()
        stored = context.secrets.get(ERROR)
        error = cut_off.double().new_zeros(cut_off.shape) if stored is None else stored.reveal_to_mechanism()
        fed = self.shortened(error, context.batch)
        total.add_(fed)
        context.secrets[ERROR] = PrivateState(error.sub_(fed).add_(cut_off))
        cut_off.zero_()

    def shortened(self, error: Tensor, batch: float) -> Tensor:
        """Return clip(error, batch * clip). A non-finite error is set to 0 in place."""
        norm = float(error.norm())
        if not norm < float("inf"):
            error.zero_()
            norm = 0.0
        # The radius is rounded down once for all errors, so this is a projection and float32 stays within the bound.
        return error * self.shortening.factor(norm, batch * self.clip * ROUND_DOWN)
