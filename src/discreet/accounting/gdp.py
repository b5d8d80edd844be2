"""Exact privacy of one Gaussian release with distance mu = shift / standard deviation (mu-GDP).

Gaussian releases, adaptive or not, compose to one: mu^2 = sum mu_i^2 [Dong et al. 2022, Corollary 3.3].
"""

import math

from discreet.accounting import special
from discreet.core.bisection import least


def delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) = Phi(-u) - e^epsilon Phi(-u - mu), u = epsilon/mu - mu/2.

    Computed as phi(u) (R(u) - R(u + mu)) with Mills' ratio R, which does not cancel.

    >>> round(delta(1.0, 4.377178), 9)
    1e-05
    """
    if mu == 0:
        return 0.0
    if not mu < math.inf:  # also NaN, which is no bound
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
    if not mu < math.inf:
        return math.inf
    return least(lambda epsilon: delta(mu, epsilon) <= delta_target, start=mu * (mu / 2 + 1))
