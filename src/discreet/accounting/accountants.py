"""Charges to epsilon: every bound that applies is computed, and the smallest is the certificate.

Composition happens only here: `rules` bounds one occurrence of an event, this file counts the occurrences.

PLD             privacy loss distributions on a grid that is refined until epsilon changes by less than 0.2 %
RDP             Rényi divergences
exact Gaussian  a run of Gaussian releases only
and the bounds that a rule proves for a whole run that is one event

A schedule with more than 200 noise multipliers is rounded down to 200, which costs about 0.2 % of epsilon.
"""

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from discreet.accounting import gdp, rdp
from discreet.accounting.charges import Charge, Counted, canonical
from discreet.accounting.events import LastIterateRun
from discreet.accounting.normal import NormalForm, bucketed, normal
from discreet.accounting.pld import Floats, Parts, Resolution, gaussian
from discreet.accounting.pld import highest_loss as pld_highest_loss
from discreet.accounting.pld_composition import ComposedLoss
from discreet.accounting.rules import rule_for
from discreet.accounting.sampled import highest_loss, is_projected, unsampled_mu
from discreet.core import check
from discreet.core.randomness import SEEDED
from discreet.core.relation import Neighbouring

ABOUT_DELTA = "delta is the probability that the bound fails; choose it well below 1/records"
_MOVE = 0.002  # the grid is fine enough once halving it moves epsilon by less than this
_INFLATION = 0.001  # relative growth of the loss's variance that the first grid may cause
_ROUNDS = 8
_COARSE, _FINE = 2**13, 2**18  # points that the loss of one step spans on the first grid tried, and at most
_COARSEST = 2.0**-3  # rounding is of second order only on grids well below 1
_WIDTH = 32  # standard deviations of the whole loss that a composition covers, about
_FIRST_WORK, _MOST_WORK = 2**20, 2**23  # points for one direction on the first grid; for all grids together
_PROJECTED_WORK = 16  # what a point of a projected release costs, in points of others
_DISTINCT = 200
_DISTINCT_ROUGHLY = 24  # for Rényi divergences and for choosing a grid


@final
@dataclass(frozen=True)
class Certificate:
    """The (epsilon, delta) that is proven for one relation, the accountant that proves it, and its assumptions."""

    epsilon: float
    delta: float
    relation: Neighbouring
    accountant: str
    assumptions: tuple[str, ...] = ()

    @property
    def conditions(self) -> tuple[str, ...]:
        """Assumptions to print next to epsilon: those that only the user can check ("if ..."), and a seed."""
        return tuple(text for text in self.assumptions if text.startswith("if ") or text == SEEDED)

    @property
    def seeded(self) -> bool:
        """Whether a seed was used. Epsilon is then that of the same run with secret randomness."""
        return SEEDED in self.assumptions

    def to_json(self) -> dict[str, Any]:
        """JSON values; an infinite epsilon is the string "inf"."""
        return {
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else "inf",
            "delta": self.delta,
            "accountant": self.accountant,
            "relation": str(self.relation),
            "assumptions": list(self.assumptions),
        }


def certify(charge: Charge, *, delta: float, relation: Neighbouring) -> Certificate:
    """The smallest epsilon that is proven for the charge at this delta.

    >>> from discreet.accounting.events import Gaussian, PoissonSampled
    >>> step = Charge.of(PoissonSampled(rate=0.01, event=Gaussian(noise=1.0)))
    >>> certificate = certify(step * 1000, delta=1e-5, relation=Neighbouring.ADD_REMOVE)
    >>> certificate.accountant, round(certificate.epsilon, 2)
    ('PLD', 1.83)
    """
    check.inside_unit(ABOUT_DELTA, delta=delta)
    run = normal(charge.certified, relation)
    assumptions = tuple(sorted({*charge.assumptions, *run.assumptions}))
    epsilon, name = _tightest(run, delta)
    if not run.others and any(isinstance(event, LastIterateRun) for event, _ in charge.certified):
        name = "last iterate, Gaussian"
    return Certificate(epsilon, delta, relation, name, assumptions)


