"""Certificates against densities, against each other, and against themselves."""

import itertools
import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting import (
    BallsInBins,
    Certificate,
    Charge,
    CountQuery,
    Event,
    Free,
    Gaussian,
    Neighbouring,
    NonPrivate,
    PoissonSampled,
    Queries,
    SelectionQuery,
    ShuffledEpoch,
    TruncatedPoisson,
    Unamplified,
    WithoutReplacement,
    certify,
    compose,
    delta_at,
    gdp_estimate,
    pld,
    pld_epsilon,
    profile,
    rdp,
    rdp_epsilon,
)
from discreet.core.check import Refused

ADD_REMOVE, REPLACE_ONE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
FINE = 0.005  # what the accountants may add to the truth


def epsilon(charge: Charge, delta: float = 1e-5, relation: Neighbouring = ADD_REMOVE) -> float:
    return certify(charge, delta=delta, relation=relation).epsilon


def poisson(rate: float, noise: float, steps: int = 1) -> Charge:
    return Charge.of(PoissonSampled(rate, Gaussian(noise)), steps)


# Against densities: no accountant on the other side -------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize(("rate", "noise"), [(1.0, 1.0), (0.5, 0.7), (0.1, 1.0), (0.01, 0.6), (0.3, 3.0)])
def test_one_poisson_step_is_the_quadrature(rate: float, noise: float, delta: float) -> None:
    found = epsilon(poisson(rate, noise), delta)
    one, other = oracle.mixture([1 - rate, rate], [0, 1], noise), oracle.normal(0, noise)
    assert oracle.both_directions(one, other, found, noise) <= delta * (1 + 1e-6)
    if found > 0:
        assert oracle.both_directions(one, other, found * (1 - FINE), noise) > delta


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize("steps", [1, 3])
def test_gaussian_steps_are_the_quadrature_under_both_relations(relation: Neighbouring, steps: int) -> None:
    moved = 1 if relation is ADD_REMOVE else 2
    noise, delta = 1.3, 1e-5
    found = epsilon(Charge.of(Gaussian(noise), steps), delta, relation)
    one, other = oracle.normal(math.sqrt(steps) * moved, noise), oracle.normal(0, noise)
    assert oracle.both_directions(one, other, found, noise) == pytest.approx(delta, rel=1e-5)


def test_two_poisson_steps_are_the_quadrature_over_the_plane() -> None:
    rate, noise, delta = 0.2, 0.8, 1e-4
    found = epsilon(poisson(rate, noise, 2), delta)
    one, other = oracle.mixture([1 - rate, rate], [0, 1], noise), oracle.normal(0, noise)
    assert oracle.product_hockey_stick([one, one], [other, other], found, noise) <= delta * (1 + 1e-4)
    assert oracle.product_hockey_stick([one, one], [other, other], found * (1 - FINE), noise) > delta


def test_a_schedule_of_two_noises_is_the_quadrature_over_the_plane() -> None:
    rate, delta = 0.2, 1e-4
    charge = poisson(rate, 0.8) + poisson(rate, 1.1)
    found = epsilon(charge, delta)
    ones = [oracle.mixture([1 - rate, rate], [0, 1], noise) for noise in (0.8, 1.1)]
    others = [oracle.normal(0, noise) for noise in (0.8, 1.1)]
    assert oracle.product_hockey_stick(ones, others, found, 1.1) <= delta * (1 + 1e-4)
    assert oracle.product_hockey_stick(ones, others, found * (1 - FINE), 1.1) > delta


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_curve_without_replacement_is_the_quadrature(delta: float) -> None:
    records, batch, noise = 20, 4, 2.0
    rate = batch / records
    found = epsilon(Charge.of(WithoutReplacement(records, batch, Gaussian(noise))), delta, REPLACE_ONE)
    one, other = oracle.mixture([1 - rate, rate], [0, 2], noise), oracle.normal(0, noise)
    assert oracle.hockey_stick(one, other, found, noise) <= delta * (1 + 1e-6)
    assert oracle.hockey_stick(one, other, found * (1 - FINE), noise) > delta


# Whole mechanisms, every batch spelled out: the certificate must hold for each of them ---------------------


@dataclass(frozen=True)
class Neighbours:
    one: tuple[float, ...]
    other: tuple[float, ...]


