"""The best of a secret, random number of runs: the law of that number, and what the selection costs.

Both bounds start from one fact: if F(y) is the probability that a run scores no higher than y, the best of K runs has
density f'(F(y)) relative to one run, with f(x) = E[x^K] (docs/proofs/BestOfRuns.md).

Rényi     [Papernot and Steinke 2022, Theorems 2 and 6]; composes with other events
profile   E[K] delta(epsilon - c), with delta the profile of one run, in the manner of [Koskela, Redberg and Wang 2024]
"""

import abc
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from discreet.accounting.events import BestOfRuns
from discreet.accounting.pld import Floats
from discreet.accounting.rdp import ORDERS, Orders
from discreet.core import check
from discreet.core.bisection import least
from discreet.core.relation import Neighbouring

_TOLERANCE, _LIMIT = 1e-3, 50.0  # of the search for the ratio; every result of it is a bound
_LONGEST = 10**7  # values of K that are looked at
_REST = 1e-12  # of the law, at most, lies behind them
_SMALLEST = 700.0  # log(1 / gamma), at most: a smaller gamma is no number
_REMEDY = "expect fewer runs, or a shape from -0.5 to 10"


class RunLaw(abc.ABC):
    """The law of K, the number of runs."""

    @property
    @abc.abstractmethod
    def mean(self) -> float:
        """E[K]."""

    @abc.abstractmethod
    def probabilities(self) -> Iterator[tuple[int, float]]:
        """(k, P[K = k]) in ascending order of k."""

    @abc.abstractmethod
    def rest(self) -> float:
        """A bound on P[K > _LONGEST]."""

    @abc.abstractmethod
    def renyi(self, run: Floats, orders: Orders) -> Floats:
        """The Rényi divergences of the best run, given those of one run; the larger direction of both."""

    @abc.abstractmethod
    def ratio(self, epsilon_of: Callable[[float], float]) -> float:
        """A bound on log f'(F)/f'(F') over all events F, given the epsilon of one run as a function of delta."""

    def draw(self, uniform: float) -> int:
        """K for a uniform number in [0, 1), by inversion."""
        total = 0.0
        for k, probability in self.probabilities():
            is_end = k > self.mean and total + probability == total  # what is left is less than the rounding of total
            total += probability
            if uniform < total or is_end or k >= _LONGEST:
                return k
        raise AssertionError("a law without end")

    def least_with(self, share: float) -> int:
        """The smallest k with P[K <= k] >= share."""
        return self.draw(math.nextafter(share, 0.0))


@final
@dataclass(frozen=True)
class TruncatedNegativeBinomial(RunLaw):
    """K >= 1 with f'(x) = E[K] (gamma / (1 - (1 - gamma) x))^(shape + 1).

    >>> law = TruncatedNegativeBinomial.of_mean(shape=1.0, mean=10.0)  # the geometric law
    >>> round(law.gamma, 9), round(law.mean, 6), law.draw(0.0)
    (0.1, 10.0, 1)
    """

    shape: float
    gamma: float

    @classmethod
    def of_mean(cls, *, shape: float, mean: float) -> "TruncatedNegativeBinomial":
        """The law with E[K] >= mean, and within 1e-9 of it."""
        low, high = 0.0, 1.0  # log(1 / gamma): E[K] grows with it from 1
        while cls(shape, math.exp(-high)).mean < mean:
            low, high = high, 2 * high
            check.require(
                high < _SMALLEST, "a law of K that can be drawn", f"shape={shape} with mean={mean:g}", _REMEDY
            )
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if cls(shape, math.exp(-middle)).mean < mean else (low, middle)
        return cls(shape, math.exp(-high))

    @property
    def mean(self) -> float:
        """eta (1 - gamma) / (gamma (1 - gamma^eta)), and its limit at eta = 0."""
        log = -math.log(self.gamma)
        share = log if abs(self.shape) * log < 1e-9 else -math.expm1(-self.shape * log) / self.shape
        return -math.expm1(-log) / (self.gamma * share)

    def probabilities(self) -> Iterator[tuple[int, float]]:
        stays = 1 - self.gamma
        first = math.log(self.mean) + (self.shape + 1) * math.log(self.gamma)  # f'(0)
        return _from_ratios(1, first, lambda k: stays * (k + self.shape) / (k + 1))

    def rest(self) -> float:
        k, log = _LONGEST, math.log(self.mean) + (self.shape + 1) * math.log(self.gamma)
        log += (k - 1) * math.log1p(-self.gamma)
        log += math.lgamma(k + self.shape) - math.lgamma(1 + self.shape) - math.lgamma(k + 1)
        return _geometric(log, (1 - self.gamma) * (1 + max(0.0, self.shape - 1) / k))

    def renyi(self, run: Floats, orders: Orders) -> Floats:
        """r(a) + (1 + eta) min_b ((1 - 1/b) r(b) + log(1/gamma)/b) + log E[K] / (a - 1)."""
        a = np.array(orders)
        extra = (1 + self.shape) * float(np.min((1 - 1 / a) * run - math.log(self.gamma) / a))
        return np.asarray(run + extra + math.log(self.mean) / (a - 1))

    def ratio(self, epsilon_of: Callable[[float], float]) -> float:
        """(1 + eta) r for the least r with delta(r) <= gamma/(1 - gamma) (e^r - 1)."""
        odds = self.gamma / (1 - self.gamma)
        return (1 + self.shape) * least(
            lambda r: _within(epsilon_of, odds * math.expm1(r), r), tolerance=_TOLERANCE, limit=_LIMIT
        )


