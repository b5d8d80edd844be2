"""Samples to which a user adds several records, against densities written out and against dp-accounting."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from discreet.accounting import group_sampled, pld, rdp
from discreet.accounting.accountants import certify, pld_epsilon, rdp_epsilon
from discreet.accounting.calibration import calibrate_noise
from discreet.accounting.charges import Charge
from discreet.accounting.events import CountQuery, Gaussian, GroupPoissonSampled, PoissonSampled, Queries
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from tests.accounting import oracle
from tests.accounting.deltas import delta_at

ADD_REMOVE, DELTA = Neighbouring.ADD_REMOVE, 1e-5
EPSILONS = (0.0, 0.4, 1.0, 2.5)


def charge_of(rate: float, most: int, noise: float, steps: int = 1) -> Charge:
    return Charge.of(GroupPoissonSampled(rate, most, Gaussian(noise)), steps)


# Brute force: every batch of a tiny population -------------------------------------------------------------

# The records of one user, and those of the others; every record is a number in [-1, 1] after clipping.
POPULATIONS = [
    ((1, 1, 1), (0, 0)),
    ((1, 1, 1), (-1, 1)),
    ((1, 1, -1), (1, -1)),
    ((1, 0.5, 1), (0.3, -1)),
    ((1, 1), (1, 1, 1)),
    ((-1,), (1, 1, 1)),
    ((1, 1, 1), ()),
]


@pytest.mark.parametrize(("user", "others"), POPULATIONS, ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_no_population_exceeds_the_certificate(user: tuple[float, ...], others: tuple[float, ...], rate: float) -> None:
    noise = 1.0
    one = oracle.mixture(*oracle.poisson((*user, *others), rate), noise)
    other = oracle.mixture(*oracle.poisson(others, rate), noise)
    for at in EPSILONS:
        certified = delta_at(charge_of(rate, 3, noise), epsilon=at, relation=ADD_REMOVE)
        assert oracle.both_directions(one, other, at, noise) <= certified * (1 + 1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_a_user_whose_records_agree_reaches_the_certificate(rate: float) -> None:
    """The bound is exact: without other records nothing is lost."""
    one, other = oracle.mixture(*oracle.poisson((1, 1, 1), rate), 1.0), oracle.normal(0.0, 1.0)
    for at in EPSILONS:
        certified = delta_at(charge_of(rate, 3, 1.0), epsilon=at, relation=ADD_REMOVE)
        assert certified <= oracle.both_directions(one, other, at, 1.0) * 1.02


def test_charged_as_single_records_the_user_exceeds_the_certificate() -> None:
    """Negative control: the record-level certificate does not cover a user."""
    one, other = oracle.mixture(*oracle.poisson((1, 1, 1), 0.6), 1.0), oracle.normal(0.0, 1.0)
    record = delta_at(Charge.of(PoissonSampled(0.6, Gaussian(1.0))), epsilon=1.0, relation=ADD_REMOVE)
    assert oracle.both_directions(one, other, 1.0, 1.0) > 2 * record


@pytest.mark.parametrize("angle", [0.0, 0.5, math.pi / 2, 2.5, math.pi])
def test_records_in_any_directions_stay_below_the_certificate(angle: float) -> None:
    """Two records in the plane at an angle, one other user: Kahane's inequality, by integration over the plane."""
    rate, noise, x = 0.5, 1.0, np.linspace(-10, 10, 801)
    vectors = [(1.0, 0.0), (math.cos(angle), math.sin(angle))]

    def density(records: list[tuple[float, float]]) -> np.ndarray:
        total = np.zeros((len(x), len(x)))
        for size in range(len(records) + 1):
            for chosen in itertools.combinations(records, size):
                at = np.sum(chosen, axis=0) if chosen else np.zeros(2)
                weight = rate**size * (1 - rate) ** (len(records) - size)
                total += weight * np.outer(oracle.normal(at[0], noise)(x), oracle.normal(at[1], noise)(x))
        return total

    other_user = [(-0.6, 0.8)]
    one, other, cell = density(vectors + other_user), density(other_user), (x[1] - x[0]) ** 2
    for at in EPSILONS:
        gamma = math.exp(at)
        truth = max(np.maximum(one - gamma * other, 0).sum(), np.maximum(other - gamma * one, 0).sum()) * cell
        assert truth <= delta_at(charge_of(rate, 2, noise), epsilon=at, relation=ADD_REMOVE) * (1 + 1e-4)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_two_steps_stay_below_the_certificate(rate: float) -> None:
    one, other = oracle.mixture(*oracle.poisson((1, 1), rate), 1.0), oracle.normal(0.0, 1.0)
    for at in EPSILONS:
        certified = delta_at(charge_of(rate, 2, 1.0, 2), epsilon=at, relation=ADD_REMOVE)
        truth = oracle.product_hockey_stick([one, one], [other, other], at, 1.0)
        assert truth <= certified * (1 + 1e-4)
        assert certified <= truth * 1.05 + 1e-9


