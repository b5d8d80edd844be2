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
from typing import final

import numpy as np

from discreet.accounting import pld, rdp
from discreet.accounting.feedback import Bound
from discreet.accounting.pld import Floats, Pld
from discreet.accounting.pld_composition import ComposedLoss
from discreet.accounting.rdp import ORDERS

Parts = list[tuple[pld.Pmf, int]]

_LOG_TAIL = -50.0
BETAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_POINTS = 2**18  # that one step, or epsilon, spans on a grid at most


@final
@dataclass(frozen=True, kw_only=True)
class StepBound:
    """One step as a function of its noise multiplier z, which is relative to the change that one record causes.

    pld       z, grid -> dominating loss distribution
    rdp       z -> Rényi divergences at ORDERS
    highest   z -> its highest finite loss
    """

    noise: float
    pld: Callable[[float, float], Pld]
    rdp: Callable[[float], Floats]
    highest: Callable[[float], float]


@final
@dataclass(frozen=True, kw_only=True)
class BoundedRun:
    """`steps` of `step`; shift = diameter / (learning_rate * sigma), sigma the noise on the mean; factor = c."""

    step: StepBound
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
    grid = grid or _grid(run, run.step.noise, min(bound.value for bound in bounds))
    composed = max(ComposedLoss(parts).epsilon(delta) for parts in _whole(run, grid))
    bounds.append(Bound(value=composed, name="composition, PLD"))
    for m, beta in guesses:
        coarser = max(grid, run.step.highest(math.sqrt(beta) * run.step.noise) / _POINTS)
        value = pld_epsilon(run, absorbed=m, beta=beta, delta=delta, grid=coarser)
        bounds.append(Bound(value=value, name="last iterate, PLD"))
    return min(bounds, key=lambda bound: bound.value)


def _grid(run: BoundedRun, noise: float, about: float) -> float:
    """A grid on which epsilon moves by less than 0.5 % when it is halved, if a step and epsilon fit on it."""
    longest = max(run.step.highest(noise), about if math.isfinite(about) else 0.0)
    return max(min(5e-3, max(1e-4, about / 2000)), longest / _POINTS)


def _whole(run: BoundedRun, grid: float) -> list[Parts]:
    """All steps, composed: both directions."""
    step = run.step.pld(run.step.noise, grid)
    return [[(step.with_without, run.steps)], [(step.without_with, run.steps)]]


def _by_rdp(run: BoundedRun, delta: float) -> tuple[list[Bound], list[tuple[int, float]]]:
    """The RDP bounds, and the pairs (m, beta) for which loss distributions may be better."""
    orders = np.array(ORDERS)
    m = candidates(run.steps)
    plain = rdp.epsilon(run.steps * run.step.rdp(run.step.noise), delta)
    bounds, guesses = [Bound(value=plain, name="composition, RDP")], []
    rest = run.shift**2 / 2 * left_over(m, run.factor)
    for beta in BETAS:
        hidden = run.step.rdp(math.sqrt(beta) * run.step.noise)
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


def _absorbing(run: BoundedRun, absorbed: int, beta: float, grid: float) -> list[Parts] | None:
    """The last m steps at sqrt(beta) z and the Gaussian for the shift, both directions; None if epsilon is useless."""
    mu = run.shift * math.sqrt(float(left_over(absorbed, run.factor)) / (1 - beta))
    if mu * mu / 2 > 500:
        return None
    step = run.step.pld(math.sqrt(beta) * run.step.noise, grid)
    paid = pld.gaussian(1 / max(mu, 1e-6), grid, _LOG_TAIL)
    pairs = ((step.with_without, paid.with_without), (step.without_with, paid.without_with))
    return [[(one, absorbed), (last, 1)] for one, last in pairs]
