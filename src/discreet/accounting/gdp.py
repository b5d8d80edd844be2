"""Exact privacy of one Gaussian release with distance mu = shift / standard deviation (mu-GDP).

Gaussian releases, adaptive or not, compose to ONE: mu^2 = sum mu_i^2 [Dong et al. 2022, Corollary 3.3].
"""

from __future__ import annotations

import math

from discreet.accounting import special


def delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) = Phi(-u) - e^epsilon Phi(-u - mu), u = epsilon/mu - mu/2.

    Both terms share the factor phi(u): phi(u) (R(u) - R(u + mu)) with Mills' ratio R, free of cancellation.

    >>> round(delta(1.0, 4.377178), 9)
    1e-05
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    u = epsilon / mu - mu / 2
    if u <= 0:
        return float(special.ndtr(-u) - math.exp(epsilon + float(special.log_ndtr(-u - mu))))
    root = math.sqrt(2)
    ratios = float(special.erfcx(u / root) - special.erfcx((u + mu) / root))
    return max(0.0, 0.5 * math.exp(-u * u / 2) * ratios)


def epsilon(mu: float, delta_target: float) -> float:
    """The smallest epsilon >= 0 with delta(mu, epsilon) <= delta_target, from above.

    >>> round(epsilon(1.0, 1e-5), 5)
    4.37718
    """
    if math.isinf(mu):
        return math.inf
    if delta(mu, 0.0) <= delta_target:
        return 0.0
    high = mu * (mu / 2 + 1)
    while delta(mu, high) > delta_target:
        high *= 2
        if math.isinf(high):
            return math.inf
    low = 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if delta(mu, middle) > delta_target else (low, middle)
    return high