# Other programs and other formulas -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "rate", "noise", "steps"), [(4, 0.01, 1.0, 1000), (4, 0.01, 4.0, 1000), (10, 0.05, 4.0, 200)]
)
def test_dp_accounting_agrees(most: int, rate: float, noise: float, steps: int) -> None:
    counts = range(most + 1)
    probabilities = [math.comb(most, j) * rate**j * (1 - rate) ** (most - j) for j in counts]
    step = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise, list(counts), probabilities, value_discretization_interval=1e-3
    )
    theirs = step.self_compose(steps).get_epsilon_for_delta(DELTA)
    ours = pld_epsilon(charge_of(rate, most, noise, steps), delta=DELTA, relation=ADD_REMOVE, grid=1e-3)
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_one_record_is_the_sampled_gaussian() -> None:
    group, single = (group_sampled.step_pld(0.02, 1, 0.8, 1e-3, -60.0), pld.sampled_gaussian(0.02, 0.8, 1e-3, -60.0))
    for one, other in ((group.with_without, single.with_without), (group.without_with, single.without_with)):
        first = min(one.first, other.first)
        size = max(one.last, other.last) - first + 1
        padded = [np.zeros(size), np.zeros(size)]
        for into, part in zip(padded, (one, other), strict=True):
            into[part.first - first : part.last - first + 1] = part.mass
        assert np.abs(padded[0] - padded[1]).max() < 1e-9
    ours, theirs = group_sampled.step_rdp(0.02, 1, 0.8, rdp.ORDERS), rdp.sampled_gaussian(0.02, 0.8)
    both = np.isfinite(ours) & np.isfinite(theirs)
    assert both.sum() > 40
    np.testing.assert_allclose(ours[both], theirs[both], rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize(("most", "rate", "noise", "order"), [(3, 0.1, 1.5, 3), (8, 0.02, 4.0, 4), (2, 0.5, 1.0, 2)])
def test_renyi_divergences_are_the_multinomial_sums(most: int, rate: float, noise: float, order: int) -> None:
    """E_Q (P/Q)^a = sum over j_1..j_a of prod p_j * e^(((sum j)^2 - sum j^2) / (2 z^2)), at integer orders."""
    weights = [math.comb(most, j) * rate**j * (1 - rate) ** (most - j) for j in range(most + 1)]
    moment = sum(
        math.prod(weights[j] for j in js) * math.exp((sum(js) ** 2 - sum(j * j for j in js)) / (2 * noise**2))
        for js in itertools.product(range(most + 1), repeat=order)
    )
    found = float(group_sampled.step_rdp(rate, most, noise, (float(order),))[0])
    assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)


