"""The stages of DiceSGD (clipped error feedback, arXiv 2311.14632) and of two-level clipping.

Error feedback releases the clipped sum, and the clipped-off part becomes a hidden sum, which the mechanism feeds back,
clipped itself. Guarantee, besides that of every bounder: a record moves the hidden sum by at most `kept`, whatever its
norm. A record with a non-finite norm does not move it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

from discreet.accounting.events import NonPrivate, Release
from discreet.core import check
from discreet.stages.clipping import ROUND_DOWN, Bounder, ClippedSum, FlatClip, Query, clip_factor, zero_non_finite
from discreet.stages.combination import whole_gradient
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.selection import Selection
from discreet.stages.values import BoundedSum, PrivateState, StepContext

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.pipeline import Pipeline

MAX_CLIPS = 1e6
"""Without a pre-clip, gradients are clipped to this multiple of the clipping norm, which keeps the error finite."""
ERROR = "clipped-feedback.error"
_PLAIN = GaussianNoise()


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

    def fits(self, stages: Pipeline) -> None:
        bounder, selection = stages.bounder, stages.selection
        hides = type(bounder).hidden is not Bounder.hidden
        one = hides and len(stages.queries(1.0)) == 1 and selection.takes_all
        expected, got = "one sum of all coordinates, and a hidden one", f"{bounder!r}, {type(selection).__name__}"
        remedy = "use FeedbackClip or FeedbackNormalised without a selection: error feedback is proven for them only"
        check.require(self.clip == 0 or one, expected, got, remedy)

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
