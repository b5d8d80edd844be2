"""Calibration: the budget is never exceeded, and hardly anything of it is left."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting.accountants import certify
from discreet.accounting.calibration import calibrate_batch, calibrate_noise, calibrate_steps
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, NonPrivate, PoissonSampled, WithoutReplacement
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring

ADD_REMOVE = Neighbouring.ADD_REMOVE


def spent(charge: Charge, delta: float, relation: Neighbouring = ADD_REMOVE) -> float:
    return certify(charge, delta=delta, relation=relation).epsilon


@settings(max_examples=12, deadline=None)
@given(
    epsilon=st.floats(min_value=0.05, max_value=20.0),
    rate=st.floats(min_value=0.002, max_value=0.3),
    steps=st.integers(min_value=1, max_value=3000),
    log_delta=st.floats(min_value=-9.0, max_value=-4.0),
)
def test_noise_uses_the_budget_and_never_more(epsilon: float, rate: float, steps: int, log_delta: float) -> None:
    delta = 10**log_delta

    def charge(noise: float) -> Charge:
        return Charge.of(PoissonSampled(rate, Gaussian(noise)), steps)

    if spent(charge(1e-3), delta) <= epsilon:
        return  # sampling alone stays within the budget
    noise = calibrate_noise(charge, epsilon=epsilon, delta=delta, relation=ADD_REMOVE)
    found = spent(charge(noise), delta)
    assert found <= epsilon
    assert found >= 0.995 * epsilon


def test_noise_for_an_exact_gaussian_is_known() -> None:
    noise = calibrate_noise(lambda z: Charge.of(Gaussian(z)), epsilon=4.37718, delta=1e-5, relation=ADD_REMOVE)
    assert noise == pytest.approx(1.0, rel=0.004)
    doubled = calibrate_noise(
        lambda z: Charge.of(Gaussian(z)), epsilon=4.37718, delta=1e-5, relation=Neighbouring.REPLACE_ONE
    )
    assert doubled == pytest.approx(2 * noise, rel=0.004)


def test_schedules_and_samplers_calibrate_too() -> None:
    def falling(noise: float) -> Charge:
        return Charge(tuple((PoissonSampled(0.02, Gaussian(noise / k**0.25)), 20) for k in range(1, 11)))

    noise = calibrate_noise(falling, epsilon=2.0, delta=1e-5, relation=ADD_REMOVE)
    assert 0.995 * 2.0 <= spent(falling(noise), 1e-5) <= 2.0

    def fixed(noise: float) -> Charge:
        return Charge.of(WithoutReplacement(10_000, 100, Gaussian(noise)), 500)

    noise = calibrate_noise(fixed, epsilon=1.0, delta=1e-5, relation=Neighbouring.REPLACE_ONE)
    assert 0.995 <= spent(fixed(noise), 1e-5, Neighbouring.REPLACE_ONE) <= 1.0


def test_plain_calibration_prices_few_noises() -> None:
    """Four of them here; pricing is what takes the time."""
    tried: list[float] = []

    def charge(noise: float) -> Charge:
        tried.append(noise)
        return Charge.of(PoissonSampled(1024 / 60_000, Gaussian(noise)), 2360)

    calibrate_noise(charge, epsilon=3.0, delta=1e-5, relation=ADD_REMOVE)
    assert len(tried) <= 8


def test_steps_stay_within_the_budget_and_one_more_would_not() -> None:
    step = Charge.of(PoissonSampled(0.01, Gaussian(1.0)))
    steps = calibrate_steps(lambda count: step * count, epsilon=1.83, delta=1e-5, relation=ADD_REMOVE)
    assert steps == pytest.approx(1000, abs=5)
    assert spent(step * steps, 1e-5) <= 1.83 < spent(step * (steps + 5), 1e-5)


def test_no_step_fits_means_zero() -> None:
    step = Charge.of(Gaussian(0.5))
    assert calibrate_steps(lambda count: step * count, epsilon=0.1, delta=1e-5, relation=ADD_REMOVE) == 0


def test_batch_stays_within_the_budget() -> None:
    def charge(batch: int) -> Charge:
        return Charge.of(PoissonSampled(batch / 10_000, Gaussian(1.0)), 1000)

    batch = calibrate_batch(charge, largest=10_000, epsilon=1.83, delta=1e-5, relation=ADD_REMOVE)
    assert batch == 100
    assert calibrate_batch(charge, largest=50, epsilon=1.83, delta=1e-5, relation=ADD_REMOVE) == 50
    with pytest.raises(Refused, match="batch"):
        calibrate_batch(charge, largest=100, epsilon=1e-4, delta=1e-9, relation=ADD_REMOVE)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1)]
)
def test_impossible_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(Refused, match="Remedy"):
        calibrate_noise(lambda z: Charge.of(Gaussian(z)), epsilon=epsilon, delta=delta, relation=ADD_REMOVE)


def test_a_charge_that_ignores_its_noise_is_refused() -> None:
    with pytest.raises(Refused, match="noise"):
        calibrate_noise(lambda z: Charge.of(NonPrivate()), epsilon=1.0, delta=1e-5, relation=ADD_REMOVE)
    with pytest.raises(Refused, match="noise"):
        calibrate_noise(lambda z: Charge.of(Gaussian(100.0)), epsilon=1.0, delta=1e-5, relation=ADD_REMOVE)


def test_steps_that_cost_nothing_are_refused() -> None:
    with pytest.raises(Refused, match="exhaust"):
        calibrate_steps(lambda count: Charge(), epsilon=1.0, delta=1e-5, relation=ADD_REMOVE)