@pytest.mark.parametrize(("most", "rate", "noise"), [(1, 0.3, 1.0), (5, 0.2, 0.7), (40, 0.01, 3.0), (1000, 0.02, 9.0)])
def test_thresholds_have_their_loss(most: int, rate: float, noise: float) -> None:
    joining = group_sampled.Joining.of(rate, most, -60.0)
    lowest = most * math.log1p(-rate)
    losses = np.array([lowest - 1, lowest, lowest * 0.999, lowest / 2, 0.0, 1e-9, 0.1, 3.0, 50.0])
    x = joining.threshold(losses, noise)
    assert x[0] == x[1] == -math.inf
    np.testing.assert_allclose(joining.loss(x[2:], noise), losses[2:], atol=1e-12, rtol=1e-13)
    assert (np.diff(x[2:]) > 0).all()


def test_what_is_left_of_the_binomial_is_charged() -> None:
    joining = group_sampled.Joining.of(0.02, 1000, -20.0)
    assert len(joining.log_weights) < 100
    assert 0 < joining.rest <= math.exp(-20)
    assert math.fsum(np.exp(joining.log_weights)) + joining.rest == pytest.approx(1.0, abs=1e-12)
    step = group_sampled.step_pld(0.02, 1000, 9.0, 1e-2, -20.0)
    assert step.with_without.infinite >= joining.rest


# How the price behaves ---------------------------------------------------------------------------------------


def epsilon(charge: Charge) -> float:
    return certify(charge, delta=DELTA, relation=ADD_REMOVE).epsilon


def test_more_records_cost_more_but_less_than_a_group_of_full_steps() -> None:
    prices = [epsilon(charge_of(0.01, most, 2.0, 500)) for most in (1, 2, 4, 8, 16)]
    assert prices == sorted(prices)
    assert prices[-1] < epsilon(Charge.of(PoissonSampled(1.0, Gaussian(2.0 / 16)), 500))


def test_all_records_in_every_step_are_one_gaussian() -> None:
    assert epsilon(charge_of(1.0, 5, 10.0, 4)) == pytest.approx(epsilon(Charge.of(Gaussian(2.0), 4)), rel=1e-9)


def test_queries_on_one_sample_are_whitened() -> None:
    both = Queries((Gaussian(3.0), CountQuery(10.0)))
    whitened = both.whitened.noise
    assert epsilon(Charge.of(GroupPoissonSampled(0.01, 4, both), 300)) == epsilon(charge_of(0.01, 4, whitened, 300))


def test_renyi_divergences_bound_the_same_run() -> None:
    charge = charge_of(0.01, 4, 2.0, 1000)
    assert epsilon(charge) <= rdp_epsilon(charge, delta=DELTA, relation=ADD_REMOVE) <= 1.4 * epsilon(charge)


def test_noise_is_calibrated() -> None:
    noise = calibrate_noise(lambda z: charge_of(0.01, 8, z, 1000), epsilon=2.0, delta=DELTA, relation=ADD_REMOVE)
    assert 1.98 <= epsilon(charge_of(0.01, 8, noise, 1000)) <= 2.0


@pytest.mark.parametrize(
    ("rate", "most", "noise", "steps"),
    [(1e-12, 1000, 1e-3, 10), (1e-6, 10**6, 5.0, 100), (0.999, 50, 0.1, 1), (1e-9, 1, 1e20, 1), (0.5, 3, 1e-19, 2)],
)
def test_extreme_numbers_give_a_bound(rate: float, most: int, noise: float, steps: int) -> None:
    found = epsilon(charge_of(rate, most, noise, steps))
    assert found >= 0
    assert found >= epsilon(Charge.of(PoissonSampled(rate, Gaussian(noise)), steps)) * (1 - 1e-3) - 1e-9


def test_replacing_a_user_is_refused() -> None:
    with pytest.raises(Refused, match="group-poisson under add"):
        certify(charge_of(0.1, 2, 1.0), delta=DELTA, relation=Neighbouring.REPLACE_ONE)
