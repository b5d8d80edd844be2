"""Rényi divergences of the last iterate at one order, as the paper's figures plot them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from discreet.accounting.last_iterate import BETAS, candidates, left_over
from discreet.accounting.pld import Floats
from discreet.accounting.projected import gaussian_profile
from discreet.accounting.rdp import ORDERS

_EDGE = 1e-3  # beta stays this far from 0 and 1


def fixed_size_rdp(*, rate: float, noise: float, orders: tuple[float, ...] = ORDERS) -> Floats:
    """Renyi divergence of any pair with delta(log(1 + q (e^t - 1))) <= q delta_G(t) in both directions.

    1 + a (a-1) int_0^inf (e^{(a-1) y} + e^{-a y}) h(y) dy, y = log(1 + q (e^t - 1)), h = q delta_G(t; 1/z).

    >>> round(float(fixed_size_rdp(rate=0.25, noise=2.0, orders=(1.1,))[0]), 6)
    0.011547
    """
    return np.array([_fixed_size(rate, noise, order) for order in orders])


@functools.lru_cache(maxsize=65536)
def _fixed_size(rate: float, noise: float, order: float) -> float:
    mu = 1 / noise
    if rate == 1:
        return order * mu * mu / 2
    panels = math.ceil(4 * (order * mu + 14))
    if panels > 20_000:
        return math.inf
    nodes, weights = np.polynomial.legendre.leggauss(12)
    width = mu / 4
    t = ((np.arange(panels)[:, None] + (nodes + 1) / 2) * width).ravel()
    moved = np.logaddexp(math.log1p(-rate), math.log(rate) + t)
    logs = np.logaddexp((order - 1) * moved, -order * moved) + _log_gaussian_profile(t, mu)
    logs += 2 * math.log(rate) + t - moved  # h = q delta_G, dy = q e^t / e^y dt
    total = float(special.logsumexp(logs + np.log(np.tile(weights, panels) * width / 2)))
    return float(np.logaddexp(0.0, math.log(order * (order - 1)) + total + 1e-9)) / (order - 1)


def _log_gaussian_profile(t: Floats, mu: float) -> Floats:
    """log delta_G(t; mu), also where delta_G itself would vanish."""
    u = np.maximum(t / mu - mu / 2, 0.0)
    tail = special.erfcx(u / math.sqrt(2)) - special.erfcx((u + mu) / math.sqrt(2))
    near = np.log(np.maximum(gaussian_profile(t, mu), 1e-300))
    return np.where(u > 0, -u * u / 2 + np.log(0.5 * tail), near)


def rdp_at(
    order: float, *, step: Callable[[float], float], noise: float, steps: int, shift: float, factor: float
) -> tuple[float, int, float]:
    """The least RDP bound at one order, and its (m, beta); m = steps and beta = 1 mean composition.

    `step` gives the divergence of one step at this order for a noise multiplier. Any m and beta are valid: a
    poor search loses tightness only.
    """
    best = (steps * step(noise), steps, 1.0)
    m = candidates(steps)
    shifted = order / 2 * shift * shift * left_over(m, factor)

    def at(beta: float, counts: Floats, rest: Floats) -> tuple[float, int]:
        values = counts * step(math.sqrt(beta) * noise) + rest / (1 - beta)
        index = int(np.argmin(values))
        return float(values[index]), int(counts[index])

    def objective(beta: float) -> float:
        return at(beta, m, shifted)[0]

    start = min(BETAS, key=objective)
    low, high = max(_EDGE, start - 0.1), min(1 - _EDGE, start + 0.1)
    found = optimize.minimize_scalar(objective, bounds=(low, high), method="bounded", options={"xatol": 1e-4})
    beta = min((start, float(found.x)), key=objective)
    near = at(beta, m, shifted)[1]
    around = np.arange(
        max(1, math.floor(near * 0.97) - 2), min(steps, math.ceil(near * 1.03) + 2) + 1, dtype=np.float64
    )
    if len(around) > 4000:
        around = np.unique(np.round(np.linspace(around[0], around[-1], 4000)))
    value, count = at(beta, around, order / 2 * shift * shift * left_over(around, factor))
    return min(best, (value, count, beta))
