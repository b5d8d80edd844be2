"""Charges to epsilon: every valid bound is computed, the tightest is the certificate, and it says which it was.

Composition happens here and nowhere else: `rules` bounds one occurrence of an event, this file counts them.
Two accountants and one shortcut:

PLD             loss distributions, rounded up on a grid that is refined until epsilon moves by < 0.5 %
RDP             Rényi divergences, summed
exact Gaussian  a run of Gaussian releases alone is one Gaussian
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from discreet.accounting import gdp, rdp
from discreet.accounting.charges import Charge, Counted, canonical
from discreet.accounting.compose import Composition
from discreet.accounting.events import Event, Gaussian, NonPrivate
from discreet.accounting.pld import Floats, Pld
from discreet.accounting.pld import gaussian as gaussian_pld
from discreet.accounting.rules import Resolution, noise_of, rule_for, sampling_rate, with_noise
from discreet.core import check
from discreet.core.relation import Neighbouring

_ABOUT_DELTA = "delta is the probability that the bound fails; choose it well below 1/records"
_MOVE = 0.005  # the grid is fine enough once halving it moves epsilon by less than this
_INFLATION = 0.001  # relative growth of the loss's variance that the first grid may cause
_POINTS = 20_000_000  # grid points of all events together; a finer grid would not fit
_ROUNDS = 6
_DISTINCT = 200  # more different noises than this in one schedule are rounded down to this many
_DISTINCT_RDP = 24


@final
@dataclass(frozen=True)
class Certificate:
    """(epsilon, delta) that is proven for one relation, by which accountant, and what it rests on."""

    epsilon: float
    delta: float
    relation: Neighbouring
    accountant: str
    assumptions: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; an infinite epsilon is the string "inf"."""
        return {
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else "inf",
            "delta": self.delta,
            "accountant": self.accountant,
            "relation": str(self.relation),
            "assumptions": list(self.assumptions),
        }


def certify(charge: Charge, *, delta: float, relation: Neighbouring) -> Certificate:
    """The smallest epsilon that is proven for the charge at this delta.

    >>> from discreet.accounting.events import PoissonSampled
    >>> step = Charge.of(PoissonSampled(rate=0.01, event=Gaussian(noise=1.0)))
    >>> certificate = certify(step * 1000, delta=1e-5, relation=Neighbouring.ADD_REMOVE)
    >>> certificate.accountant, round(certificate.epsilon, 2)
    ('PLD', 1.83)
    """
    check.inside_unit(_ABOUT_DELTA, delta=delta)
    run = _run(charge.certified, relation)
    assumptions = tuple(sorted({*charge.assumptions, *run.assumptions}))
    epsilon, name = _tightest(run, delta)
    return Certificate(epsilon, delta, relation, name, assumptions)


def pld_epsilon(charge: Charge, *, delta: float, relation: Neighbouring, grid: float | None = None) -> float:
    """epsilon by loss distributions alone, on this grid, or on one refined until epsilon moves by < 0.5 %."""
    check.inside_unit(_ABOUT_DELTA, delta=delta)
    run = _run(charge.certified, relation)
    if grid is None:
        return _refined(run, delta)
    check.positive("the grid is the distance of two losses", grid=grid)
    return _pld_epsilon(run, delta, Resolution(grid, _log_tail(run, delta)))


def rdp_epsilon(charge: Charge, *, delta: float, relation: Neighbouring) -> float:
    """epsilon by Rényi divergences alone."""
    check.inside_unit(_ABOUT_DELTA, delta=delta)
    return rdp.epsilon(_rdp(_run(charge.certified, relation)), delta)


def delta_at(charge: Charge, *, epsilon: float, relation: Neighbouring) -> float:
    """The smallest delta that is proven for the charge at this epsilon."""
    return profile(charge, epsilons=(epsilon,), relation=relation)[0]


