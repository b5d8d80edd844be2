"""Clipping: bounders limit the influence of one record, by weights that depend on its gradient norm.

A bounder maps norms [G, N] to weights [Q, G, N] for Q weighted sums of gradients. If it also queries numbers, it maps
the norms to scalars [K, N]. Each query states its sensitivity: how far one record can move that sum. The weights are
applied in aggregation.py.

Guarantee, for every bounder: weight * norm <= sensitivity of the query, for all norms; a non-finite norm gets weight 0.

Shape suffixes: N records, G groups of parameters, Q vector queries, K scalar queries.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from discreet.accounting.events import CountQuery, Gaussian
from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.engine.layout import Layout
    from discreet.stages.public_learning import PublicLearning
    from discreet.stages.values import StepContext

# Factor that rounds weights towards zero, so that float32 products stay within the bound.
ROUND_DOWN = 1 - 2**-20


@final
@dataclass(frozen=True)
class Query:
    """One sum over the records of a batch.

    sensitivity  how far adding or removing one record can move the sum (L2)
    share        the noise multiplier of this sum is share * noise; the shares of a step satisfy sum share^-2 = 1
    sigma        a fixed standard deviation that replaces share * noise * sensitivity (used for counts)
    """

    sensitivity: float
    share: float = 1.0
    sigma: float | None = None

    def std(self, noise: float) -> float:
        """The standard deviation of the noise on this sum."""
        return self.sigma if self.sigma is not None else self.share * noise * self.sensitivity

    def event(self, noise: float) -> Gaussian | CountQuery:
        """The privacy event of releasing the sum once, before amplification by sampling."""
        if self.sigma is None:
            return Gaussian(self.share * noise)
        if self.sensitivity == 0.5:
            return CountQuery(self.sigma)
        return Gaussian(self.sigma / self.sensitivity)


class Bounder(Protocol):
    """Bounds each record's contribution. `scale` is public state; it stays 1 unless the bounder adapts.

    By default a bounder uses the norm of the whole gradient, and has neither scalar queries nor hidden sums.
    """

    def vectors(self, scale: float) -> tuple[Query, ...]:
        """The queries for weighted sums of gradients."""

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        """The weights [Q, G, N] of the vector queries."""

    def groups(self, layout: Layout) -> Sequence[Sequence[int]]:
        """The groups of parameters for which norms are computed, as indices of parameters."""
        return [range(len(layout.names))]

    def scalars(self) -> tuple[Query, ...]:
        """The queries for sums of single numbers."""
        return ()

    def numbers(self, norms_GN: Tensor, scale: float) -> Tensor:
        """The contributions [K, N] of the records to the scalar queries."""
        return norms_GN.new_zeros(0, norms_GN.shape[1])

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        """Weights [H, G, N] of hidden sums. Only the mechanism reads these sums; their sensitivity is not bounded."""
        return norms_GN.new_zeros(0, *norms_GN.shape)

    def contribution_map(self, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
        """A function that replaces `weights`: it maps gradients [n, d] to sums [Q, d] of bounded contributions.

        None if `weights` suffices.
        """
        return None

    def records_at_once(self, size: int) -> int:
        """How many gradients of `size` coordinates `contribution_map` takes at a time."""
        return 16

    @property
    def public_records(self) -> int:
        """How many public records the bounder learns from before some steps; 0 if it needs none."""
        return 0

    def learning(self, context: StepContext) -> PublicLearning | None:
        """What learns from public records before this step; None if nothing does."""
        return None

    def advance(self, scale: float, released: Sequence[float], batch: float) -> float:
        """The scale of the next step, computed from the released scalar queries."""
        return scale


class ClippedSum(Bounder):
    """Base of bounders with one vector query: a sum of gradients that are each bounded by norm `clip`."""

    clip: float

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)


def clip_factor(norms_GN: Tensor, radius: float) -> Tensor:
    """The clipping factor min(1, radius / norm), with the radius rounded down; exactly 1 for smaller norms."""
    radius *= ROUND_DOWN
    return radius / norms_GN.clamp(min=radius)


def zero_non_finite(weights_GN: Tensor, norms_GN: Tensor) -> Tensor:
    """Set the weights of records with a non-finite norm to 0, and add the axis of queries: [1, G, N]."""
    from discreet.engine.factors.lengths import are_finite

    if are_finite(norms_GN) and are_finite(weights_GN):  # nearly always
        return weights_GN.unsqueeze(0)
    good_N = norms_GN.isfinite().all(0)
    return weights_GN.nan_to_num(0.0, 0.0, 0.0).where(good_N, weights_GN.new_zeros(())).unsqueeze(0)


@final
@dataclass(frozen=True)
class FlatClip(ClippedSum):
    """Flat clipping, w = min(1, C / n): the projection onto the ball of radius C.

    C is rounded down once for all norms, so the map stays a projection and never increases the distance between two
    gradients. The bounds for last-iterate and error-feedback runs rely on that.

    >>> import torch
    >>> FlatClip(1.0).weights(torch.tensor([[0.5, 2.0, torch.inf]]), 1.0).round(decimals=3)
    tensor([[[1.0000, 0.5000, 0.0000]]])
    """

    clip: float

    def __post_init__(self) -> None:
        check.positive("choose a clipping norm, e.g. 1.0", clip=self.clip)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(clip_factor(norms_GN, self.clip * scale), norms_GN)


@final
@dataclass(frozen=True)
class AutoS(ClippedSum):
    """Automatic clipping, w = C / (n + gamma): scales nearly every gradient to norm C.

    A gradient of zero gets w = C / gamma and contributes 0.
    """

    clip: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        remedy = "choose a clipping norm and a stability constant gamma, e.g. 1.0 and 0.01"
        check.positive(remedy, clip=self.clip, gamma=self.gamma)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return zero_non_finite(self.clip * scale * ROUND_DOWN / (norms_GN + self.gamma), norms_GN)


@final
@dataclass(frozen=True)
class Psac(ClippedSum):
    """Per-sample adaptive clipping, w = C / (n + r / (n + r)): gives small gradients less weight than normalisation.

    A gradient of zero gets w = C and contributes 0.
    """

    clip: float = 1.0
    r: float = 0.1

    def __post_init__(self) -> None:
        check.positive("choose a clipping norm and a term r, e.g. 1.0 and 0.1", clip=self.clip, r=self.r)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        denominator = norms_GN + self.r / (norms_GN + self.r)
        return zero_non_finite(self.clip * scale * ROUND_DOWN / denominator, norms_GN)


class Clipping(enum.StrEnum):
    """A choice of clipping rule, for recipes that offer several."""

    FLAT = "flat"
    AUTO_S = "auto-s"
    PSAC = "psac"

    def bounder(self, *, clip: float, gamma: float, r: float) -> Bounder:
        """Return the bounder with clipping norm `clip`; `gamma` is used by auto-s, `r` by psac."""
        if self is Clipping.FLAT:
            return FlatClip(clip)
        return AutoS(clip=clip, gamma=gamma) if self is Clipping.AUTO_S else Psac(clip=clip, r=r)