@final
@dataclass(frozen=True)
class PoissonRuns(RunLaw):
    """K with f'(x) = mean e^(mean (x - 1)). K = 0 gives a public default, which costs nothing."""

    expected: float

    @property
    def mean(self) -> float:
        return self.expected

    def probabilities(self) -> Iterator[tuple[int, float]]:
        return _from_ratios(0, -self.mean, lambda k: self.mean / (k + 1))

    def rest(self) -> float:
        log = _LONGEST * math.log(self.mean) - self.mean - math.lgamma(_LONGEST + 1)
        return _geometric(log, self.mean / _LONGEST)

    def renyi(self, run: Floats, orders: Orders) -> Floats:
        """log(e^-m + m e^((a-1)(r(a) + m d))) / (a - 1), d = delta of one run at epsilon = log(a/(a - 1))."""
        a = np.array(orders)
        deltas = np.array([_renyi_delta(run, a, -math.log1p(-1 / order)) for order in orders])
        exponent = math.log(self.mean) + (a - 1) * (run + self.mean * deltas)
        return np.asarray(np.logaddexp(-self.mean, exponent) / (a - 1))

    def ratio(self, epsilon_of: Callable[[float], float]) -> float:
        """mean times the total variation distance: the least r/mean with 1 - (1 - delta) e^-epsilon <= r/mean.

        Any (epsilon, delta) of one run bounds the distance by that; delta is taken close to the result.
        """

        def bounds(r: float) -> bool:
            delta = 0.99 * r
            return r >= 1 or _within(epsilon_of, delta, math.log1p(-delta) - math.log1p(-r))

        return self.mean * least(bounds, tolerance=_TOLERANCE, limit=_LIMIT)


def law_of(event: BestOfRuns) -> RunLaw:
    """The law of K; the same law is drawn from and charged for."""
    return _law(None if event.shape is None else float(event.shape), float(event.mean))


@functools.lru_cache(maxsize=64)
def _law(shape: float | None, mean: float) -> RunLaw:
    """Guarantee: `draw` follows the law that is certified, but for a probability of `_REST`."""
    law = PoissonRuns(mean) if shape is None else TruncatedNegativeBinomial.of_mean(shape=shape, mean=mean)
    got = f"one with mean={mean:g} and shape={shape}"
    check.require(law.rest() <= _REST, f"a law with at most {_LONGEST:,} runs", got, _REMEDY)
    return law


def _from_ratios(first: int, log: float, ratio: Callable[[int], float]) -> Iterator[tuple[int, float]]:
    """(k, p_k) from log p of the first k and p_{k+1} / p_k.

    The exponent is kept apart, because the first p may be too small for a float although later ones are not.
    """
    exponent = math.floor(log / math.log(2))
    held = math.exp(log - exponent * math.log(2))
    for k in range(first, _LONGEST + 1):
        yield k, math.ldexp(held, exponent)
        held, shift = math.frexp(held * ratio(k))
        exponent += shift


def _geometric(log: float, ratio: float) -> float:
    """A bound on the sum behind a term, given as logarithm, if no term is more than `ratio` times the one before."""
    return math.inf if ratio >= 1 else math.exp(min(0.0, log)) * ratio / (1 - ratio)


def event_rdp(event: BestOfRuns, relation: Neighbouring, orders: Orders) -> Floats:
    """The Rényi bound of the selection; of several candidates the largest divergence counts at each order."""
    from discreet.accounting.accountants import renyi_divergences

    assert orders == ORDERS
    runs = [renyi_divergences(candidate, relation) for candidate in event.candidates]
    return law_of(event).renyi(np.max(runs, axis=0), orders)


def event_epsilon(event: BestOfRuns, relation: Neighbouring, delta: float) -> tuple[float, str]:
    """The epsilon of one run at delta / E[K], and the ratio of the densities."""
    from discreet.accounting.accountants import certify
    from discreet.accounting.charges import Charge

    law, name = law_of(event), "profile of one run"

    def epsilon_of(delta: float) -> float:
        costs = (Charge(candidate) for candidate in event.candidates)
        return max(certify(cost, delta=delta, relation=relation).epsilon for cost in costs)

    run = epsilon_of(delta / law.mean)
    return (run + law.ratio(epsilon_of) if math.isfinite(run) else math.inf), name


def _within(epsilon_of: Callable[[float], float], delta: float, epsilon: float) -> bool:
    """Whether one run is (epsilon, delta) private."""
    return delta >= 1 or (delta > 0 and epsilon_of(delta) <= epsilon)


def _renyi_delta(run: Floats, a: Floats, epsilon: float) -> float:
    """delta at epsilon by Rényi divergences [Canonne et al. 2020], at most 1."""
    logs = (a - 1) * (run - epsilon + np.log1p(-1 / a)) - np.log(a)
    return math.exp(min(0.0, float(np.min(logs))))