REPLACED = [
    Neighbours((0, 0, 0, 1), (0, 0, 0, -1)),
    Neighbours((1, 1, 1, 1), (1, 1, 1, -1)),
    Neighbours((1, -1, 1, 1), (1, -1, 1, -1)),
    Neighbours((0.5, -0.5, 1, 1), (0.5, -0.5, 1, 0)),
]
ADDED = [
    Neighbours((0, 0, 0, 1), (0, 0, 0)),
    Neighbours((-1, -1, -1, 1), (-1, -1, -1)),
    Neighbours((1, -1, 1, 1), (1, -1, 1)),
    Neighbours((1, 1, 1, -1), (1, 1, 1)),
]


@pytest.mark.parametrize("pair", REPLACED, ids=str)
@pytest.mark.parametrize("at", [0.0, 0.3, 1.0, 2.5])
def test_no_dataset_exceeds_the_certificate_without_replacement(pair: Neighbours, at: float) -> None:
    noise = 1.0
    certified = delta_at(
        Charge.of(WithoutReplacement(4, 2, Gaussian(noise))), epsilon=at, relation=REPLACE_ONE
    )
    one = oracle.mixture(*oracle.without_replacement(pair.one, 2), noise)
    other = oracle.mixture(*oracle.without_replacement(pair.other, 2), noise)
    assert oracle.both_directions(one, other, at, noise) <= certified * (1 + 1e-6)


@pytest.mark.parametrize("pair", REPLACED, ids=str)
def test_no_dataset_exceeds_the_certificate_of_two_batches_without_replacement(pair: Neighbours) -> None:
    noise = 1.0
    charge = Charge.of(WithoutReplacement(4, 2, Gaussian(noise)), 2)
    one = oracle.mixture(*oracle.without_replacement(pair.one, 2), noise)
    other = oracle.mixture(*oracle.without_replacement(pair.other, 2), noise)
    for at in (0.0, 0.5, 2.0):
        certified = delta_at(charge, epsilon=at, relation=REPLACE_ONE)
        assert oracle.product_hockey_stick([one, one], [other, other], at, noise) <= certified * (1 + 1e-4)


@pytest.mark.parametrize("pair", ADDED, ids=str)
@pytest.mark.parametrize("cap", [1, 2, 3, 4])
@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_no_dataset_exceeds_the_certificate_of_a_capped_batch(
    pair: Neighbours, cap: int, rate: float
) -> None:
    noise = 1.0
    one = oracle.mixture(*oracle.truncated_poisson(pair.one, rate, cap), noise)
    other = oracle.mixture(*oracle.truncated_poisson(pair.other, rate, cap), noise)
    charge = Charge.of(TruncatedPoisson(rate, cap, 4, Gaussian(noise)))
    for at in (0.0, 0.5, 1.5, 3.0):
        certified = delta_at(charge, epsilon=at, relation=ADD_REMOVE)
        assert oracle.both_directions(one, other, at, noise) <= certified * (1 + 1e-6)


def test_a_cap_is_not_free() -> None:
    """Negative control: charged as plain Poisson the capped batch would exceed its certificate."""
    pair, rate, noise = ADDED[1], 0.7, 1.0
    one = oracle.mixture(*oracle.truncated_poisson(pair.one, rate, 2), noise)
    other = oracle.mixture(*oracle.truncated_poisson(pair.other, rate, 2), noise)
    plain = delta_at(poisson(rate, noise), epsilon=1.5, relation=ADD_REMOVE)
    assert oracle.both_directions(one, other, 1.5, noise) > plain


@pytest.mark.parametrize("records", [60_000, 76_000, 120_000, 200_000])
def test_a_public_bound_on_the_size_covers_every_smaller_size(records: int) -> None:
    """A full batch is rarer with fewer records: the certificate may only fall."""
    smaller = [
        epsilon(Charge.of(TruncatedPoisson(0.01, 700, n, Gaussian(1.0)), 100)) for n in (60_000, 70_000)
    ]
    bound = epsilon(Charge.of(TruncatedPoisson(0.01, 700, max(records, 70_000), Gaussian(1.0)), 100))
    assert bound >= max(smaller) * (1 - 1e-3)