@functools.lru_cache(maxsize=1024)
def _tightest(run: NormalForm, delta: float) -> tuple[float, str]:
    if run.lost:
        return math.inf, "none"
    if not run.others:
        return gdp.epsilon(run.mu, delta), "exact Gaussian"
    if run.total_variation <= delta:
        return 0.0, "total variation"
    bounds: list[tuple[float, str]] = [(gdp.epsilon(_unsampled_mu(run), delta), "Gaussian without sampling")]
    event, count = run.others[0]
    rule = rule_for(event, run.relation)
    alone = run.mu == 0 and len(run.others) == count == 1  # the event is the whole run
    if alone and rule.whole is not None:
        bounds.append(rule.whole(event, run.relation, delta))
    if not (alone and rule.composed):
        bounds.append((_refined(run, delta), "PLD"))
        bounds.append((rdp.epsilon(_rdp(run), delta), "RDP"))
    best = min(bounds, key=lambda bound: bound[0])
    return best if math.isfinite(best[0]) else (math.inf, "none")


def pld_epsilon(charge: Charge, *, delta: float, relation: Neighbouring, grid: float | None = None) -> float:
    """Epsilon by loss distributions only: on `grid`, without rounding a schedule, or refined until epsilon settles."""
    check.inside_unit(ABOUT_DELTA, delta=delta)
    run = normal(charge.certified, relation)
    if run.lost:
        return math.inf
    if run.count == 0:
        return 0.0
    if grid is None:
        return _refined(run, delta)
    check.positive("the grid is the distance of two losses", grid=grid)
    sides = _compositions(run, Resolution(grid, _log_tail(run, delta)))
    return max((side.epsilon(delta) for side in sides), default=math.inf)


def rdp_epsilon(charge: Charge, *, delta: float, relation: Neighbouring) -> float:
    """Epsilon by Rényi divergences only."""
    check.inside_unit(ABOUT_DELTA, delta=delta)
    run = normal(charge.certified, relation)
    if run.lost:
        return math.inf
    return rdp.epsilon(_rdp(run), delta) if run.count else 0.0


def renyi_divergences(certified: Counted, relation: Neighbouring) -> Floats:
    """The Rényi divergence of a composition at every order of `rdp.ORDERS`; infinite where nothing is proven."""
    run = normal(canonical(certified), relation)
    return np.full(len(rdp.ORDERS), math.inf) if run.lost else _rdp(run)


def _unsampled_mu(run: NormalForm) -> float:
    """The run as one Gaussian, without the gain of sampling; infinite if there is no such bound."""
    square = run.mu * run.mu
    for event, count in run.others:
        mu = unsampled_mu(event, run.relation)
        square += count * mu * mu
    return math.sqrt(square)


def _rdp(run: NormalForm) -> Floats:
    """The Rényi divergence of the run at every order; infinite if an event has none."""
    total = rdp.gaussian(1 / run.mu) if run.mu > 0 else np.zeros(len(rdp.ORDERS))
    for event, count in bucketed(run, _DISTINCT_ROUGHLY).others:
        rule = rule_for(event, run.relation)
        if rule.rdp is None:
            return np.full(len(rdp.ORDERS), math.inf)
        total = total + count * rule.rdp(event, run.relation, rdp.ORDERS)
    return total


def _parts(run: NormalForm, resolution: Resolution) -> Parts | None:
    """The loss distributions of the run with their counts; None if an event has none."""
    parts: Parts = []
    for event, count in run.others:
        rule = rule_for(event, run.relation)
        if rule.pld is None:
            return None
        parts.extend((pld, times * count) for pld, times in rule.pld(event, run.relation, resolution))
    if run.mu > 0:
        parts.append((gaussian(1 / run.mu, resolution.grid, resolution.gaussian_log_tail), 1))
    return parts


