"""A Poisson sample to which one unit may add several records: sum_j Bin(k, q)(j) N(j, z^2) against N(0, z^2).

k is the largest number of records of a unit, and j is how many of them join a step. With k = 1 it is the sampled
Gaussian of `pld` and `rdp`. The proof is docs/proofs/GroupPoissonSampled.md.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import final

import numpy as np

from discreet.accounting import events, gdp, pld, special
from discreet.accounting.events import units
from discreet.accounting.pld import Floats, LossLine, Parts, Pld, Pmf, Resolution
from discreet.accounting.rdp import Orders
from discreet.core.bisection import least_whole
from discreet.core.relation import Neighbouring

_ITERATIONS = 100  # of Newton's method, which takes about ten
_PRECISION = 1e-12  # of the losses at the thresholds: far above what Newton's method leaves
_NODES, _TERMS = 50_000, 2**24  # the longest quadrature, and the most terms of one; beyond them RDP is infinite


@final
@dataclass(frozen=True, eq=False)
class Joining:
    """How many records of a unit join a step: log P(j) for j = 0, 1, ..., and the probability `rest` of more."""

    log_weights: Floats
    rest: float
    rate: float
    most: int

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def of(rate: float, most: int, log_tail: float) -> "Joining":
        """The binomial distribution up to a tail of at most e^log_tail, or whole if that is 0; `rate` < 1."""
        last = most
        if log_tail > -math.inf:
            last = least_whole(lambda count: special.binomial_above(count, most, rate) <= math.exp(log_tail), 0, most)
        j = np.arange(last + 1, dtype=np.float64)
        log_binomial = np.append(0.0, np.cumsum(np.log((most - j[:-1]) / (j[:-1] + 1))))
        log_weights = log_binomial + j * math.log(rate) + (most - j) * math.log1p(-rate)
        rest = special.binomial_above(last, most, rate) if last < most else 0.0
        return Joining(log_weights, rest, rate, most)

    @property
    def counts(self) -> Floats:
        return np.arange(len(self.log_weights), dtype=np.float64)

    def loss(self, x: Floats, noise: float) -> Floats:
        """log of the mixture's density over that of N(0, z^2)."""
        return np.asarray(special.logsumexp(self._exponents(x, noise, 0), axis=1))

    def furthest(self, noise: float, log_tail: float) -> float:
        """A point above which the mixture has a mass of at most e^log_tail, without `rest`."""
        share = log_tail - math.log(len(self.log_weights))
        kept = [(j, share - weight) for j, weight in enumerate(self.log_weights.tolist()) if weight > share]
        return max(j + noise * pld.reach(tail) for j, tail in kept)

    def threshold(self, losses: Floats, noise: float) -> Floats:
        """The x with this loss, by Newton's method; -inf below the lowest loss.

        Without j = 0 the logarithm of the mixture is convex and increasing. So Newton's method, begun on the right,
        falls to the solution and never jumps over it. One term of the mixture gives a point on the right.
        """
        above = losses - self.most * math.log1p(-self.rate)  # the lowest loss is log P(0)
        with np.errstate(divide="ignore"):
            targets = losses + np.log(-np.expm1(-np.maximum(above, 0.0)))  # log(e^loss - P(0))
        solvable = np.isfinite(targets)
        wanted, counts, variance = targets[solvable, None], self.counts[1:], noise * noise
        x = (variance * (wanted - self.log_weights[1:]) / counts + counts / 2).min(1)
        for _ in range(_ITERATIONS):
            exponents = self._exponents(x, noise, 1)
            value = special.logsumexp(exponents, axis=1)
            slope = (np.exp(exponents - value[:, None]) @ counts) / variance
            step = np.maximum((value - wanted[:, 0]) / slope, 0.0)
            x = x - step
            if not (step > 4e-16 * np.maximum(np.abs(x), noise)).any():
                break
        found = np.full(len(losses), -np.inf)
        found[solvable] = x
        return found

    def _exponents(self, x: Floats, noise: float, first: int) -> Floats:
        j = self.counts[first:]
        return np.asarray(self.log_weights[first:] + (x[:, None] - j / 2) * j / noise / noise)