@pytest.mark.parametrize("pair", ADDED, ids=str)
def test_no_dataset_exceeds_the_certificate_of_balls_in_bins(pair: Neighbours) -> None:
    """One epoch of two steps: every record joins either step with probability 1/2. The plane, exactly."""
    noise, at = 1.0, 1.0
    x = np.linspace(-4 - 8 * noise, 4 + 8 * noise, 1201)

    def density(values: tuple[float, ...]) -> np.ndarray:
        total = np.zeros((len(x), len(x)))
        for mask in range(2 ** len(values)):
            first = sum(v for i, v in enumerate(values) if mask >> i & 1)
            parts = oracle.normal(first, noise)(x), oracle.normal(sum(values) - first, noise)(x)
            total += np.outer(*parts) / 2 ** len(values)
        return total

    one, other, cell = density(pair.one), density(pair.other), (x[1] - x[0]) ** 2
    gamma = math.exp(at)
    truth = max(np.maximum(one - gamma * other, 0).sum(), np.maximum(other - gamma * one, 0).sum()) * cell
    certified = delta_at(Charge.of(BallsInBins(1, Gaussian(noise))), epsilon=at, relation=ADD_REMOVE)
    assert truth <= certified * (1 + 1e-4)


# PLD and RDP ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Neighbouring))
def test_pld_and_rdp_agree_under_both_relations(relation: Neighbouring) -> None:
    """The trap: one accountant reading z against C, the other against 2C, would differ by a factor of two."""
    for charge in (Charge.of(Gaussian(1.0)), Charge.of(Gaussian(3.0), 10)):
        exact = epsilon(charge, relation=relation)
        by_pld = pld_epsilon(charge, delta=1e-5, relation=relation)
        by_rdp = rdp_epsilon(charge, delta=1e-5, relation=relation)
        assert exact <= by_pld <= exact * 1.002
        assert exact <= by_rdp <= exact * 1.12


