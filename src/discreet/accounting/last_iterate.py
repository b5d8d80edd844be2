"""Whole runs on a bounded domain that publish only the last iterate.

    x_{t+1} = project(x_t - learning_rate * (mean of clipped gradients + N(0, sigma^2 I)))

Before the last m steps two runs are at most the diameter apart. A share 1 - beta of the noise of those m steps absorbs
this distance, and the share beta hides the record as usual:

    epsilon(a) <= m * step_a(sqrt(beta) z) + a/2 * shift^2 E(m, c) / (1 - beta)
    shift = diameter / (learning_rate * sigma),     E(m, c) = c^(2m) / sum_{j<m} c^(2j)

The same holds for loss distributions: m steps at sqrt(beta) z, composed with one Gaussian of mu^2 = shift^2 E / (1 -
beta). c is a Lipschitz constant of the noiseless update for every possible batch. Every m <= T and beta in (0, 1) is
valid, and so is composition of all T steps. Both directions. Proof: docs/proofs/LastIterateRun.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from discreet.accounting import pld, rdp, sampled
from discreet.accounting.events import Gaussian, LastIterateRun, TruncatedPoissonSampled, units
from discreet.accounting.feedback import Bound
from discreet.accounting.pld import Floats, Pld, Resolution
from discreet.accounting.pld_composition import ComposedLoss
from discreet.accounting.rdp import ORDERS, Orders
from discreet.core.relation import Neighbouring

Sides = list[list[tuple[pld.Pmf, int]]]  # the losses of both directions, with counts

_LOG_TAIL = -50.0
BETAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_POINTS = 2**18  # that one step, or epsilon, spans on a grid at most


@final
@dataclass(frozen=True, kw_only=True)
class BoundedRun:
    """`steps` steps; shift = diameter / (learning_rate * sigma), sigma the noise on the mean; factor = c.

    noise     the multiplier z of a step, relative to the change that one record causes
    pld       z, grid -> dominating loss distribution of a step
    rdp       z -> its Rényi divergences at ORDERS
    highest   z -> its highest finite loss
    """

    noise: float
    pld: Callable[[float, float], Pld]
    rdp: Callable[[float], Floats]
    highest: Callable[[float], float]
    steps: int
    shift: float
    factor: float


def left_over(steps: float | Floats, factor: float) -> Floats:
    """E(m, c) = c^(2m) / sum_{j<m} c^(2j): the part of a squared shift of 1 that remains after m steps.

    >>> left_over(np.array([1.0, 4.0]), 1.0).tolist(), left_over(np.array([1.0, 2.0]), 2.0).tolist()
    ([1.0, 0.25], [4.0, 3.2])
    """
    m = np.asarray(steps, dtype=np.float64)
    if factor == 0:
        return np.zeros_like(m)
    growth = 2 * math.log(factor)
    if abs(growth) < 1e-9:  # an upper bound: the sum has m terms of at least min(1, c^(2m))
        return np.asarray(np.exp(abs(growth) * m) / m)
    # (c^2 - 1) / (1 - c^(-2m)), the same for c < 1 with both signs turned
    with np.errstate(over="ignore"):
        return np.asarray(math.expm1(growth) / -np.expm1(-growth * m))


def candidates(steps: int) -> Floats:
    """The numbers m of absorbed steps to try: every small one, and others on a logarithmic scale."""
    few = np.arange(1, min(steps, 64) + 1)
    many = np.geomspace(1, steps, 400)
    return np.unique(np.concatenate([few, np.round(many)])).astype(np.float64)


def gaussian_mu(*, steps: int, noise: float, shift: float, factor: float) -> tuple[float, int]:
    """With full batches the run is mu-GDP, mu = min over m of sqrt(m)/z + shift sqrt(E(m, c)); returns also m.

    m = steps may mean composition, sqrt(steps)/z. The best beta has a closed form here. With c = 1 and m = shift * z
    this is the plateau 2 sqrt(shift / z).
    """
    best = (math.sqrt(steps) / noise, steps)
    m = candidates(steps)
    guess = min(steps, max(1, round(shift * noise)))
    m = np.unique(np.concatenate([m, [max(1, guess - 1), guess, min(steps, guess + 1)]]))
    values = np.sqrt(m) / noise + shift * np.sqrt(left_over(m, factor))
    index = int(np.argmin(values))
    return min(best, (float(values[index]), int(m[index])))


def epsilon(run: BoundedRun, *, delta: float, grid: float | None = None) -> Bound:
    """The smallest certified epsilon of the run at `delta`, and the name of its bound."""
    bounds, guesses = _by_rdp(run, delta)
    grid = grid or _grid(run, min(bound.value for bound in bounds))
    composed = max(ComposedLoss(parts).epsilon(delta) for parts in _whole(run, grid))
    bounds.append(Bound(value=composed, name="composition, PLD"))
    for m, beta in guesses:
        coarser = max(grid, run.highest(math.sqrt(beta) * run.noise) / _POINTS)
        value = pld_epsilon(run, absorbed=m, beta=beta, delta=delta, grid=coarser)
        bounds.append(Bound(value=value, name="last iterate, PLD"))
    return min(bounds, key=lambda bound: bound.value)


def _grid(run: BoundedRun, about: float) -> float:
    """A grid on which epsilon moves by less than 0.5 % when it is halved, if a step and epsilon fit on it."""
    longest = max(run.highest(run.noise), about if math.isfinite(about) else 0.0)
    return max(min(5e-3, max(1e-4, about / 2000)), longest / _POINTS)


def _whole(run: BoundedRun, grid: float) -> Sides:
    """All steps, composed: both directions."""
    step = run.pld(run.noise, grid)
    return [[(step.with_without, run.steps)], [(step.without_with, run.steps)]]


def _by_rdp(run: BoundedRun, delta: float) -> tuple[list[Bound], list[tuple[int, float]]]:
    """The RDP bounds, and the pairs (m, beta) for which loss distributions may be better."""
    orders = np.array(ORDERS)
    m = candidates(run.steps)
    plain = rdp.epsilon(run.steps * run.rdp(run.noise), delta)
    bounds, guesses = [Bound(value=plain, name="composition, RDP")], []
    rest = run.shift**2 / 2 * left_over(m, run.factor)
    for beta in BETAS:
        hidden = run.rdp(math.sqrt(beta) * run.noise)
        values = m[:, None] * hidden + rest[:, None] * orders / (1 - beta)
        converted = values + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        index = int(np.argmin(converted.min(axis=1)))
        found = float(converted[index].min())
        guesses.append((found, int(m[index]), beta))
        bounds.append(Bound(value=max(0.0, found), name="last iterate, RDP"))
    least = min(found for found, _, _ in guesses)
    # Where RDP is far above composition, the loss distribution cannot win either.
    kept = sorted(guess for guess in guesses if guess[0] <= 1.15 * least)[:4] if least < 2 * plain + 1 else []
    return bounds, [(count, beta) for _, count, beta in kept]


def pld_epsilon(run: BoundedRun, *, absorbed: int, beta: float, delta: float, grid: float) -> float:
    """Epsilon of m = `absorbed` steps at sqrt(beta) z composed with the Gaussian for the shift."""
    sides = _absorbing(run, absorbed, beta, grid)
    return math.inf if sides is None else max(ComposedLoss(parts).epsilon(delta) for parts in sides)


def _absorbing(run: BoundedRun, absorbed: int, beta: float, grid: float) -> Sides | None:
    """The last m steps at sqrt(beta) z and the Gaussian for the shift, both directions; None if epsilon is useless."""
    mu = run.shift * math.sqrt(float(left_over(absorbed, run.factor)) / (1 - beta))
    if mu * mu / 2 > 500:
        return None
    step = run.pld(math.sqrt(beta) * run.noise, grid)
    paid = pld.gaussian(1 / max(mu, 1e-6), grid, _LOG_TAIL)
    pairs = ((step.with_without, paid.with_without), (step.without_with, paid.without_with))
    return [[(one, absorbed), (last, 1)] for one, last in pairs]


def event_mu(event: LastIterateRun, relation: Neighbouring) -> float | None:
    """With full batches the run is one Gaussian: sqrt(m)/z + shift sqrt(E(m, c)) at the best m."""
    if _noise(event) == 0:
        return math.inf
    if not isinstance(event.step, Gaussian):
        return None
    noise = 1 / sampled.whitened_mu(event.step, relation)
    mu, _ = gaussian_mu(steps=event.steps, noise=noise, shift=_shift(event), factor=event.expansion)
    return mu


def event_pld(event: LastIterateRun, relation: Neighbouring, resolution: Resolution) -> pld.Parts:
    """All steps, as if every iterate were published: the bound that composes with other events."""
    return [(_step_pld(event, _noise(event) / units(relation), relation, resolution), event.steps)]


def event_rdp(event: LastIterateRun, relation: Neighbouring, orders: Orders) -> Floats:
    """All steps, as in `event_pld`."""
    return event.steps * _step_rdp(event, _noise(event) / units(relation), relation, orders)


def event_epsilon(event: LastIterateRun, relation: Neighbouring, delta: float) -> tuple[float, str]:
    bound = epsilon(bounded_run(event, relation), delta=delta)
    return bound.value, bound.name


def _noise(event: LastIterateRun) -> float:
    step = event.step if isinstance(event.step, Gaussian) else event.step.event
    return step.whitened.noise


def _shift(event: LastIterateRun) -> float:
    """The diameter in standard deviations of one update's noise: D / (eta sigma), sigma = z C / b."""
    return event.diameter * event.batch / (event.learning_rate * _noise(event) * event.clip)