def step_pld(rate: float, most: int, noise: float, grid: float, log_tail: float) -> Pld:
    """The loss distributions of the pair, in both directions. `rest` has infinite loss."""
    joining = Joining.of(rate, most, log_tail)
    span = noise * pld.reach(log_tail)
    ends = joining.loss(np.array([-span, joining.furthest(noise, log_tail)]), noise)
    lowest, highest = float(ends[0]), float(ends[1])

    def threshold(losses: Floats) -> Floats:
        return joining.threshold(losses, noise)

    def reflected(losses: Floats) -> Floats:
        return -threshold(-losses)

    weights, means = tuple(np.exp(joining.log_weights).tolist()), tuple(joining.counts.tolist())
    plain, mixed = LossLine((1.0,), (0.0,), noise), LossLine(weights, means, noise)
    mirrored = LossLine(weights, tuple(-mean for mean in means), noise)
    upper = pld.discretise(mixed, plain, threshold, grid, lowest, highest, precision=_PRECISION)
    lower = pld.discretise(plain, mirrored, reflected, grid, -highest, -lowest, precision=_PRECISION)
    return Pld(_with_infinite(upper, joining.rest), lower)


def _with_infinite(pmf: Pmf, more: float) -> Pmf:
    return dataclasses.replace(pmf, infinite=pmf.infinite + more)


def step_rdp(rate: float, most: int, noise: float, orders: Orders) -> Floats:
    """The larger of D_a(P||Q) and D_a(Q||P) by quadrature; infinite at orders that take too long."""
    a, values = np.array(orders), np.full(len(orders), math.inf)
    joining, longest = Joining.of(rate, most, -math.inf), min(_NODES, _TERMS / (most + 1))
    low, top, step = -14 * noise, 14 * noise, min(noise / 8, noise * noise / (2 * most))
    reverse_steps = step / np.sqrt(1 + (a - 1) * most * most / (4 * noise * noise))  # the integrand is narrower
    short = (top - low + a * most) / step <= longest
    short &= (top - low + (a - 1) * most * rate) / reverse_steps <= longest
    if short.any():
        kept = a[short]
        forward = _log_expectation(joining, noise, kept, (low, top + float(kept.max()) * most), step)
        reverse_span = (low - (float(kept.max()) - 1) * most * rate, top)
        backward = _log_expectation(joining, noise, 1 - kept, reverse_span, float(reverse_steps[short].min()))
        values[short] = np.maximum(np.maximum(forward, backward) / (kept - 1), 0.0)
    return values


def _log_expectation(joining: Joining, noise: float, powers: Floats, span: tuple[float, float], step: float) -> Floats:
    """log E_Q[(P/Q)^power] by the trapezoidal rule, which converges exponentially here."""
    x = np.linspace(*span, math.ceil((span[1] - span[0]) / step) + 1)
    log_ratio = joining.loss(x, noise)
    log_weight = -(x**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi)) + math.log(float(x[1] - x[0]))
    return np.array([special.logsumexp(log_weight + power * log_ratio) for power in powers.tolist()])


# -- the event -----------------------------------------------------------------------------------------


def _noise(event: events.GroupPoissonSampled, relation: Neighbouring) -> float:
    return event.event.whitened.noise / units(relation)


def group_mu(event: events.GroupPoissonSampled, relation: Neighbouring) -> float | None:
    """A Gaussian only if all records join every step, or if there is no noise."""
    noise = _noise(event, relation)
    if noise == 0:
        return math.inf
    return event.most / noise if event.rate == 1 else None


@functools.lru_cache(maxsize=32)
def group_pld(event: events.GroupPoissonSampled, relation: Neighbouring, resolution: Resolution) -> Parts:
    """The loss distributions of one step."""
    noise, tail = _noise(event, relation), resolution.gaussian_log_tail
    return [(step_pld(event.rate, event.most, noise, resolution.grid, tail), 1)]


@functools.lru_cache(maxsize=256)
def group_rdp(event: events.GroupPoissonSampled, relation: Neighbouring, orders: Orders) -> Floats:
    """The Rényi divergence of one step."""
    return step_rdp(event.rate, event.most, _noise(event, relation), orders)


def highest_loss(event: events.GroupPoissonSampled, relation: Neighbouring, log_tail: float) -> float:
    """The highest finite loss of one step."""
    noise, tail = _noise(event, relation), Resolution(1.0, log_tail).gaussian_log_tail
    if event.rate == 1:
        return pld.highest_loss(1.0, noise / event.most, tail)
    joining = Joining.of(event.rate, event.most, tail)
    return float(joining.loss(np.array([joining.furthest(noise, tail)]), noise)[0])


def total_variation(event: events.GroupPoissonSampled, relation: Neighbouring) -> float:
    """delta(0) of one step: at most the mean of the Gaussians' over j, by convexity."""
    noise = _noise(event, relation)
    if event.rate == 1:
        return gdp.delta(event.most / noise, 0.0)
    joining = Joining.of(event.rate, event.most, -50.0)
    pairs = zip(np.exp(joining.log_weights).tolist(), joining.counts.tolist(), strict=True)
    return joining.rest + math.fsum(weight * gdp.delta(j / noise, 0.0) for weight, j in pairs if j > 0)
