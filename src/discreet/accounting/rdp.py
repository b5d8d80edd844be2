"""Rényi divergences: exact at integer orders, by quadrature at other orders. The larger direction counts.

At other orders the binomial series alternates and cancels; quadrature of a positive integrand does not.
"""

import functools
import math

import numpy as np

from discreet.accounting import special
from discreet.accounting.pld import Floats

Orders = tuple[float, ...]

# Low orders serve large epsilons, high orders small ones.
ORDERS: Orders = (
    *(1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0),
    *(2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5, 10.0),
    *(float(order) for order in range(11, 65)),
    *(72.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0),
)
_NODES = 50_000  # the longest quadrature; beyond it fractional orders are left out (infinite)
_LARGEST_FIXED = 64  # the highest order of the bound for a fixed size
_REVERSED = 64.0  # up to this order the reverse direction is computed too; it never decides (Theorem 5)


def gaussian(noise: float, orders: Orders = ORDERS) -> Floats:
    """a / (2 z^2) for every order a."""
    return np.array(orders) / (2 * noise * noise) if noise > 0 else np.full(len(orders), math.inf)


def sampled_gaussian(rate: float, noise: float, orders: Orders = ORDERS) -> Floats:
    """The larger of D_a(P||Q) and D_a(Q||P), P = (1-q) N(0, z^2) + q N(1, z^2), Q = N(0, z^2).

    >>> [round(float(value), 10) for value in sampled_gaussian(0.25, 4.0, (1.1, 2.0))]
    [0.0021887101, 0.0040228014]
    """
    if rate == 1 or noise == 0:
        return gaussian(noise, orders)
    return np.array(_sampled(rate, noise, orders))


@functools.lru_cache(maxsize=4096)
def _sampled(rate: float, noise: float, orders: Orders) -> tuple[float, ...]:
    a = np.array(orders)
    whole = a == np.floor(a)
    values = np.full(len(a), math.inf)
    values[whole] = [_log_moment(rate, noise, int(order)) / (order - 1) for order in a[whole]]
    values[~whole] = forward(rate, noise, a[~whole])
    low = a <= _REVERSED
    reverse = backward(rate, noise, a[low])
    values[low] = np.maximum(values[low], np.where(np.isfinite(reverse), reverse, 0.0))
    return tuple(float(value) for value in np.maximum(values, 0.0))


def _log_moment(rate: float, noise: float, order: int) -> float:
    """log sum_k binom(a, k) (1-q)^(a-k) q^k e^(k (k-1) / (2 z^2)) [Mironov et al. 2019, Section 3.3]."""
    k, log_binomial = _binomials(order)
    terms = log_binomial + (order - k) * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) / (2 * noise**2)
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum()))


@functools.lru_cache(maxsize=2048)
def _binomials(order: int) -> tuple[Floats, Floats]:
    """k and log binom(a, k) for k = 0..a."""
    k = np.arange(order + 1, dtype=np.float64)
    return k, special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)


def forward(rate: float, noise: float, orders: Floats) -> Floats:
    """D_a(P||Q) = log E_Q[(P/Q)^a] / (a - 1) by quadrature. The integrand has its mass between 0 and a."""
    if len(orders) == 0:
        return orders
    step = min(noise / 8, noise * noise / 2)
    span = (-14 * noise, 14 * noise + float(orders.max()))
    return _log_expectation(rate, noise, orders, span, step) / (orders - 1)


def backward(rate: float, noise: float, orders: Floats) -> Floats:
    """D_a(Q||P) = log E_Q[(P/Q)^(1-a)] / (a - 1) by quadrature.

    The integrand is log-concave with its peak in [-(a-1) q, 0] and is narrower than the Gaussian.
    """
    if len(orders) == 0:
        return orders
    most = float(orders.max()) - 1
    step = min(noise / 8, noise * noise / 2) / math.sqrt(1 + most / (4 * noise * noise))
    span = (-14 * noise - most * rate, 14 * noise)
    return _log_expectation(rate, noise, 1 - orders, span, step) / (orders - 1)


