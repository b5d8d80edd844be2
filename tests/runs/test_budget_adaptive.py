"""Charges that are chosen by earlier results: the budget's sum holds, composing loss distributions does not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, PoissonSampled
from discreet.core.bisection import least
from discreet.core.relation import Neighbouring
from discreet.runs.budget import BudgetLimit

LIMIT = BudgetLimit(epsilon=2.0, delta=1e-4)
FIRST, RATE = 2.5, 0.003
Second = Callable[[float], Charge]


def gaussian(noise: float) -> Charge:
    return Charge.of(Gaussian(noise))


def sampled(noise: float) -> Charge:
    return Charge.of(PoissonSampled(RATE, Gaussian(noise)))


def stick(rate: float, noise: float, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
    """delta of (1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2) at any epsilon, also below 0."""
    over = np.exp(epsilon) - (1 - rate)
    x = noise**2 * np.log(np.maximum(over, 1e-300) / rate) + 0.5
    inside = rate * norm.sf((x - 1) / noise) - over * norm.sf(x / noise)
    return np.where(over <= 0, 1 - np.exp(epsilon), inside)


def adaptive_delta(noises: dict[float, float]) -> float:
    """The exact delta if the loss of a first Gaussian release chooses the worse second one (rate: noise)."""
    y = np.linspace(1 - 12 * FIRST, 1 + 12 * FIRST, 200_001)
    loss = (2 * y - 1) / (2 * FIRST**2)
    seconds = [stick(rate, noise, LIMIT.epsilon - loss) for rate, noise in noises.items()]
    density = norm.pdf(y, 1, FIRST)
    return float((density * np.max(seconds, axis=0)).sum() * (y[1] - y[0]))


def least_noise(fits: Callable[[float], bool]) -> float:
    return least(lambda noise: noise > 0.05 and fits(noise), start=0.5, tolerance=1e-4)


def test_a_choice_by_the_first_result_stays_within_the_budget() -> None:
    first = gaussian(FIRST)
    order = LIMIT.order_for(first)
    rest = LIMIT.room(order) - LIMIT.divergence(first, order)

    def noise_of(second: Second) -> float:
        return least_noise(lambda noise: LIMIT.divergence(second(noise), order) <= rest)

    assert adaptive_delta({1.0: noise_of(gaussian), RATE: noise_of(sampled)}) <= LIMIT.delta


def test_composing_loss_distributions_would_not_stay_within_it() -> None:
    """Negative control: each second release alone exhausts the limit exactly, and a choice between them exceeds it."""

    def noise_of(second: Second) -> float:
        def fits(noise: float) -> bool:
            total = gaussian(FIRST) + second(noise)
            return certify(total, delta=LIMIT.delta, relation=Neighbouring.ADD_REMOVE).epsilon <= LIMIT.epsilon

        return least_noise(fits)

    noises = {1.0: noise_of(gaussian), RATE: noise_of(sampled)}
    for rate, noise in noises.items():
        assert adaptive_delta({rate: noise}) == pytest.approx(LIMIT.delta, rel=0.05)
    assert adaptive_delta(noises) > 1.2 * LIMIT.delta
    assert math.isfinite(adaptive_delta(noises))
