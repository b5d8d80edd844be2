"""Privacy loss distributions on a grid, rounded so that they are never too small.

A pair of distributions (P, Q) enters only through its loss log(P/Q) under P. `discretise` moves all mass to the two
nearest grid points so that the mass under P and under Q is kept ("connect the dots" [Doroshenko et al. 2022, Algorithm
1]). The hockey-stick divergence of the result is never below the true one and equals it on the grid. The tails keep
their relative precision.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from discreet.accounting import special

Floats = NDArray[np.float64]

# exp() of more overflows; below it every comparison of ours is still exact.
_LARGEST_EXPONENT = 700.0
_DENSE = 1024


@final
@dataclass(frozen=True, eq=False)
class Pmf:
    """Mass `mass[j]` at the loss (first + j) * grid, and mass `infinite` at infinite loss."""

    grid: float
    first: int
    mass: Floats
    infinite: float

    @property
    def last(self) -> int:
        return self.first + len(self.mass) - 1

    @property
    def losses(self) -> Floats:
        return self.grid * np.arange(self.first, self.last + 1, dtype=np.float64)


@final
@dataclass(frozen=True, eq=False)
class Pld:
    """A dominating loss distribution for each direction of the relation; the same object if they agree."""

    with_without: Pmf
    without_with: Pmf

    @classmethod
    def unbounded(cls, grid: float) -> Self:
        """No bound: every loss is infinite."""
        nothing = Pmf(grid, 0, np.zeros(1), 1.0)
        return cls(nothing, nothing)


Parts = list[tuple[Pld, int]]


@final
@dataclass(frozen=True)
class Resolution:
    """The grid of the losses, and the logarithm of the mass that a step may lose to infinity."""

    grid: float
    log_tail: float = -50.0

    @property
    def gaussian_log_tail(self) -> float:
        """Gaussian tails are cheap: at most e^-50 is cut."""
        return max(-700.0, min(-50.0, self.log_tail))


def mix(parts: Sequence[tuple[float, Pmf]]) -> Pmf:
    """The loss distribution if a public draw decides which part happens: sum of weight * part.

    Weights that sum to less than 1 leave the rest at infinite loss.
    """
    first = min(part.first for _, part in parts)
    last = max(part.last for _, part in parts)
    mass = np.zeros(last - first + 1)
    infinite = max(0.0, 1.0 - math.fsum(weight for weight, _ in parts))
    for weight, part in parts:
        mass[part.first - first : part.last - first + 1] += weight * part.mass
        infinite += weight * part.infinite
    return Pmf(parts[0][1].grid, first, mass, infinite)


@final
@dataclass(frozen=True)
class LossLine:
    """A mixture of normal distributions with one standard deviation."""

    weights: tuple[float, ...]
    means: tuple[float, ...]
    std: float

    def above(self, x: Floats) -> Floats:
        """The mass above x, precise in the upper tail."""
        return self._sum(lambda scaled: special.ndtr(-scaled), x)

    def below(self, x: Floats) -> Floats:
        return self._sum(special.ndtr, x)

    def between(self, x: Floats) -> Floats:
        """The masses between successive x (non-decreasing), from the smaller tail."""
        return self._sum(_normal_between, x)

    def _sum(self, function: Callable[[Floats], Floats], x: Floats) -> Floats:
        total = np.zeros(1)
        for weight, mean in zip(self.weights, self.means, strict=True):
            total = total + weight * function((x - mean) / self.std)
        return total


def _normal_between(x: Floats) -> Floats:
    tail: Floats = special.ndtr(-np.abs(x))
    left, right = tail[:-1], tail[1:]
    outside = np.abs(left - right)
    return np.where((x[:-1] <= 0) & (x[1:] > 0), 1 - left - right, outside)


def reach(log_tail: float) -> float:
    """The number of standard deviations above which a normal distribution has mass exp(log_tail)."""
    return float(-special.ndtri_exp(log_tail))


def discretise(
    upper: LossLine,
    lower: LossLine,
    threshold: Callable[[Floats], Floats],
    grid: float,
    low: float,
    high: float,
    *,
    precision: float = 1e-15,
) -> Pmf:
    """The loss distribution of (upper, lower) on multiples of `grid` from `low` <= 0 to `high`.

    threshold(loss) is the point above which log(upper/lower) exceeds the loss, up to `precision`; non-decreasing.
    Guarantee: dominates the exact one. A loss below `low` is raised to it. Of the mass above `high`, the part that the
    lower distribution covers stays at `high` and the rest gets infinite loss.
    """
    first = min(math.floor(low / grid), 0)
    places = _places(first, max(math.ceil(high / grid), 1))
    losses = grid * places.astype(np.float64)
    x = threshold(losses)
    odds = np.exp(np.minimum(losses, _LARGEST_EXPONENT))
    in_upper = upper.between(x)
    # Solves: up + down = mass under P, up * e^-l[i+1] + down * e^-l[i] = mass under Q.
    up = (in_upper - odds[:-1] * lower.between(x)) / -np.expm1(-np.diff(losses))
    up = np.clip(up + in_upper * (precision / grid), 0.0, in_upper)  # the difference above is exact to about 1e-16
    sparse = np.zeros(len(losses))
    sparse[:-1] += in_upper - up
    sparse[1:] += up
    sparse[0] += float(upper.below(x[:1])[0])
    beyond = float(upper.above(x[-1:])[0])
    paid = min(beyond, float(odds[-1] * lower.above(x[-1:])[0]))
    sparse[-1] += paid
    mass = np.zeros(places[-1] - first + 1)
    mass[places - first] = sparse
    return Pmf(grid, first, mass, beyond - paid)


def _places(first: int, last: int) -> NDArray[np.int64]:
    """The grid points in use: all near 0, and further out so few that gaps stay below loss/1024.

    High losses are rare, so coarse rounding of them costs little and saves most of the work.
    """
    return np.concatenate([-_ladder(max(-first, 0))[:0:-1], _ladder(last)])


def _ladder(end: int) -> NDArray[np.int64]:
    """0, 1, .., 1024, and from 1024 * 2^k on in steps of 2^k, to `end`."""
    rungs = _rungs((max(end, 1) // _DENSE).bit_length())
    return np.append(rungs[: np.searchsorted(rungs, end)], end)


@functools.lru_cache(maxsize=64)
def _rungs(octaves: int) -> NDArray[np.int64]:
    runs = [np.arange(_DENSE, dtype=np.int64)]
    runs += [np.arange(_DENSE << k, _DENSE << (k + 1), 1 << k, dtype=np.int64) for k in range(octaves)]
    return np.concatenate(runs)


def gaussian(noise: float, grid: float, log_tail: float) -> Pld:
    """N(1, z^2) against N(0, z^2)."""
    return sampled_gaussian(1.0, noise, grid, log_tail)


def sampled_gaussian(rate: float, noise: float, grid: float, log_tail: float) -> Pld:
    """(1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2), and the other way round."""
    span, variance = noise * reach(log_tail), noise * noise
    lowest, highest = _loss(-span, rate, noise), _loss(1 + span, rate, noise)

    def threshold(losses: Floats) -> Floats:
        return variance * _log_unmixed(losses, rate) + 0.5

    def reflected(losses: Floats) -> Floats:
        return -threshold(-losses)

    mixed, plain = LossLine((1 - rate, rate), (0.0, 1.0), noise), LossLine((1.0,), (0.0,), noise)
    upper = discretise(mixed, plain, threshold, grid, lowest, highest)
    if rate == 1:
        return Pld(upper, upper)
    mirrored = LossLine((1 - rate, rate), (0.0, -1.0), noise)
    return Pld(upper, discretise(plain, mirrored, reflected, grid, -highest, -lowest))


def _loss(x: float, rate: float, noise: float) -> float:
    """log(1 - q + q e^((2x - 1) / (2 z^2)))."""
    shifted = (x - 0.5) / noise / noise
    return shifted if rate == 1 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + shifted))


def highest_loss(rate: float, noise: float, log_tail: float) -> float:
    return _loss(1 + noise * reach(log_tail), rate, noise)


def _log_unmixed(losses: Floats, rate: float) -> Floats:
    """log((e^loss - (1 - q)) / q): the loss without sampling; -inf below the lowest loss with sampling."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        near = np.log(np.maximum(np.expm1(np.minimum(losses, 1.0)) + rate, 0.0))
        far = losses + np.log1p(-(1 - rate) * np.exp(-np.maximum(losses, 1.0)))
    return np.asarray(np.where(losses < 1.0, near, far) - math.log(rate))


def without_replacement(rate: float, noise: float, grid: float, log_tail: float) -> Pld:
    """The curve delta(log(1 + q (e^eps - 1))) = q delta_Gauss(eps) for eps >= 0, mirrored below 0.

    Its loss distribution has the positive losses of "(1-q) Q + q P against Q", the negative losses of "P against (1-q)
    P + q Q", and the rest at loss 0 (docs/proofs/WithoutReplacement.md).
    """
    if rate == 1:
        return gaussian(noise, grid, log_tail)
    sampled = sampled_gaussian(rate, noise, grid, log_tail)
    above, below = sampled.with_without, sampled.without_with
    negative, positive = below.mass[: max(0, -below.first)], above.mass[max(0, 1 - above.first) :]
    middle = 1.0 - math.fsum(negative) - math.fsum(positive) - above.infinite
    mass = np.concatenate([negative, [max(0.0, middle)], positive])
    both = Pmf(grid, min(0, below.first), mass, above.infinite)
    return Pld(both, both)