def _log_expectation(rate: float, noise: float, powers: Floats, span: tuple[float, float], step: float) -> Floats:
    """log E_Q[(P/Q)^power] by the trapezoidal rule, which converges exponentially here.

    The nearest singularity of P/Q is at a distance pi z^2 from the real line; the scale of the Gaussian is z.
    """
    low, high = span
    nodes = math.ceil((high - low) / step)
    if nodes > _NODES:
        return np.full(len(powers), math.inf)
    x = np.linspace(low, high, nodes + 1)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
    log_density = -(x**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    log_width = math.log((high - low) / nodes)
    return np.asarray(special.logsumexp(log_density + powers[:, None] * log_ratio, axis=1) + log_width)


def without_replacement(rate: float, noise: float, orders: Orders = ORDERS) -> Floats:
    """A bound for one batch of a fixed size, replace-one [Wang, Balle, Kasiviswanathan 2019, Theorem 27].

    `noise` is relative to the change that replacing one record causes. Infinite at orders above 64 or not integer.

    >>> round(float(without_replacement(0.01, 1.0, (8.0,))[0]), 6)
    0.002684
    """
    if rate == 1 or noise == 0:
        return gaussian(noise, orders)
    known = {order for order in orders if order.is_integer() and order <= _LARGEST_FIXED}
    return np.array([_fixed_size(rate, noise, int(order)) if order in known else math.inf for order in orders])


@functools.lru_cache(maxsize=4096)
def _fixed_size(rate: float, noise: float, order: int) -> float:
    """log(1 + sum_{i=2}^a binom(a, i) q^i s_i) / (a - 1).

    s_i = min(4 sqrt(B(2 floor(i/2)) B(2 ceil(i/2))), 2 e^(i (i-1) / (2 z^2))), B(l) = E_Q (P/Q - 1)^l.
    """
    i, log_binomial = _binomials(order)
    i, log_binomial = i[2:], log_binomial[2:]
    central = _log_central_moments(noise)
    lower, upper = (i // 2).astype(int), ((i + 1) // 2).astype(int)
    s = np.minimum(math.log(4) + (central[lower] + central[upper]) / 2, math.log(2) + i * (i - 1) / (2 * noise**2))
    terms = log_binomial + i * math.log(rate) + s
    top = float(terms.max())
    log_excess = top + math.log(float(np.exp(terms - top).sum()))
    return float(np.logaddexp(0.0, log_excess)) * (1 + 1e-9) / (order - 1)


@functools.lru_cache(maxsize=64)
def _log_central_moments(noise: float) -> Floats:
    """log E_Q (P/Q - 1)^(2k), P = N(1, z^2), Q = N(0, z^2), k = 0.._LARGEST_FIXED/2; infinite if that takes too long.

    The trapezoidal rule on a positive, entire integrand does not cancel, unlike the alternating sum over binomials. Its
    error, below 1e-12 relative, is covered by the added 1e-9.
    """
    powers, mu, step = np.arange(0, _LARGEST_FIXED + 1, 2), 1 / noise, 0.1
    span = _LARGEST_FIXED * mu + 24
    if span / step > _NODES:
        return np.full(len(powers), math.inf)
    x = np.arange(-12.0, span - 12.0 + step, step)
    gain = mu * x - mu * mu / 2
    with np.errstate(divide="ignore"):
        log_away = np.maximum(gain, 0.0) + np.log(-np.expm1(-np.abs(gain)))  # log |e^gain - 1|
    log_weight = -x * x / 2 + math.log(step / math.sqrt(2 * math.pi)) + 1e-9
    logs = [special.logsumexp(power * log_away + log_weight) for power in powers[1:].tolist()]
    return np.array([0.0, *logs])


def epsilon(rdp: Floats, delta: float, orders: Orders = ORDERS) -> float:
    """min over a of r(a) + log(1 - 1/a) - log(a delta)/(a - 1), at least 0 [Canonne et al. 2020]."""
    a = np.array(orders)
    values = rdp + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return max(0.0, float(np.min(values)))
