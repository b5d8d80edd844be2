"""The inverse question, delta at an epsilon: what the tests compare with exact divergences."""

from __future__ import annotations

import math

import numpy as np

from discreet.accounting import accountants, feedback, gdp, rdp
from discreet.accounting import last_iterate as last
from discreet.accounting.charges import Charge
from discreet.accounting.events import ClippedFeedback, LastIterateRun
from discreet.accounting.normal import bucketed, normal
from discreet.accounting.pld import Floats, Resolution
from discreet.accounting.pld_composition import _GAIN, ComposedLoss, LossWindow
from discreet.core import check
from discreet.core.relation import Neighbouring


def delta_at(charge: Charge, *, epsilon: float, relation: Neighbouring) -> float:
    """The smallest delta that is proven for the charge at this epsilon."""
    check.not_negative("epsilon bounds a privacy loss", epsilon=epsilon)
    run = normal(charge.certified, relation)
    if run.lost:
        return 1.0
    if not run.others:
        return gdp.delta(run.mu, epsilon)
    sides = accountants._compositions(
        bucketed(run, accountants._DISTINCT), Resolution(accountants._first_grid(run, -100.0), -100.0)
    )
    bounds = [
        rdp_delta(accountants._rdp(run), epsilon),
        max((composed_delta(side, epsilon) for side in sides), default=1.0),
    ]
    bounds += [run.total_variation, gdp.delta(accountants._unsampled_mu(run), epsilon)]
    if run.mu == 0 and len(run.others) == run.others[0][1] == 1:
        event = run.others[0][0]
        if isinstance(event, ClippedFeedback):
            bounds.append(feedback_delta(event, epsilon=epsilon).value)
        if isinstance(event, LastIterateRun):
            bounds.append(last_iterate_delta(last.bounded_run(event, relation), epsilon=epsilon).value)
    return min(bounds)


def feedback_delta(run: ClippedFeedback, *, epsilon: float, grid: float | None = None) -> feedback.Bound:
    """The smallest certified delta at `epsilon`."""
    bounds = [feedback.Bound(bound(run, epsilon=epsilon), name) for name, bound in feedback.BOUNDS.items()]
    if feedback._mixture_may_win(run, epsilon):
        sides = feedback._composed(run, grid or feedback._grid(epsilon))
        bounds.append(feedback.Bound(max((composed_delta(side, epsilon) for side in sides), default=1.0), "mixture"))
    return min(bounds, key=lambda bound: bound.value)


def last_iterate_delta(run: last.BoundedRun, *, epsilon: float, grid: float | None = None) -> feedback.Bound:
    """The smallest certified delta of the run at `epsilon`, by loss distributions."""
    grid = grid or last._grid(run, epsilon)
    composed = max(composed_delta(ComposedLoss(parts), epsilon) for parts in last._whole(run, grid))
    bounds = [feedback.Bound(value=composed, name="composition, PLD")]
    for m, beta in {pair for at in (1e-3, 1e-6, 1e-9) for pair in last._by_rdp(run, at)[1]}:
        coarser = max(grid, run.highest(math.sqrt(beta) * run.noise) / last._POINTS)
        sides = last._absorbing(run, m, beta, coarser)
        value = 1.0 if sides is None else max(composed_delta(ComposedLoss(parts), epsilon) for parts in sides)
        bounds.append(feedback.Bound(value=value, name="last iterate, PLD"))
    return min(bounds, key=lambda bound: bound.value)


def rdp_delta(divergences: Floats, epsilon: float, orders: rdp.Orders = rdp.ORDERS) -> float:
    """min over a of e^((a-1)(r(a) - epsilon)) (1 - 1/a)^(a-1) / a, at most 1 [Canonne et al. 2020]."""
    a = np.array(orders)
    logs = (a - 1) * (divergences - epsilon + np.log1p(-1 / a)) - np.log(a)
    return min(1.0, math.exp(min(0.0, float(np.min(logs)))))


def composed_delta(loss: ComposedLoss, epsilon: float) -> float:
    """delta of a composition at epsilon >= 0, rounded up, over all tilts that are tried."""
    if loss.infinite > 1 - 1e-12:
        return 1.0
    if epsilon >= loss._highest * loss._grid:
        return loss.infinite

    def chernoff(tilt: float) -> float:
        return loss._log_mgf(tilt) - tilt * epsilon

    best, log_delta = 1.0, min(chernoff(loss._best_tilt(chernoff)), 0.0) - 10.0
    for window in loss._windows(chernoff, log_delta):
        before, best = best, min(best, window_delta(window, epsilon) * loss._up)
        if window.is_accurate(epsilon, best) or (before < 1 and best > (1 - _GAIN) * before):
            break
    return best


def window_delta(window: LossWindow, epsilon: float) -> float:
    """delta at this epsilon; 1 below the window, the last value above it."""
    position = epsilon / window.grid - window.first
    if position < 0:
        return 1.0
    index = min(math.floor(position), len(window.deltas) - 2)
    beyond = (position - index) * window.grid
    share = min(math.exp(beyond - window.grid) * math.expm1(-beyond) / math.expm1(-window.grid), 1.0)
    return float(window.deltas[index] + (window.deltas[index + 1] - window.deltas[index]) * share)
