"""Bounding one record's influence: functions from per-sample norms to weights.

A bounder turns norms [G, N] into weights [Q, G, N] (Q sums of weighted gradients) and, where it asks for numbers
beside the gradient, into scalars [K, N]. Each of its `queries` states how far one record can move that sum.

Guarantee, for every bounder: for all norms, weight * norm <= sensitivity of its query; a norm that is not finite
gets weight 0. Index legend: N records, G groups of parameters, Q vector queries, K scalar queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from discreet.accounting.events import CountQuery, Gaussian
from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.engine.layout import Layout

# Weights are rounded towards zero by this much, so that float32 products stay within the bound.
ROUND_DOWN = 1 - 2**-20


@final
@dataclass(frozen=True)
class Query:
    """One sum over the records of a sample.

    sensitivity  how far adding or removing a record moves it (L2)
    share        its noise multiplier is share * noise of the mechanism; shares satisfy sum share^-2 = 1
    sigma        or: a standard deviation of its own, whatever the mechanism's noise (counts)
    """

    sensitivity: float
    share: float = 1.0
    sigma: float | None = None

    def std(self, noise: float) -> float:
        """The standard deviation of the noise on this sum."""
        return self.sigma if self.sigma is not None else self.share * noise * self.sensitivity

    def event(self, noise: float) -> Gaussian | CountQuery:
        """What releasing it once costs, before sampling."""
        if self.sigma is None:
            return Gaussian(self.share * noise)
        if self.sensitivity == 0.5:
            return CountQuery(self.sigma)
        return Gaussian(self.sigma / self.sensitivity)


class Bounder(Protocol):
    """Settings of a way to bound; `scale` is public state (1 unless the bounder adapts)."""

    def vectors(self, scale: float) -> tuple[Query, ...]:
        """The sums of weighted gradients."""

    def scalars(self) -> tuple[Query, ...]:
        """The sums of single numbers."""

    def groups(self, layout: Layout) -> Sequence[Sequence[int]]:
        """Which parameters share a norm."""

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        """Weights [Q, G, N]."""

    def numbers(self, norms_GN: Tensor, scale: float) -> Tensor:
        """The scalar queries' contributions [K, N]."""

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        """Weights [H, G, N] of sums for the mechanism alone: they never leave, and nothing bounds them."""

    def each(self, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
        """Instead of weights: gradients [n, d] to the sums [Q, d] of what their records contribute."""

    def advance(self, scale: float, released: Sequence[float], batch: float) -> float:
        """The next public scale, from what the scalar queries released."""


class Weighing:
    """A bounder for which weights suffice, and which keeps nothing back."""

    def hidden(self, norms_GN: Tensor, scale: float) -> Tensor:
        return norms_GN.new_zeros(0, *norms_GN.shape)

    def each(self, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
        return None


class Still(Weighing):
    """A bounder that asks for no numbers and never adapts."""

    def scalars(self) -> tuple[Query, ...]:
        return ()

    def numbers(self, norms_GN: Tensor, scale: float) -> Tensor:
        return norms_GN.new_zeros(0, norms_GN.shape[1])

    def advance(self, scale: float, released: Sequence[float], batch: float) -> float:
        return scale


class OneGroup:
    """A bounder that sees the norm of the whole gradient."""

    def groups(self, layout: Layout) -> Sequence[Sequence[int]]:
        return [range(len(layout.names))]


def to_ball(norms_GN: Tensor, radius: float) -> Tensor:
    """min(1, radius / norm), with the radius rounded down; exactly 1 inside."""
    radius *= ROUND_DOWN
    return radius / norms_GN.clamp(min=radius)


def finite(weights_GN: Tensor, norms_GN: Tensor) -> Tensor:
    """Weight 0 for a record with any norm that is not finite; one query in front."""
    good_N = norms_GN.isfinite().all(0)
    return weights_GN.nan_to_num(0.0, 0.0, 0.0).where(good_N, weights_GN.new_zeros(())).unsqueeze(0)


@final
@dataclass(frozen=True)
class FlatClip(Still, OneGroup):
    """w = min(1, C / n): the projection to the ball of radius C.

    C is rounded down once, for all norms: a second radius just below the first would tear nearby gradients apart,
    and last-iterate and feedback bounds rest on a map that brings no two of them further apart.

    >>> import torch
    >>> FlatClip(1.0).weights(torch.tensor([[0.5, 2.0, torch.inf]]), 1.0).round(decimals=3)
    tensor([[[1.0000, 0.5000, 0.0000]]])
    """

    clip: float

    def __post_init__(self) -> None:
        check.positive("the clip bounds each record's gradient norm, e.g. 1.0", clip=self.clip)

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return finite(to_ball(norms_GN, self.clip * scale), norms_GN)


@final
@dataclass(frozen=True)
class AutoS(Still, OneGroup):
    """w = C / (n + gamma): automatic clipping, every record near the bound.

    n = 0 -> w = C / gamma, a contribution of 0.
    """

    clip: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        check.positive(
            "clip is the bound, gamma the stability term, e.g. 0.01", clip=self.clip, gamma=self.gamma
        )

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        return finite(self.clip * scale * ROUND_DOWN / (norms_GN + self.gamma), norms_GN)


@final
@dataclass(frozen=True)
class Psac(Still, OneGroup):
    """w = C / (n + r / (n + r)): per-sample adaptive clipping; small gradients keep less than normalisation gives.

    n = 0 -> w = C, a contribution of 0.
    """

    clip: float = 1.0
    r: float = 0.1

    def __post_init__(self) -> None:
        check.positive("clip is the bound, r the adaptive term, e.g. 0.1", clip=self.clip, r=self.r)

    def vectors(self, scale: float) -> tuple[Query, ...]:
        return (Query(self.clip * scale),)

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        denominator = norms_GN + self.r / (norms_GN + self.r)
        return finite(self.clip * scale * ROUND_DOWN / denominator, norms_GN)