def test_the_trap_is_real_in_dp_accounting() -> None:
    """Without our conversion the same event and relation give 9.997 and 4.7285: the smaller one is false."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    replace_one = dp_accounting.NeighboringRelation.REPLACE_ONE
    theirs = []
    for accountant in (PLDAccountant(replace_one), RdpAccountant(list(range(2, 64)), replace_one)):
        accountant.compose(dp_accounting.GaussianDpEvent(1.0))
        theirs.append(accountant.get_epsilon(1e-5))
    assert theirs[0] > 2 * theirs[1]
    truth = epsilon(Charge.of(Gaussian(1.0)), relation=REPLACE_ONE)
    assert truth == pytest.approx(9.997, abs=1e-3)
    assert theirs[1] < truth  # "the tighter wins" would have printed this


@pytest.mark.parametrize(
    ("rate", "noise", "order", "expected"),
    [(0.25, 4.0, 1.1, 0.0021887101), (0.25, 4.0, 1.5, 0.00299894), (0.25, 4.0, 2.0, 0.0040228014)],
)
def test_renyi_divergences(rate: float, noise: float, order: float, expected: float) -> None:
    assert rdp.sampled_gaussian(rate, noise, (order,))[0] == pytest.approx(expected, abs=6e-9)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.25, 2.0), (0.5, 0.5), (0.9, 4.0)])
def test_quadrature_is_exact_where_the_sum_is(rate: float, noise: float) -> None:
    orders = np.array([2.0, 3.0, 7.0, 10.0])
    exact = [rdp._log_moment(rate, noise, int(order)) / (order - 1) for order in orders]
    assert rdp.forward(rate, noise, orders) == pytest.approx(exact, rel=1e-9)


@settings(max_examples=25)
@given(rate=st.floats(1e-4, 0.999), noise=st.floats(0.2, 20.0))
def test_the_reverse_direction_never_decides(rate: float, noise: float) -> None:
    orders = np.array([1.1, 1.5, 3.5, 9.5, 32.0])
    ahead = [rdp.sampled_gaussian(rate, noise, (float(order),))[0] for order in orders]
    assert (rdp.backward(rate, noise, orders) <= np.array(ahead) * (1 + 1e-9) + 1e-12).all()


def test_fractional_orders_lie_between_their_neighbours() -> None:
    values = rdp.sampled_gaussian(0.02, 0.9, (2.0, 2.5, 3.0, 3.5, 4.0))
    assert (np.diff(values) > 0).all()


# The discretisation and the composition -------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (1.0, 1.0), (0.3, 0.4), (0.9, 5.0)])
def test_loss_distributions_match_dp_accounting(rate: float, noise: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    ours = pld.sampled_gaussian(rate, noise, 1e-3, -50.0)
    theirs = pld.Pld.from_dp_accounting(
        privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-3
        )
    )
    sides = ((ours.with_without, theirs.with_without), (ours.without_with, theirs.without_with))
    for mine, reference in sides:
        assert mine.mass.sum() + mine.infinite == pytest.approx(1.0, abs=1e-12)
        for delta in (1e-3, 1e-6):
            expected = compose.Composition([(reference, 10)]).epsilon(delta)
            assert compose.Composition([(mine, 10)]).epsilon(delta) == pytest.approx(expected, rel=1e-5)


def test_discretised_divergence_is_never_below_the_density() -> None:
    rate, noise = 0.1, 0.8
    one, other = oracle.mixture([1 - rate, rate], [0, 1], noise), oracle.normal(0, noise)
    for grid in (1e-3, 0.05, 0.5):
        step = pld.sampled_gaussian(rate, noise, grid, -50.0)
        for at in (0.0, 0.123, 1.0, 2.3):
            ahead, back = (
                compose.Composition([(side, 1)]) for side in (step.with_without, step.without_with)
            )
            assert ahead.delta(at) >= oracle.hockey_stick(one, other, at, noise) * (1 - 1e-6)
            assert back.delta(at) >= oracle.hockey_stick(other, one, at, noise) * (1 - 1e-6) - 1e-12


def _convolved(pmf: pld.Pmf, count: int) -> compose.Window:
    """Composition by plain convolution: slow, but every term is positive, so every digit is right."""
    mass, first = np.ones(1), 0
    for _ in range(count):
        mass = np.convolve(mass, pmf.mass)
        first += pmf.first
        some = np.flatnonzero(mass > 1e-60)
        mass, first = mass[some[0] : some[-1] + 1], first + int(some[0])
    return compose.Window(pmf.grid, first, compose._deltas(mass, 0.0, pmf.grid))


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12, 1e-30])
def test_the_tilted_transform_is_exact_for_tiny_deltas(delta: float) -> None:
    step = pld.sampled_gaussian(0.05, 1.0, 0.02, -200.0).with_without
    expected = _convolved(step, 40).epsilon(delta)
    assert expected is not None
    assert compose.Composition([(step, 40)]).epsilon(delta) == pytest.approx(expected, rel=1e-7)


def test_without_a_tilt_tiny_deltas_would_be_wrong() -> None:
    """Negative control: dp-accounting's plain transform loses them, and on the unsafe side."""
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=5e-3
    ).self_compose(1000)
    ours = pld_epsilon(poisson(0.01, 1.0, 1000), delta=1e-12, relation=ADD_REMOVE, grid=5e-3)
    assert theirs.get_epsilon_for_delta(1e-12) < ours * (1 - 3e-4)
    assert theirs.get_epsilon_for_delta(1e-5) == pytest.approx(
        pld_epsilon(poisson(0.01, 1.0, 1000), delta=1e-5, relation=ADD_REMOVE, grid=5e-3), rel=1e-5
    )


def test_epsilon_and_delta_are_inverse() -> None:
    charge = poisson(0.02, 1.0, 500)
    for delta in (1e-3, 1e-6, 1e-10):
        assert delta_at(charge, epsilon=epsilon(charge, delta), relation=ADD_REMOVE) == pytest.approx(
            delta, rel=0.05
        )


def test_the_profile_falls() -> None:
    charge = poisson(0.02, 1.0, 500) + Charge.of(Gaussian(5.0))
    deltas = profile(charge, epsilons=(0.0, 0.5, 1.0, 2.0, 4.0, 8.0), relation=ADD_REMOVE)
    assert all(before > after for before, after in itertools.pairwise(deltas))
    assert 0 < deltas[-1] < deltas[0] < 1


def test_the_profile_at_zero_is_the_total_variation() -> None:
    assert delta_at(Charge.of(Gaussian(1.0)), epsilon=0.0, relation=ADD_REMOVE) == pytest.approx(
        0.382925, abs=1e-6
    )
    found = delta_at(poisson(0.1, 1.0), epsilon=0.0, relation=ADD_REMOVE)
    assert found == pytest.approx(0.0382925, rel=1e-3)