def _compositions(run: NormalForm, resolution: Resolution) -> tuple[ComposedLoss, ...]:
    """Both directions, or one if they agree, or none if an event has no loss distribution."""
    parts = _parts(run, resolution)
    if parts is None:
        return ()
    upper = ComposedLoss([(part.with_without, count) for part, count in parts])
    if all(part.with_without is part.without_with for part, _ in parts):
        return (upper,)
    return (upper, ComposedLoss([(part.without_with, count) for part, count in parts]))


@functools.lru_cache(maxsize=1024)
def _refined(run: NormalForm, delta: float) -> float:
    """Epsilon on a grid so fine that halving it again changes little. Every grid gives an upper bound.

    Only the direction with the larger epsilon is refined.
    """
    rounded, log_tail = bucketed(run, _DISTINCT), _log_tail(run, delta)
    grid = 2 * _first_grid(run, log_tail)
    sides = _compositions(rounded, Resolution(grid, log_tail))
    if not sides:
        return math.inf
    bounds = [side.epsilon(delta) for side in sides]
    grids, work, settled = [grid] * len(sides), [side.work for side in sides], [False] * len(sides)
    point = _PROJECTED_WORK if any(is_projected(event) for event, _ in rounded.others) else 1
    left = _MOST_WORK - point * sum(work)
    for _ in range(_ROUNDS):
        decides = bounds.index(max(bounds))
        left -= 2 * point * work[decides]  # half the grid, twice the points
        if settled[decides] or left < 0:
            break
        grids[decides] /= 2
        before = bounds[decides]
        side = _compositions(rounded, Resolution(grids[decides], log_tail))[decides]
        bounds[decides], work[decides] = min(before, side.epsilon(delta)), side.work
        settled[decides] = not before - bounds[decides] > _MOVE * bounds[decides]
    return max(bounds)


def _log_tail(run: NormalForm, delta: float) -> float:
    """Log of the mass that an event may lose to infinity, far below its share of delta. Rounded to tens, for caches."""
    return 10.0 * math.floor((math.log(delta) - math.log(run.count) - 14) / 10)


def _first_grid(run: NormalForm, log_tail: float) -> float:
    """A power of two at which rounding adds about 0.1 % to the variance of the loss (h^2/6 for each step).

    Coarse grids overstate the variance, so the search starts with a coarse grid and halves it until it settles.
    """
    rough, kept = bucketed(run, _DISTINCT_ROUGHLY), bucketed(run, _DISTINCT)
    spans = [highest_loss(event, run.relation, log_tail) for event, _ in kept.others]
    spans.append(pld_highest_loss(1.0, 1 / run.mu, log_tail) if run.mu > 0 else 0.0)
    grid = 2.0 ** math.ceil(math.log2(max(_COARSEST, max(spans) / _COARSE)))
    points = [_PROJECTED_WORK if is_projected(event) else 1 for event, _ in kept.others]
    finest = max(max(spans) / _FINE, sum(map(operator.mul, spans, [*points, 1])) / _FIRST_WORK)
    for _ in range(24):
        parts = _parts(rough, Resolution(grid, log_tail))
        if parts is None:
            return grid
        losses = sum(count for _, count in parts)
        spread = math.sqrt(_variance(parts))
        longest = _FIRST_WORK / (_WIDTH * (1 + len(kept.others) / 8))
        wanted = max(finest, spread / longest, spread * math.sqrt(6 * _INFLATION / losses))
        if wanted >= grid:
            return max(grid, 2.0 ** math.ceil(math.log2(max(spread, 1e-300) / longest)))
        grid = 2.0 ** math.floor(math.log2(wanted))
    return grid


def _variance(parts: Parts) -> float:
    """Variance of the finite loss in the direction that almost always decides epsilon."""
    total = 0.0
    for part, count in parts:
        mass, losses = part.with_without.mass, part.with_without.losses
        centred = losses - float(mass @ losses)
        total += count * float(mass @ (centred * centred))
    return total
