"""Clipped error feedback (DiceSGD): bounds for a whole run, in which every release depends on a hidden error.

    v_t = (1/batch) sum_i clip(g_i, clip) + clip(e_t, feedback_clip),   released: v_t + N(0, noise_std^2 I)
    e_{t+1} = e_t + (1/batch) sum_i g_i - v_t,   e_0 = 0, never released

Four bounds hold under add/remove in both directions; the smallest counts.

    mixture    every step is N(0) against (1-q) N(2 C2) + q N(2 C2 + C1/batch), composed
    one-shot   a record that is never sampled changes nothing: one Gaussian, sampled at rate 1 - (1-q)^T
    energy     if `preclip` G bounds every gradient, n inclusions move the run by sqrt(n) C1 + n (G - C1)
    patterns   both at once, over the step of the first inclusion and the number of later ones

`clip` must be the projection on a ball, min(1, C/norm): automatic clipping (Algorithm 4) has no energy bound. Proof:
docs/proofs/ClippedFeedback.md.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from discreet.accounting import special
from discreet.accounting.events import ClippedFeedback
from discreet.accounting.pld import Floats, Parts, Pld, Resolution
from discreet.accounting.pld_composition import ComposedLoss
from discreet.accounting.projected import COARSEST, gaussian_profile, pld_from_profiles, profile, reach_on_grid
from discreet.core.bisection import least, least_whole
from discreet.core.relation import Neighbouring

_SLACK = 1e-9  # relative: far above the rounding of the sums below
_FAR = 1e-20  # loss mass of one step that is charged as infinite


@final
@dataclass(frozen=True)
class Bound:
    """A certified number and the name of the argument that proves it."""

    value: float
    name: str


def held(run: ClippedFeedback) -> float:
    """How far the clipped error can move, in standard deviations of the noise: 2 C2 / sigma."""
    return 2 * run.feedback_clip / run.noise_std_on_mean


def fresh(run: ClippedFeedback) -> float:
    """How far one inclusion moves its own step, in standard deviations of the noise: C1 / (batch sigma)."""
    return run.clip / (run.batch * run.noise_std_on_mean)


def epsilon(run: ClippedFeedback, *, delta: float, grid: float | None = None) -> Bound:
    """The smallest certified epsilon at `delta`.

    >>> run = ClippedFeedback(rate=0.02, steps=100, batch=1000, clip=1, feedback_clip=1, noise_std_on_mean=80)
    >>> found = epsilon(run, delta=1e-5)
    >>> round(found.value, 3), found.name
    (0.742, 'patterns')
    """
    bounds = [Bound(bound_epsilon(bound, run, delta=delta), name) for name, bound in BOUNDS.items()]
    best = min(bound.value for bound in bounds)
    if _mixture_may_win(run, best):
        sides = _composed(run, grid or _grid(best))
        bounds.append(Bound(max((side.epsilon(delta) for side in sides), default=math.inf), "mixture"))
    return min(bounds, key=lambda bound: bound.value)


def bound_epsilon(bound: Callable[..., float], run: ClippedFeedback, *, delta: float) -> float:
    """The epsilon of one of the `BOUNDS` at `delta`."""
    return least(lambda epsilon: bound(run, epsilon=epsilon) <= delta, tolerance=1e-10, limit=1e9)


def _mixture_may_win(run: ClippedFeedback, epsilon: float) -> bool:
    """Whether the mixture, whose expected loss is at least T held^2 / 2, can be the smallest bound.

    Leaving a bound out is sound. Above 100 a smaller epsilon is useless, and the composition takes seconds.
    """
    return epsilon < 100 and run.steps * held(run) ** 2 / 2 < 4 * epsilon + 50


def _grid(about: float) -> float:
    """A grid on which an epsilon of this size changes by less than 0.5 % when the grid is halved."""
    return min(5e-3, max(1e-4, about / 2000))


@functools.lru_cache(maxsize=64)
def mixture_step(*, rate: float, held: float, fresh: float, grid: float) -> Pld:
    """One step: (1-q) N(a) + q N(a + u) against N(0), standard deviation 1, a = `held`, u = `fresh`.

    With x the point where the likelihood ratio is e^epsilon and t_i = m_i x - m_i^2/2, the profiles are sums of
    Gaussian ones: sum w_i delta_G(t_i; m_i) and, reversed, sum w_i e^{epsilon+t_i} delta_G(-t_i; m_i).
    """
    if grid > COARSEST:
        return Pld.unbounded(grid)
    weights, means = (1 - rate, rate), (held, held + fresh)

    def both(epsilons: Floats) -> tuple[Floats, Floats]:
        if held == 0:
            return profile(epsilons, rate=rate, mu=fresh)
        above, below = _threshold(epsilons, weights, means), _threshold(-epsilons, weights, means)
        removed, added = np.zeros_like(epsilons), np.zeros_like(epsilons)
        for weight, mean in zip(weights, means, strict=True):
            if weight > 0:
                removed += weight * gaussian_profile(mean * above - mean * mean / 2, mean)
                t = mean * below - mean * mean / 2
                added += weight * np.exp(epsilons + t) * gaussian_profile(-t, mean)
        return removed, added

    def worst(at: float) -> float:
        return float(max(side[0] for side in both(np.array([at]))))

    last = reach_on_grid(worst, grid, _FAR)
    removed, added = both(grid * np.arange(last + 1, dtype=np.float64))
    return pld_from_profiles(removed=removed, added=added, grid=grid)


def _threshold(losses: Floats, weights: tuple[float, ...], means: tuple[float, ...]) -> Floats:
    """x with log sum_i w_i e^{m_i x - m_i^2/2} = loss. The function is convex and increasing: Newton from the right."""
    w, m = np.array(weights)[:, None], np.array(means)[:, None]
    w, m = w[w[:, 0] > 0], m[w[:, 0] > 0]
    x = ((losses - np.log(w) + m * m / 2) / m).min(axis=0)
    for _ in range(100):
        logs = np.log(w) + m * x - m * m / 2
        value = special.logsumexp(logs, axis=0)
        slope = (m * np.exp(logs - value)).sum(axis=0)
        change = (value - losses) / slope
        x = x - change
        if np.all(np.abs(change) <= 1e-13 * (1 + np.abs(x))):
            break
    return np.asarray(x, dtype=np.float64)


def _composed(run: ClippedFeedback, grid: float) -> tuple[ComposedLoss, ...]:
    """Both directions of the run; none if the losses of one step leave the grid, where epsilon is useless."""
    step = mixture_step(rate=run.rate, held=held(run), fresh=fresh(run), grid=grid)
    if max(step.with_without.infinite, step.without_with.infinite) > 10 * _FAR:
        return ()
    return ComposedLoss([(step.with_without, run.steps)]), ComposedLoss([(step.without_with, run.steps)])


def one_shot_delta(run: ClippedFeedback, *, epsilon: float) -> float:
    """With probability (1-q)^T nothing differs; otherwise every step moves by at most 2 C2 + C1/batch.

    rho delta_G(log(1 + (e^epsilon - 1)/rho); mu), rho = 1 - (1-q)^T, mu = sqrt(T) (2 C2 + C1/batch) / sigma.
    """
    mu = math.sqrt(run.steps) * (held(run) + fresh(run))
    both = profile(np.array([epsilon]), rate=_ever(run), mu=mu)
    return min(1.0, float(max(side[0] for side in both)) * (1 + _SLACK))


def _ever(run: ClippedFeedback) -> float:
    """The probability that a record is ever sampled."""
    return 1.0 if run.rate == 1 else -math.expm1(run.steps * math.log1p(-run.rate))


def energy_delta(run: ClippedFeedback, *, epsilon: float) -> float:
    """sum_n Bin(n; T, q) delta_G(epsilon; mu_n), if `preclip` G bounds the gradients; otherwise 1.

    mu_n sigma = sqrt(n) C1/batch + min(n (G - C1)^+/batch, 2 C2 sqrt(T)). If G <= C1 there is no error at all.
    """
    if run.preclip is None:
        return 1.0
    counts, weights, rest = _inclusions(run.steps, run.rate)
    total = rest + float(weights @ gaussian_profile(np.array([epsilon]), _energy_mu(run, counts, run.steps)))
    return min(1.0, total * (1 + _SLACK))


def _energy_mu(run: ClippedFeedback, counts: Floats, steps: int) -> Floats:
    """How far `counts` inclusions move a run in which at most `steps` steps depend on the error."""
    if run.preclip is None:
        return np.full(len(counts), math.inf)
    once = min(run.clip, run.preclip) / (run.batch * run.noise_std_on_mean)
    kept = max(0.0, run.preclip - run.clip) / (run.batch * run.noise_std_on_mean)
    return np.sqrt(counts) * once + np.minimum(counts * kept, math.sqrt(steps) * held(run))


@functools.lru_cache(maxsize=64)
def _inclusions(steps: int, rate: float) -> tuple[Floats, Floats, float]:
    """n >= 1, Bin(n; steps, rate), and the mass of the omitted tails, which is charged in full."""
    if rate == 1:
        return np.array([float(steps)]), np.array([1.0]), 0.0
    first, last = _central(steps, rate, 1e-40, 1e-40)
    counts = np.arange(max(0, first - 1), last + 1)
    masses = special.binomial_between(counts, steps, rate)
    outside = special.binomial_above(last, steps, rate)
    if first > 1:  # n = 0 costs nothing: it belongs to no tail
        outside += float(masses[0])
    return counts[1:].astype(np.float64), masses[1:], outside


def _central(steps: int, rate: float, below: float, above: float) -> tuple[int, int]:
    """Counts with at most `below` of Bin(steps, rate) under the first and at most `above` over the second."""
    last = least_whole(lambda count: special.binomial_above(count, steps, rate) <= above, 0, steps)
    return least_whole(lambda count: special.binomial_below(count, steps, rate) > below, 0, last), last


def patterns_delta(run: ClippedFeedback, *, epsilon: float) -> float:
    """The one-shot bound, with its Gaussian averaged over the sampling.

    With R steps left after the first inclusion and k inclusions in them, nothing moves before the first, and then mu^2
    = fresh^2 + R held^2 + k ((held + fresh)^2 - held^2), or the energy bound of 1 + k inclusions.
    """
    mu, weights, rest = _patterns(run)
    rho = _ever(run)
    behind = 0.0
    inside = math.log1p(math.expm1(epsilon) / rho) if epsilon < 700 else epsilon - math.log(rho)
    ahead = rho * (rest + float(weights @ gaussian_profile(np.array([inside]), mu)))
    left = 1.0 if rho == 1 else -math.expm1(min(0.0, epsilon + math.log1p(-rho)))
    if left > 0:
        outside = epsilon + math.log(rho) - math.log(left)
        behind = left * (rest + float(weights @ gaussian_profile(np.array([outside]), mu)))
    return min(1.0, max(ahead, behind) * (1 + _SLACK))


@functools.lru_cache(maxsize=16)
def _patterns(run: ClippedFeedback) -> tuple[Floats, Floats, float]:
    """mu and weight of each pattern, given at least one inclusion, and the omitted weight, which is charged in full.

    First inclusions form at most 200 groups. Each group counts as its earliest step, which raises mu.
    """
    marks = np.concatenate([np.geomspace(1, run.steps, 100), np.linspace(0, run.steps, 101)])
    edges = np.unique(np.minimum(np.round(marks), run.steps).astype(int))
    start, stop = edges[:-1], edges[1:]  # groups of steps start + 1 .. stop
    log_miss = -math.inf if run.rate == 1 else math.log1p(-run.rate)
    with np.errstate(invalid="ignore"):
        alive = np.where(start == 0, 1.0, np.exp(start * log_miss))
        weights = alive * -np.expm1((stop - start) * log_miss) / _ever(run)
    mus, shares, rest = [], [], 0.0
    for first, weight in zip(start.tolist(), weights.tolist(), strict=True):
        left = run.steps - first - 1
        later, chance, lost = _later(left, run.rate)
        square = fresh(run) ** 2 + left * held(run) ** 2 + later * fresh(run) * (fresh(run) + 2 * held(run))
        mus.append(np.minimum(np.sqrt(square), _energy_mu(run, 1 + later, left)))
        shares.append(weight * chance)
        rest += weight * lost
    return np.concatenate(mus), np.concatenate(shares), rest


@functools.lru_cache(maxsize=4096)  # the same for every noise: calibration asks often
def _later(steps: int, rate: float) -> tuple[Floats, Floats, float]:
    """Later inclusions in at most 60 groups, each counted as its largest; their weights; the omitted weight."""
    if rate == 1 or steps == 0:
        return np.array([float(steps)]), np.array([1.0]), 0.0
    low, last = _central(steps, rate, 1e-12, 1e-25)
    tops = np.unique(np.ceil(np.linspace(low, last, 60)).astype(int))
    weights = special.binomial_between(tops, steps, rate)
    return tops.astype(np.float64), weights, special.binomial_above(last, steps, rate)


BOUNDS = {"patterns": patterns_delta, "one-shot": one_shot_delta, "energy": energy_delta}
"""Bounds on the delta of a whole run, by name."""


def event_mu(event: ClippedFeedback, relation: Neighbouring) -> float | None:
    """Infinite without noise; a run with noise is no Gaussian."""
    return math.inf if event.noise_std_on_mean == 0 else None


def event_pld(event: ClippedFeedback, relation: Neighbouring, resolution: Resolution) -> Parts:
    """The mixture of one step for every step: the only bound that composes with other events."""
    step = mixture_step(rate=event.rate, held=held(event), fresh=fresh(event), grid=resolution.grid)
    return [(step, event.steps)]


def event_epsilon(event: ClippedFeedback, relation: Neighbouring, delta: float) -> tuple[float, str]:
    bound = epsilon(event, delta=delta)
    return bound.value, f"error feedback, {bound.name}"