# Schedules ------------------------------------------------------------------------------------------------


def test_rounding_a_long_schedule_is_safe_and_small() -> None:
    charge = Charge(tuple((PoissonSampled(0.02, Gaussian(4 / k**0.25)), 1) for k in range(1, 301)))
    exact = pld_epsilon(charge, delta=1e-5, relation=ADD_REMOVE, grid=1e-3)
    assert exact <= epsilon(charge) <= exact * (1 + FINE)


def test_a_mean_noise_would_not_be_safe() -> None:
    """Negative control: charging a schedule at its average noise understates it."""
    schedule = poisson(0.02, 0.7, 50) + poisson(0.02, 2.1, 50)
    assert epsilon(poisson(0.02, 1.4, 100)) < 0.9 * epsilon(schedule)


# Properties -----------------------------------------------------------------------------------------------

rates = st.floats(0.001, 0.5)
noises = st.floats(0.4, 8.0)
steps = st.integers(1, 2000)
deltas = st.floats(-12.0, -2.0).map(lambda power: 10**power)
SLACK = 1 + FINE  # both sides are upper bounds within this of the truth


@settings(max_examples=15)
@given(rate=rates, noise=noises, count=steps, delta=deltas, more=st.floats(1.05, 3.0))
def test_epsilon_is_monotone(rate: float, noise: float, count: int, delta: float, more: float) -> None:
    found = epsilon(poisson(rate, noise, count), delta)
    assert found >= 0
    assert math.isfinite(found)
    assert found <= epsilon(poisson(rate, noise, math.ceil(count * more)), delta) * SLACK
    assert found <= epsilon(poisson(min(1.0, rate * more), noise, count), delta) * SLACK
    assert found <= epsilon(poisson(rate, noise / more, count), delta) * SLACK
    assert found <= epsilon(poisson(rate, noise, count), delta / more) * SLACK


@settings(max_examples=15)
@given(rate=rates, noise=noises, count=steps, delta=deltas)
def test_the_certificate_is_at_most_every_bound(rate: float, noise: float, count: int, delta: float) -> None:
    charge = poisson(rate, noise, count)
    found = epsilon(charge, delta)
    assert found <= rdp_epsilon(charge, delta=delta, relation=ADD_REMOVE)
    assert found <= pld_epsilon(charge, delta=delta, relation=ADD_REMOVE, grid=0.02) * SLACK
    whole = epsilon(Charge.of(Gaussian(noise), count), delta)
    assert found <= whole * SLACK


some_events = st.one_of(
    st.builds(Gaussian, st.floats(1.0, 20.0)),
    st.builds(PoissonSampled, st.sampled_from([0.01, 0.05]), st.builds(Gaussian, st.floats(0.8, 4.0))),
    st.just(Free()),
)
parts = st.lists(st.tuples(some_events, st.integers(1, 20)), min_size=1, max_size=5)


@settings(max_examples=15)
@given(items=parts, order=st.randoms(use_true_random=False), cut=st.integers(0, 5))
def test_composition_is_free_of_order_and_of_cuts(
    items: list[tuple[Event, int]], order: object, cut: int
) -> None:
    charge = Charge(tuple(items))
    shuffled = list(items)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    again = Charge(tuple(shuffled[:cut])) + Charge(tuple(shuffled[cut:]))
    assert again == charge
    assert hash(again) == hash(charge)
    assert epsilon(again) == epsilon(charge)


def test_repeating_is_adding() -> None:
    step = poisson(0.01, 1.0)
    assert step * 6 == step + step + step + step + step + step == 6 * step
    assert epsilon(step * 600) > 1.5 * epsilon(step * 100)  # a forgotten count would cost nothing


# Extremes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(0.0),
        CountQuery(0.0),
        SelectionQuery(0.0, 1.0),
        Queries((Gaussian(1.0), Gaussian(0.0))),
        PoissonSampled(0.01, Gaussian(0.0)),
        TruncatedPoisson(0.01, 20, 1000, Gaussian(0.0)),
        BallsInBins(3, Gaussian(0.0)),
        Unamplified(Gaussian(0.0)),
        NonPrivate(),
    ],
    ids=lambda event: event.kind,
)
def test_without_noise_epsilon_is_infinite(event: Event) -> None:
    certificate = certify(Charge.of(event) + poisson(0.01, 1.0), delta=1e-5, relation=ADD_REMOVE)
    assert certificate.epsilon == math.inf
    assert certificate.to_json()["epsilon"] == "inf"
    assert delta_at(Charge.of(event), epsilon=3.0, relation=ADD_REMOVE) == 1.0
    assert gdp_estimate(Charge.of(event), delta=1e-5, relation=ADD_REMOVE) == math.inf


