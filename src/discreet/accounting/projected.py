"""The projected Gaussian: a sampled Gaussian whose sensitivity s is random and public.

With a dense Gaussian matrix A, drawn for each step and published, y = A^T S / sqrt(p) + N(0, (noise * clip)^2 I) moves
by s * clip when a record of norm clip is added or removed, s^2 ~ chi2_p / p. So the profile of one step is

    delta(epsilon) = E_s delta_s(epsilon),     delta_s that of the sampled Gaussian of shift mu = s / noise,

and with several layers of widths p_l the same bound holds with s^2 = max_l chi2_{p_l} / p_l. No width, or only infinite
ones, means no projection: the plain sampled Gaussian. Proof: docs/proofs/ProjectedGaussian.md.

`feedback` shares the profile of a sampled Gaussian (`profile`) and its discretisation (`pld_from_profiles`).
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from discreet.accounting import special
from discreet.accounting.pld import Floats, Pld, Pmf
from discreet.core.bisection import least, least_whole

_FINE = 64  # sub-buckets of a bucket: they only round the mean up
_POINTS = 1_000_000  # the longest grid; what lies beyond is charged as infinite loss
_LONGEST_QUADRATURE = 2e3  # order * mu^2 at the largest s; beyond it an order between two whole ones is left out
COARSEST = 100.0  # beyond it e^grid leaves the range of floats; losses that need such grids have no useful bound
_LOWEST = 35.0  # a loss below -x has probability <= e^-x under the first distribution of the pair


def gaussian_profile(t: Floats, mu: float | Floats) -> Floats:
    """delta(t) of N(mu, 1) against N(0, 1): Phi(mu/2 - t/mu) - e^t Phi(-mu/2 - t/mu), without cancellation.

    With u = t/mu - mu/2 it is e^{-u^2/2} (m(u) - m(u + mu)), m(u) = Phi(-u) e^{u^2/2}.

    >>> round(float(gaussian_profile(np.array([4.37718]), 1.0)[0]), 9)
    1e-05
    """
    if np.ndim(mu) == 0 and mu == 0:
        return np.maximum(0.0, -np.expm1(np.minimum(t, 0.0)))
    t, mu = np.broadcast_arrays(t, mu)
    u = t / mu - mu / 2
    v = u + mu
    delta = np.empty_like(u)
    left, right = v <= 0, u > 0
    middle = ~(left | right)
    density = np.exp(-u * u / 2)
    delta[right] = density[right] * (_mills(u[right]) - _mills(v[right]))
    delta[middle] = special.ndtr(-u[middle]) - density[middle] * _mills(v[middle])
    delta[left] = special.ndtr(-u[left]) - np.exp(t[left]) * special.ndtr(-v[left])
    return np.clip(delta, 0.0, 1.0)


def _mills(u: Floats) -> Floats:
    """Phi(-u) e^{u^2/2}."""
    return np.asarray(0.5 * special.erfcx(u / math.sqrt(2)))


def _amplified(epsilons: Floats, rate: float) -> tuple[Floats, Floats]:
    """T(epsilon) = log(1 + (e^epsilon - 1)/rate) at +epsilon and at -epsilon, for epsilon >= 0.

    -inf where the argument is <= 0, because no outcome has so small a loss.
    """
    small = np.minimum(epsilons, 1.0)
    ahead = np.where(
        epsilons < 1,
        np.log1p(np.expm1(small) / rate),
        epsilons - math.log(rate) + np.log1p((rate - 1) * np.exp(-epsilons)),
    )
    if rate == 1:
        return ahead, -epsilons
    inside = np.expm1(-epsilons) / rate
    possible = inside > -1
    return ahead, np.where(possible, np.log1p(np.where(possible, inside, 0.0)), -np.inf)


def profile(epsilons: Floats, *, rate: float, mu: float) -> tuple[Floats, Floats]:
    """Both directions of the sampled Gaussian, (1 - rate) N(0, 1) + rate N(mu, 1) against N(0, 1).

    with || without: rate * delta_G(T(epsilon)), T(epsilon) = log(1 + (e^epsilon - 1)/rate);
    without || with: (1 - (1-rate) e^epsilon) delta_G(-T(-epsilon)). For epsilon >= 0.
    """
    ahead, back = _amplified(epsilons, rate)
    possible = np.isfinite(back)
    added = np.zeros_like(epsilons)
    added[possible] = _left(epsilons[possible], rate) * gaussian_profile(-back[possible], mu)
    return rate * gaussian_profile(ahead, mu), added


def _left(epsilons: Floats, rate: float) -> Floats:
    """1 - (1 - rate) e^epsilon, where it is positive."""
    if rate == 1:
        return np.ones_like(epsilons)
    return np.maximum(0.0, -np.expm1(epsilons + math.log1p(-rate)))


def pld_from_profiles(*, removed: Floats, added: Floats, grid: float) -> Pld:
    """The pessimistic (connect-the-dots) PLD of a pair, from both its profiles at 0, grid, 2 grid, ...

    `removed` is the profile of (P, Q), `added` that of (Q, P). At negative losses the profile is used without its
    trivial part 1 - e^epsilon, which does not affect second differences, so nothing cancels.
    """
    forward = _pmf(removed, added, grid)
    return Pld(forward, forward if removed is added else _pmf(added, removed, grid))


def _pmf(above: Floats, dual: Floats, grid: float) -> Pmf:
    above = above[: max(1, int(np.count_nonzero(above))) + 1]  # from its first zero on the profile is zero
    lowest = min(len(dual) - 1, math.ceil(_LOWEST / grid))
    vanished = np.flatnonzero(dual[: lowest + 1] == 0)
    if len(vanished):
        lowest = max(1, int(vanished[0]))
    rest = np.exp(-grid * np.arange(lowest + 1)) * dual[: lowest + 1]  # delta(-x) - (1 - e^-x) = e^-x dual(x)
    step_up, step_down = math.expm1(grid), -math.expm1(-grid)
    up = np.diff(above)
    down = -np.diff(rest)[::-1]  # increments of the rest along increasing losses
    masses = np.zeros(lowest + len(above))
    masses[0] = -rest[-1] + down[0] / step_up
    masses[1:lowest] = (down[1:] - math.exp(grid) * down[:-1]) / step_up
    masses[lowest] = 1 + (up[0] - math.exp(grid) * down[-1]) / step_up
    masses[lowest + 1 : -1] = (up[1:] - math.exp(grid) * up[:-1]) / step_up
    masses[-1] = -up[-1] / step_down
    return Pmf(grid, -lowest, np.maximum(masses, 0.0), float(above[-1]))


def reach_on_grid(delta_at: Callable[[float], float], grid: float, enough: float) -> int:
    """The first grid index where the profile is at most `enough`; at most the longest grid."""
    high = 2
    while high < _POINTS and delta_at(high * grid) > enough:
        high *= 2
    return max(2, least_whole(lambda index: delta_at(index * grid) <= enough, high // 2 + 1, min(high, _POINTS)))


@functools.lru_cache(maxsize=64)
def _buckets(dims: tuple[float, ...], nodes: int, tail: float) -> tuple[Floats, Floats, float]:
    """Edges of s, the mass rounded up to each edge, and the mass beyond the last edge (at most `tail`)."""
    finite = Counter(p for p in dims if math.isfinite(p))
    floor = 1.0 if any(math.isinf(p) for p in dims) else 0.0

    def log_below(s: Floats) -> Floats:
        total = np.zeros_like(s)
        for p, times in finite.items():
            with np.errstate(divide="ignore"):
                upper = special.chdtrc(p, p * s * s)
                total += times * np.where(upper < 0.5, np.log1p(-upper), np.log(special.chdtr(p, p * s * s)))
        return np.where(s >= floor, total, -np.inf)

    lowest = max(floor, least(lambda s: float(log_below(np.array([s]))[0]) > math.log(tail)))
    highest = least(lambda s: s > floor and -math.expm1(float(log_below(np.array([s]))[0])) <= tail)
    edges = np.linspace(lowest, highest, nodes * _FINE + 1)
    below = log_below(edges)
    cdf, rest = np.exp(below), -np.expm1(below)
    inner = np.where(rest[:-1] < 0.5, rest[:-1] - rest[1:], cdf[1:] - cdf[:-1])
    return edges, np.concatenate([[cdf[0]], np.maximum(inner, 0.0)]), float(rest[-1])


def _nodes(dims: tuple[float, ...], noise: float, nodes: int, tail: float) -> tuple[Floats, Floats, float]:
    """Few values of s and their weights, with E_s delta_s <= sum_j weight_j delta_{s_j} at every epsilon.

    delta_s is convex in w(s) = Phi(s / (2 noise)), so mass between two nodes may move to them if E w does not decrease.
    The inner edges, on which E w is counted, are rounded up.
    """
    if all(math.isinf(p) for p in dims):
        return np.array([1.0]), np.array([1.0]), 0.0
    edges, masses, beyond = _buckets(dims, nodes, tail)
    points = edges[::_FINE]
    weights = np.zeros(len(points))
    weights[0] = masses[0]
    above = special.ndtr(-edges / (2 * noise))
    inner = masses[1:].reshape(nodes, _FINE)
    left, right = above[:-1:_FINE, None], above[_FINE::_FINE, None]
    width = left - right
    share = np.where(width > 1e-290, (left - above[1:].reshape(nodes, _FINE)) / np.maximum(width, 1e-290), 1.0)
    share = np.minimum(1.0, share * (1 + 1e-9))
    weights[1:] += (inner * share).sum(axis=1)
    weights[:-1] += (inner * (1 - share)).sum(axis=1)
    return points, weights, beyond


def _mixed(epsilons: Floats, rate: float, noise: float, mixture: tuple[Floats, Floats, float]) -> tuple[Floats, Floats]:
    points, weights, beyond = mixture
    ahead, back = _amplified(epsilons, rate)
    support = int(np.count_nonzero(np.isfinite(back)))
    behind, left = -back[:support], _left(epsilons[:support], rate)
    far = max(12.0, math.sqrt(-2 * math.log(beyond)) + 2 if beyond > 0 else 0.0)
    never = beyond + math.exp(-far * far / 2)  # tails cut below count as infinite loss
    removed, added = np.full(len(epsilons), never), np.full(len(epsilons), never)
    for s, weight in zip(points, weights, strict=True):
        mu = float(s / noise)
        end, limit = (int(np.searchsorted(t, mu * (far + mu / 2), side="right")) for t in (ahead, behind))
        removed[:end] += weight * rate * _ascending(ahead[:end], mu)
        added[:limit] += weight * left[:limit] * _ascending(behind[:limit], mu)
    return np.minimum(removed, 1.0), np.minimum(added, 1.0)


def _ascending(t: Floats, mu: float) -> Floats:
    """`gaussian_profile` for increasing t >= 0, with slices instead of masks: faster in the inner loop."""
    u = t / mu - mu / 2
    split = int(np.searchsorted(t, mu * mu / 2, side="right"))
    density = np.exp(-u * u / 2)
    second = density * _mills(u + mu)
    delta = np.concatenate([special.ndtr(-u[:split]), density[split:] * _mills(u[split:])]) - second
    return np.clip(delta, 0.0, 1.0)


@functools.lru_cache(maxsize=64)
def pld_step(
    *, rate: float, noise: float, dims: tuple[float, ...], grid: float, tail: float = 1e-13, nodes: int = 200
) -> Pld:
    """The privacy loss distribution of one step, both directions, pessimistic on `grid`.

    Guarantee: its profile is at least that of the step at every epsilon. s above its upper `tail` quantile counts as
    infinite loss. `dims` are the widths of the layers.

    >>> step = pld_step(rate=1.0, noise=1.1, dims=(2,), grid=1e-2).with_without
    >>> mass = step.infinite + step.mass @ np.maximum(0.0, 1 - np.exp(9.108 - step.losses))  # delta(9.108)
    >>> bool(1.0e-5 < mass < 1.01e-5)
    True
    """
    if grid > COARSEST:
        return Pld.unbounded(grid)
    mixture = _nodes(dims, noise, nodes, tail)
    last = reach_on_grid(lambda epsilon: _removed(epsilon, rate, noise, mixture), grid, tail / 10)
    removed, added = _mixed(grid * np.arange(last + 1, dtype=np.float64), rate, noise, mixture)
    beyond = added[-1]
    support = int(np.argmax(added <= beyond)) + 1 if rate < 1 else last
    return pld_from_profiles(removed=removed, added=added[: max(support, 2) + 1], grid=grid)


def _removed(epsilon: float, rate: float, noise: float, mixture: tuple[Floats, Floats, float]) -> float:
    """The profile of with || without at one epsilon, without the mass beyond the last node."""
    ahead = _amplified(np.array([epsilon]), rate)[0]
    return rate * float(mixture[1] @ gaussian_profile(ahead, mixture[0] / noise))


def highest_loss(*, rate: float, noise: float, dims: tuple[float, ...], tail: float) -> float:
    """About the highest finite loss that `pld_step` keeps, on any grid."""
    mixture = _nodes(dims, noise, 200, tail)
    unit = 2.0**-10
    while unit < 1e12 and _removed(unit, rate, noise, mixture) > tail / 10:
        unit *= 1.25
    return unit


def rdp(*, rate: float, noise: float, dims: tuple[float, ...], orders: Sequence[float]) -> Floats:
    """Rényi divergence of one step at each order; the smallest width is the worst case.

    Integer orders a: 1 + sum_{k=2}^a binom(a,k) (1-q)^(a-k) q^k (M_k - 1), M_k = (1 - k(k-1)/(p z^2))^(-p/2); other
    orders by quadrature over s and the noise. Infinite from a(a-1) >= p z^2 on.

    >>> rdp(rate=0.25, noise=4.0, dims=(), orders=(1.1, 1.5, 2)).round(8).tolist()
    [0.00218871, 0.00299894, 0.0040228]
    """
    p = min(dims, default=math.inf)
    return np.array([_divergence(rate, noise, p, float(order)) for order in orders])


@functools.lru_cache(maxsize=65536)
def _divergence(rate: float, noise: float, p: float, order: float) -> float:
    if order * (order - 1) >= p * noise * noise:
        return math.inf
    if rate == 1:
        return _log_moment(order, noise, p) / (order - 1)
    if order == int(order):
        log_excess = _whole(rate, noise, p, int(order))
    elif order > 3 and math.isfinite(p) and math.ceil(order) * math.floor(order) < 0.7 * p * noise * noise:
        return _between(rate, noise, p, order)
    else:
        log_excess = _real(rate, noise, p, order)
    log_moment = float(np.logaddexp(0.0, log_excess)) if log_excess > -30 else math.exp(log_excess)
    return log_moment / (order - 1)


def _between(rate: float, noise: float, p: float, order: float) -> float:
    """An upper bound without quadrature: (a - 1) times the divergence is convex in the order a."""
    low, high = math.floor(order), math.ceil(order)
    ends = [(a - 1) * _divergence(rate, noise, p, float(a)) for a in (low, high)]
    return ((high - order) * ends[0] + (order - low) * ends[1]) / (order - 1)


def _log_moment(k: float, noise: float, p: float) -> float:
    """log E_s exp(k (k-1) s^2 / (2 z^2)), s^2 ~ chi2_p / p."""
    x = k * (k - 1) / (noise * noise)
    return x / 2 if math.isinf(p) else -p / 2 * math.log1p(-x / p)


def _whole(rate: float, noise: float, p: float, order: int) -> float:
    """log(moment - 1) at an integer order; every term is positive."""
    k = np.arange(2, order + 1)
    logs = np.array([_log_moment(i, noise, p) for i in k.tolist()])
    choose = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    weights = choose + (order - k) * math.log1p(-rate) + k * math.log(rate)
    return float(special.logsumexp(weights + logs + np.log(-np.expm1(-logs))))


def _real(rate: float, noise: float, p: float, order: float) -> float:
    """log(moment - 1) at a real order; infinite if the quadrature would be too long."""
    if math.isinf(p):
        return _inner(rate, 1 / noise, order)

    def log_density(y: Floats) -> Floats:  # of y = log s
        constant = math.log(2) - float(special.gammaln(p / 2)) + p / 2 * math.log(p / 2)
        return constant + p * y - p / 2 * np.exp(2 * y)

    y = np.linspace(math.log(1e-16), math.log(1e4), 40_001)
    density, mu = log_density(y), np.exp(y) / noise
    quadratic = order * (order - 1) / 2 * mu * mu
    low = density + np.minimum(np.log(quadratic) + 2 * math.log(rate), 0.0)
    high = density + np.maximum(np.log(quadratic), quadratic)
    kept = np.flatnonzero(high > low.max() - 45)
    count = 321 if p < 8 else 97  # the narrow bump of a large width needs few
    y = np.linspace(y[max(0, kept[0] - 1)], y[min(len(y) - 1, kept[-1] + 1)], count)
    if order * math.exp(2 * y[-1]) / noise**2 > _LONGEST_QUADRATURE:
        return math.inf
    logs = np.array([_inner(rate, m, order) for m in (np.exp(y) / noise).tolist()])
    return float(special.logsumexp(log_density(y) + logs)) + math.log(y[1] - y[0]) + 1e-6


def _inner(rate: float, mu: float, order: float) -> float:
    """log E_x [r^a - 1 - a (r - 1)], r = (1-q) + q e^{mu x - mu^2/2}, x ~ N(0, 1), by the trapezoidal rule.

    The subtracted part has mean zero and leaves a positive integrand, so small moments keep their precision. The
    integrand is analytic up to a distance pi/mu from the real line, which determines the step.
    """
    step = min(0.2, 0.4 / mu)
    x = np.arange(-11.0, order * mu + 11.0 + step, step)
    gain = mu * x - mu * mu / 2
    log_ratio = np.where(gain < 1, np.log1p(rate * np.expm1(np.minimum(gain, 1.0))), 0.0)
    large = gain >= 1
    log_ratio[large] = np.logaddexp(math.log1p(-rate), math.log(rate) + gain[large])
    with np.errstate(divide="ignore"):
        logs = np.log(_convex(np.minimum(log_ratio, 50.0 / order), order))
    logs = np.where(log_ratio * order > 50.0, order * log_ratio, logs)
    return float(special.logsumexp(logs - x * x / 2)) + math.log(step / math.sqrt(2 * math.pi)) + 1e-9


def _convex(log_ratio: Floats, order: float) -> Floats:
    """e^{a l} - 1 - a (e^l - 1), by its series where it would cancel."""
    a, l = order, log_ratio
    series = l * l * (a * (a - 1) / 2 + l * (a * (a * a - 1) / 6 + l * a * (a**3 - 1) / 24))
    return np.where(np.abs(l) * a < 1e-3, series, np.expm1(a * l) - a * np.expm1(l))