def profile(charge: Charge, *, epsilons: Sequence[float], relation: Neighbouring) -> tuple[float, ...]:
    """The smallest proven delta at each epsilon."""
    check.not_negative("epsilon bounds a privacy loss", **{f"epsilons[{i}]": e for i, e in enumerate(epsilons)})
    run = _run(charge.certified, relation)
    if run.lost:
        return tuple(1.0 for _ in epsilons)
    if not run.others:
        return tuple(gdp.delta(run.mu, epsilon) for epsilon in epsilons)
    divergence = _rdp(run)
    resolution = Resolution(_first_grid(run, -100.0), -100.0)
    compositions = _compositions(run, resolution)
    return tuple(
        min(
            rdp.delta(divergence, epsilon),
            max((c.delta(epsilon) for c in compositions), default=1.0),
        )
        for epsilon in epsilons
    )


def gdp_estimate(charge: Charge, *, delta: float, relation: Neighbouring) -> float:
    """An ESTIMATE of epsilon by the central limit theorem, never a guarantee: it tends to be too small.

    The loss of the run is taken as normal with its true variance mu^2, as a Gaussian release with that mu has it.
    """
    check.inside_unit(_ABOUT_DELTA, delta=delta)
    run = _run(charge.certified, relation)
    if run.lost:
        return math.inf
    variance = run.mu**2
    if run.others:
        plds = _plds(run, Resolution(_first_grid(run, -50.0)))
        variance = max(_variance(plds, False), _variance(plds, True))
    return gdp.epsilon(math.sqrt(variance), delta)


# A run in normal form ----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class _Run:
    """All Gaussian releases as one distance mu; everything else counted; `lost`: nothing is hidden."""

    mu: float
    others: Counted
    relation: Neighbouring
    assumptions: tuple[str, ...]

    @property
    def lost(self) -> bool:
        return math.isinf(self.mu)

    @property
    def count(self) -> int:
        return sum(count for _, count in self.others) + (self.mu > 0)


@functools.lru_cache(maxsize=256)
def _run(certified: Counted, relation: Neighbouring) -> _Run:
    square, others, assumptions = 0.0, [], set()
    for event, count in certified:
        if isinstance(event, NonPrivate):
            square = math.inf
            assumptions.add("no bound is proven for a part of the run")
            continue
        rule = rule_for(event, relation)
        assumptions.update(rule.assumes)
        mu = rule.mu(event, relation) if rule.mu is not None else None
        if mu is None:
            others.append((event, count))
        else:
            square += count * mu * mu
    return _Run(math.sqrt(square), tuple(others), relation, tuple(sorted(assumptions)))


@functools.lru_cache(maxsize=1024)
def _tightest(run: _Run, delta: float) -> tuple[float, str]:
    if run.lost:
        return math.inf, "none"
    if not run.others:
        return gdp.epsilon(run.mu, delta), "exact Gaussian"
    bounds = [(_refined(run, delta), "PLD"), (rdp.epsilon(_rdp(run), delta), "RDP")]
    if run.mu == 0 and len(run.others) == 1 and run.others[0][1] == 1:
        event = run.others[0][0]
        whole = rule_for(event, run.relation).whole
        if whole is not None:
            bounds.append(whole(event, run.relation, delta))
    return min(bounds, key=lambda bound: bound[0])


def _bucketed(run: _Run, most: int) -> _Run:
    """The run with at most `most` different noises per sampler, each rounded DOWN: less noise, more epsilon.

    Valid because adding noise is post-processing. Events are sorted by their cost r (Rényi divergence of
    order 2); the borders are spaced evenly in the sum of sqrt(count * step of r), which makes the total that
    rounding adds to r about least: of the order of 1/most of it, relatively.
    """
    samplers: dict[Event, list[tuple[float, Event, int]]] = {}
    kept: list[tuple[Event, int]] = []
    for event, count in run.others:
        noise = noise_of(event)
        if noise is None:
            kept.append((event, count))
        else:
            samplers.setdefault(with_noise(event, 1.0), []).append((noise, event, count))
    for members in samplers.values():
        members.sort(key=lambda member: member[0])
        kept.extend(_rounded_down(members, most))
    return replace(run, others=canonical(kept))