def test_nothing_costs_nothing() -> None:
    for charge in (Charge(), Charge.of(Free(), 1000)):
        assert epsilon(charge) == 0
        assert pld_epsilon(charge, delta=1e-5, relation=ADD_REMOVE) == 0
        assert rdp_epsilon(charge, delta=1e-5, relation=ADD_REMOVE) == 0
        assert delta_at(charge, epsilon=0.0, relation=ADD_REMOVE) == 0


@pytest.mark.parametrize("delta", [1e-300, 1e-50, 1e-15, 0.5, 1 - 1e-9])
@pytest.mark.parametrize(
    ("rate", "noise", "count"),
    [
        (1e-9, 1.0, 10),
        (0.01, 1e-6, 1000),
        (0.01, 1e6, 1000),
        (0.999999, 1.0, 10),
        (0.5, 0.02, 1),
        (0.3, 5.0, 10**7),
    ],
)
def test_extremes_give_numbers(rate: float, noise: float, count: int, delta: float) -> None:
    found = epsilon(poisson(rate, noise, count), delta)
    assert found >= 0
    assert not math.isnan(found)


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 1.0, 1e3, 1e8])
def test_exact_gaussians_stay_numbers(mu: float) -> None:
    for delta in (1e-300, 1e-5, 0.9):
        found = epsilon(Charge.of(Gaussian(1 / mu)), delta)
        assert 0 <= found < math.inf
        assert (
            0
            <= delta_at(Charge.of(Gaussian(1 / mu)), epsilon=found, relation=ADD_REMOVE)
            <= delta * (1 + 1e-6)
        )


# What is not proven is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (PoissonSampled(0.1, Gaussian(1.0)), REPLACE_ONE),
        (TruncatedPoisson(0.1, 5, 20, Gaussian(1.0)), REPLACE_ONE),
        (WithoutReplacement(20, 5, Gaussian(1.0)), ADD_REMOVE),
        (ShuffledEpoch(Gaussian(1.0)), ADD_REMOVE),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_samplers_are_refused_under_the_wrong_relation(event: Event, relation: Neighbouring) -> None:
    with pytest.raises(Refused, match=f"{event.kind} under .*got relation={relation}.*Remedy"):
        certify(Charge.of(event), delta=1e-5, relation=relation)


def test_an_unknown_event_is_refused() -> None:
    class Guess(Event):
        kind = "guess"

    with pytest.raises(Refused, match="proven bound"):
        certify(Charge.of(Guess()), delta=1e-5, relation=ADD_REMOVE)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan, "1e-5"])
def test_bad_deltas_are_refused(delta: float) -> None:
    for ask in (certify, pld_epsilon, rdp_epsilon, gdp_estimate):
        with pytest.raises(Refused, match="Remedy"):
            ask(Charge.of(Gaussian(1.0)), delta=delta, relation=ADD_REMOVE)


def test_bad_epsilons_and_grids_are_refused() -> None:
    with pytest.raises(Refused):
        delta_at(Charge.of(Gaussian(1.0)), epsilon=-1.0, relation=ADD_REMOVE)
    with pytest.raises(Refused):
        pld_epsilon(poisson(0.1, 1.0), delta=1e-5, relation=ADD_REMOVE, grid=0.0)


def test_bad_counts_are_refused() -> None:
    for count in (-1, 1.5, True, "3"):
        with pytest.raises(Refused):
            Charge.of(Gaussian(1.0), count)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        Charge.of(Gaussian(1.0)) * -1
    with pytest.raises(Refused, match="an event"):
        Charge((("gaussian", 1),))  # type: ignore[arg-type]


# Samplers without amplification ---------------------------------------------------------------------------