def _step(event: LastIterateRun, noise: float, relation: Neighbouring) -> Any:
    """One step with another multiplier, which is relative to the change that one record causes."""
    return sampled.with_noise(event.step, noise * units(relation))


def _step_pld(event: LastIterateRun, noise: float, relation: Neighbouring, resolution: Resolution) -> Pld:
    bound = sampled.truncated_pld if isinstance(event.step, TruncatedPoissonSampled) else sampled.without_pld
    return bound(_step(event, noise, relation), relation, resolution)[0][0]


def _step_rdp(event: LastIterateRun, noise: float, relation: Neighbouring, orders: Orders) -> Floats:
    bound = sampled.truncated_rdp if isinstance(event.step, TruncatedPoissonSampled) else sampled.without_rdp
    return bound(_step(event, noise, relation), relation, orders)


def bounded_run(event: LastIterateRun, relation: Neighbouring) -> BoundedRun:
    return BoundedRun(
        noise=_noise(event) / units(relation),
        pld=lambda noise, grid: _step_pld(event, noise, relation, Resolution(grid)),
        rdp=lambda noise: _step_rdp(event, noise, relation, ORDERS),
        highest=lambda noise: sampled.highest_loss(_step(event, noise, relation), relation, _LOG_TAIL),
        steps=event.steps,
        shift=_shift(event),
        factor=event.expansion,
    )