def _rounded_down(members: list[tuple[float, Event, int]], most: int) -> list[tuple[Event, int]]:
    if len(members) <= most:
        return [(event, count) for _, event, count in members]
    noises = np.array([noise for noise, _, _ in members])
    counts = np.array([count for _, _, count in members], dtype=np.float64)
    rate = sampling_rate(members[0][1])
    cost = np.log1p(rate**2 * np.expm1(np.minimum(1 / noises**2, 600.0)))
    border = np.concatenate([[0.0], np.cumsum(np.sqrt(counts[1:] * np.maximum(-np.diff(cost), 0.0)))])
    bucket = np.floor(border / max(border[-1], 1e-300) * most * (1 - 1e-12)).astype(int)
    rounded: dict[int, list[int]] = {}
    for index, place in enumerate(bucket):
        rounded.setdefault(int(place), []).append(index)
    return [(members[group[0]][1], sum(members[i][2] for i in group)) for group in rounded.values()]


# RDP ---------------------------------------------------------------------------------------------------------


def _rdp(run: _Run) -> Floats:
    run = _bucketed(run, _DISTINCT_RDP)
    total = rdp.gaussian(1 / run.mu) if run.mu > 0 else np.zeros(len(rdp.ORDERS))
    for event, count in run.others:
        rule = rule_for(event, run.relation)
        if rule.rdp is None:
            return np.full(len(rdp.ORDERS), math.inf)
        total = total + count * rule.rdp(event, run.relation, rdp.ORDERS)
    return total


# PLD ---------------------------------------------------------------------------------------------------------


def _plds(run: _Run, resolution: Resolution) -> list[tuple[Pld, int]] | None:
    """The loss distribution of every event; None if one of them has none."""
    parts: list[tuple[Pld, int]] = []
    for event, count in run.others:
        rule = rule_for(event, run.relation)
        if rule.pld is None:
            return None
        parts.append((rule.pld(event, run.relation, resolution), count))
    if run.mu > 0:
        parts.append((gaussian_pld(1 / run.mu, resolution.grid, resolution.gaussian_log_tail), 1))
    return parts


def _compositions(run: _Run, resolution: Resolution) -> tuple[Composition, ...]:
    """Both directions; one if they agree."""
    parts = _plds(run, resolution)
    if parts is None:
        return ()
    upper = Composition([(part.with_without, count) for part, count in parts])
    if all(part.with_without is part.without_with for part, _ in parts):
        return (upper,)
    return (upper, Composition([(part.without_with, count) for part, count in parts]))


def _pld_epsilon(run: _Run, delta: float, resolution: Resolution) -> float:
    return max((c.epsilon(delta) for c in _compositions(run, resolution)), default=math.inf)


def _log_tail(run: _Run, delta: float) -> float:
    """What one event may lose to infinity: far below its share of delta. In tens, so that caches hit."""
    return 10.0 * math.floor((math.log(delta) - math.log(run.count) - 14) / 10)


def _variance(parts: Iterable[tuple[Pld, int]], reverse: bool) -> float:
    total = 0.0
    for part, count in parts:
        pmf = part.without_with if reverse else part.with_without
        losses = pmf.losses
        mean = float(pmf.mass @ losses)
        total += count * max(0.0, float(pmf.mass @ (losses * losses)) - mean * mean)
    return total


def _first_grid(run: _Run, log_tail: float) -> float:
    """A grid whose rounding adds about 0.1 % to the variance of the loss: h^2/6 a step. Powers of two.

    Coarse grids overstate the variance, so the search walks down from a coarse one until it settles.
    """
    run = _bucketed(run, _DISTINCT_RDP)
    grid = 2.0**-3
    for _ in range(24):
        parts = _plds(run, Resolution(grid, log_tail))
        if parts is None:
            return grid
        wanted = math.sqrt(6 * _INFLATION * _variance(parts, False) / run.count)
        if wanted >= grid:
            break
        grid = 2.0 ** math.floor(math.log2(wanted))
    return grid


@functools.lru_cache(maxsize=1024)
def _refined(run: _Run, delta: float) -> float:
    """epsilon on a grid fine enough that halving it again would not matter; every grid gives an upper bound."""
    run = _bucketed(run, _DISTINCT)
    log_tail = _log_tail(run, delta)
    grid = _first_grid(run, log_tail)
    before = _pld_epsilon(run, delta, Resolution(2 * grid, log_tail))
    for _ in range(_ROUNDS):
        now = _pld_epsilon(run, delta, Resolution(grid, log_tail))
        best = min(before, now)
        if not math.isfinite(best) or before - now <= _MOVE * now:
            break
        before, grid = now, grid / 2
    return best