def test_unamplified_steps_cost_full_gaussians() -> None:
    full = epsilon(Charge.of(Gaussian(4.0), 30))
    assert epsilon(Charge.of(Unamplified(Gaussian(4.0)), 30)) == full
    assert epsilon(Charge.of(BallsInBins(30, Gaussian(4.0)))) == pytest.approx(full, rel=1e-9)
    assert epsilon(Charge.of(ShuffledEpoch(Gaussian(4.0)), 30), relation=REPLACE_ONE) == epsilon(
        Charge.of(Gaussian(4.0), 30), relation=REPLACE_ONE
    )
    assert full > epsilon(poisson(0.1, 4.0, 30))


def test_taking_everything_is_no_sampling() -> None:
    assert epsilon(poisson(1.0, 2.0, 7)) == epsilon(Charge.of(Gaussian(2.0), 7))
    whole = Charge.of(WithoutReplacement(50, 50, Gaussian(2.0)), 7)
    assert epsilon(whole, relation=REPLACE_ONE) == epsilon(Charge.of(Gaussian(2.0), 7), relation=REPLACE_ONE)


def test_the_count_query_is_billed() -> None:
    """Opacus before 1.6 charged the gradient alone."""
    both = Charge.of(PoissonSampled(0.01, Queries((Gaussian(1.0), CountQuery(5.0)))), 1000)
    combined = (1.0 + 10.0**-2) ** -0.5
    assert epsilon(both) == pytest.approx(epsilon(poisson(0.01, combined, 1000)), rel=1e-9)
    assert epsilon(both) > epsilon(poisson(0.01, 1.0, 1000))


def test_the_estimate_is_no_bound() -> None:
    charge = poisson(0.01, 1.0, 1000)
    assert gdp_estimate(charge, delta=1e-5, relation=ADD_REMOVE) < epsilon(charge)
    assert gdp_estimate(Charge.of(Gaussian(1.0)), delta=1e-5, relation=ADD_REMOVE) == epsilon(
        Charge.of(Gaussian(1.0))
    )


# What a certificate says ----------------------------------------------------------------------------------


def test_a_certificate_says_what_it_rests_on() -> None:
    charge = poisson(0.01, 1.0, 10) + Charge((), None, ("the clip was chosen on public data",))
    certificate = certify(charge, delta=1e-5, relation=ADD_REMOVE)
    body = json.loads(json.dumps(certificate.to_json()))
    assert body["accountant"] == "PLD"
    assert body["relation"] == "add/remove"
    assert body["delta"] == 1e-5
    assert body["epsilon"] == certificate.epsilon
    assert "the clip was chosen on public data" in body["assumptions"]
    assert any("sampled independently" in words for words in body["assumptions"])


def test_the_winner_is_named() -> None:
    assert certify(Charge.of(Gaussian(1.0)), delta=1e-5, relation=ADD_REMOVE).accountant == "exact Gaussian"
    assert certify(poisson(0.01, 1.0), delta=1e-5, relation=ADD_REMOVE).accountant == "PLD"
    assert certify(Charge.of(NonPrivate()), delta=1e-5, relation=ADD_REMOVE).accountant == "none"
    assert Certificate(1.0, 1e-5, ADD_REMOVE, "PLD").assumptions == ()


# Speed and imports ----------------------------------------------------------------------------------------


def test_speed() -> None:
    """CPU time, so that a busy machine does not matter: 10^6 steps and 1000 entries under 2 s each."""
    epsilon(poisson(0.3, 2.0))  # imports
    begin = time.process_time()
    epsilon(poisson(0.0123, 1.0, 10**6))
    assert time.process_time() - begin < 2.0
    schedule = Charge(tuple((PoissonSampled(0.017, Gaussian(3.1 / k**0.25)), 1) for k in range(1, 1001)))
    begin = time.process_time()
    epsilon(schedule)
    assert time.process_time() - begin < 2.0


def test_accounting_starts_without_torch_and_quickly() -> None:
    program = (
        "import sys, time; begin = time.process_time(); import discreet.accounting; "
        "print(time.process_time() - begin, 'torch' in sys.modules, 'dp_accounting' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, torch, dp_accounting = done.stdout.split()
    assert torch == "False"
    assert dp_accounting == "False"
    assert float(seconds) < 1.0


def test_accounting_a_run_does_not_load_torch() -> None:
    program = (
        "import sys; from discreet.accounting import *; "
        "charge = Charge.of(PoissonSampled(0.1, Gaussian(1.0)), 10); "
        "certify(charge, delta=1e-5, relation=Neighbouring.ADD_REMOVE); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
