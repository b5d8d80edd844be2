"""The numbers that the accounting of users is pinned to (delta = 1e-5, add/remove of a user)."""

import pytest

from discreet.accounting.accountants import certify, pld_epsilon
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, GroupPoissonSampled
from discreet.core.relation import Neighbouring

DELTA, ADD_REMOVE = 1e-5, Neighbouring.ADD_REMOVE

# most records of a user, rate, noise, steps, epsilon to three digits after the point
NUMBERS = [
    (1, 0.01, 1.0, 1000, 1.829),
    (4, 0.01, 1.0, 1000, 8.899),
    (4, 0.01, 4.0, 1000, 1.241),
    (10, 0.01, 4.0, 1000, 3.462),
    (32, 0.001, 2.0, 5000, 5.547),
]


@pytest.mark.parametrize(("most", "rate", "noise", "steps", "expected"), NUMBERS)
def test_records_of_a_user_on_a_given_grid(most: int, rate: float, noise: float, steps: int, expected: float) -> None:
    charge = Charge.of(GroupPoissonSampled(rate, most, Gaussian(noise)), steps)
    assert pld_epsilon(charge, delta=DELTA, relation=ADD_REMOVE, grid=1e-3) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("most", "rate", "noise", "steps", "expected"), NUMBERS)
def test_the_certificate_is_within_half_a_percent(
    most: int, rate: float, noise: float, steps: int, expected: float
) -> None:
    charge = Charge.of(GroupPoissonSampled(rate, most, Gaussian(noise)), steps)
    finest = pld_epsilon(charge, delta=DELTA, relation=ADD_REMOVE, grid=2e-4)
    found = certify(charge, delta=DELTA, relation=ADD_REMOVE)
    assert found.accountant == "PLD"
    assert finest * (1 - 1e-4) <= found.epsilon <= finest * 1.005
    assert found.epsilon == pytest.approx(expected, rel=2e-3)
