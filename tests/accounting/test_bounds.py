"""The two accountants beside each other, and their numerics beside slower arithmetic."""

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import oracle
import pytest
from deltas import composed_delta, delta_at
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting import events, gdp, pld, rdp
from discreet.accounting import pld_composition as compose
from discreet.accounting.accountants import certify, pld_epsilon, rdp_epsilon
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, PoissonSampled
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring

ADD_REMOVE, REPLACE_ONE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE


def epsilon(charge: Charge, delta: float = 1e-5, relation: Neighbouring = ADD_REMOVE) -> float:
    return certify(charge, delta=delta, relation=relation).epsilon


def poisson(rate: float, noise: float, steps: int = 1) -> Charge:
    return Charge.of(PoissonSampled(rate, Gaussian(noise)), steps)


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


# A fixed size without replacement ---------------------------------------------------------------------------

FIXED = [(10_000, 100, 0.5), (1000, 10, 1.0), (1000, 250, 2.0), (60_000, 600, 5.0), (1000, 500, 0.1)]


@pytest.mark.parametrize(("records", "batch", "noise"), FIXED)
def test_fixed_size_divergence_is_dp_accountings(records: int, batch: int, noise: float) -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = tuple(float(order) for order in range(2, 65))
    accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(noise)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(records, batch, gaussian))
    ours = rdp.without_replacement(batch / records, noise, orders)
    assert ours == pytest.approx(np.array(accountant._rdp), rel=1e-8)


@pytest.mark.parametrize(("records", "batch", "noise"), [*FIXED, (10**6, 10, 20.0), (1000, 10, 300.0)])
def test_fixed_size_divergence_is_the_alternating_sum_in_long_arithmetic(
    records: int, batch: int, noise: float
) -> None:
    """dp-accounting itself is off by 5e-5 at small rates and by 1e-8 at much noise."""
    with mpmath.workdps(200):
        q, square = mpmath.mpf(batch) / records, mpmath.mpf(noise) ** -2

        def moment(power: int) -> mpmath.mpf:
            signed = (
                (-1) ** j * mpmath.binomial(power, j) * mpmath.exp(j * (j - 1) * square / 2) for j in range(power + 1)
            )
            return mpmath.fsum(signed)

        for order in (2, 5, 16, 63):
            total = mpmath.mpf(1)
            for i in range(2, order + 1):
                root = 4 * mpmath.sqrt(moment(2 * (i // 2)) * moment(2 * ((i + 1) // 2)))
                least = min(root, 2 * mpmath.exp(i * (i - 1) * square / 2))
                total += mpmath.binomial(order, i) * q**i * least
            exact = float(mpmath.log(total) / (order - 1))
            found = float(rdp.without_replacement(batch / records, noise, (float(order),))[0])
            assert exact <= found <= exact * (1 + 1e-8)


def test_fixed_size_divergence_covers_only_its_orders() -> None:
    found = rdp.without_replacement(0.1, 1.0, (1.5, 2.0, 64.0, 65.0))
    assert np.isfinite(found).tolist() == [False, True, True, False]
    assert rdp.without_replacement(1.0, 2.0, (3.0,))[0] == 3 / 8
    assert math.isfinite(rdp.without_replacement(0.5, 1e-6, (8.0,))[0])  # quadrature would be too long


# The discretisation and the composition -------------------------------------------------------------------


def _as_pmf(theirs: Any) -> pld.Pmf:
    """dp-accounting's distribution as ours."""
    dense = theirs.to_dense_pmf()
    mass = np.array(dense._probs, dtype=np.float64)
    return pld.Pmf(float(dense._discretization), int(dense._lower_loss), mass, float(dense._infinity_mass))


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (1.0, 1.0), (0.3, 0.4), (0.9, 5.0)])
def test_loss_distributions_match_dp_accounting(rate: float, noise: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    ours = pld.sampled_gaussian(rate, noise, 1e-3, -50.0)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-3
    )
    sides = (
        (ours.with_without, _as_pmf(theirs._pmf_remove)),
        (ours.without_with, _as_pmf(theirs._pmf_remove if theirs._symmetric else theirs._pmf_add)),
    )
    for mine, reference in sides:
        assert mine.mass.sum() + mine.infinite == pytest.approx(1.0, abs=1e-12)
        for delta in (1e-3, 1e-6):
            expected = compose.ComposedLoss([(reference, 10)]).epsilon(delta)
            assert compose.ComposedLoss([(mine, 10)]).epsilon(delta) == pytest.approx(expected, rel=1e-5)


def test_discretised_divergence_is_never_below_the_density() -> None:
    rate, noise = 0.1, 0.8
    one, other = oracle.mixture([1 - rate, rate], [0, 1], noise), oracle.normal(0, noise)
    for grid in (1e-3, 0.05, 0.5):
        step = pld.sampled_gaussian(rate, noise, grid, -50.0)
        for at in (0.0, 0.123, 1.0, 2.3):
            ahead, back = (compose.ComposedLoss([(side, 1)]) for side in (step.with_without, step.without_with))
            assert composed_delta(ahead, at) >= oracle.hockey_stick(one, other, at, noise) * (1 - 1e-6)
            assert composed_delta(back, at) >= oracle.hockey_stick(other, one, at, noise) * (1 - 1e-6) - 1e-12


def _convolved(pmf: pld.Pmf, count: int) -> compose.LossWindow:
    """Composition by plain convolution: slow, but every term is positive, so every digit is right."""
    mass, first = np.ones(1), 0
    for _ in range(count):
        mass = np.convolve(mass, pmf.mass)
        first += pmf.first
        some = np.flatnonzero(mass > 1e-60)
        mass, first = mass[some[0] : some[-1] + 1], first + int(some[0])
    return compose.LossWindow(pmf.grid, first, compose._deltas(mass, 0.0, pmf.grid))


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12, 1e-30])
def test_the_tilted_transform_is_exact_for_tiny_deltas(delta: float) -> None:
    step = pld.sampled_gaussian(0.05, 1.0, 0.02, -200.0).with_without
    expected = _convolved(step, 40).epsilon(delta)
    assert expected is not None
    assert compose.ComposedLoss([(step, 40)]).epsilon(delta) == pytest.approx(expected, rel=1e-7)


def test_without_a_tilt_tiny_deltas_would_be_wrong() -> None:
    """Negative control: dp-accounting's plain transform loses them; on which side depends on the processor."""
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=5e-3
    ).self_compose(1000)
    ours = pld_epsilon(poisson(0.01, 1.0, 1000), delta=1e-14, relation=ADD_REMOVE, grid=5e-3)
    assert theirs.get_epsilon_for_delta(1e-14) != pytest.approx(ours, rel=3e-4)
    assert theirs.get_epsilon_for_delta(1e-5) == pytest.approx(
        pld_epsilon(poisson(0.01, 1.0, 1000), delta=1e-5, relation=ADD_REMOVE, grid=5e-3), rel=1e-5
    )


def test_epsilon_and_delta_are_inverse() -> None:
    charge = poisson(0.02, 1.0, 500)
    for delta in (1e-3, 1e-6, 1e-10):
        assert delta_at(charge, epsilon=epsilon(charge, delta), relation=ADD_REMOVE) == pytest.approx(delta, rel=0.05)


def test_the_profile_falls() -> None:
    charge = poisson(0.02, 1.0, 500) + Charge.of(Gaussian(5.0))
    deltas = [delta_at(charge, epsilon=at, relation=ADD_REMOVE) for at in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)]
    assert all(before > after for before, after in itertools.pairwise(deltas))
    assert 0 < deltas[-1] < deltas[0] < 1


def test_a_delta_that_underflows_in_one_direction_is_no_error() -> None:
    """At epsilon 8 the direction without || with has a delta below the smallest float."""
    found = delta_at(poisson(0.01, 1.0, 1000), epsilon=8.0, relation=ADD_REMOVE)
    assert 0 < found < 1e-20


def test_the_profile_at_zero_is_the_total_variation() -> None:
    assert delta_at(Charge.of(Gaussian(1.0)), epsilon=0.0, relation=ADD_REMOVE) == pytest.approx(0.382925, abs=1e-6)
    found = delta_at(poisson(0.1, 1.0), epsilon=0.0, relation=ADD_REMOVE)
    assert found == pytest.approx(0.0382925, rel=1e-3)


def test_a_tail_below_the_rounding_of_the_transform_is_not_cut_off() -> None:
    """A coarse grid and a delta of 1e-29: without the allowance for rounding the answer was far too small."""
    grid, noise, epsilon = 0.15783, 3.8021, 2.9108
    mass = pld.gaussian(noise, grid, -200.0).with_without
    exact = gdp.delta(1 / noise, epsilon)
    assert composed_delta(compose.ComposedLoss([(mass, 1)]), epsilon) >= exact > 0


def test_a_loader_that_walks_over_the_records_moves_every_batch_by_two_clips() -> None:
    """Records +C, -C, +C, ... in batches of one, with one more in front: all T sums move by 2C."""
    steps, noise = 100, 10.0
    charge = Charge.of(events.Unamplified(events.Gaussian(noise)), steps)
    truth = gdp.epsilon(2 * math.sqrt(steps) / noise, 1e-5)
    for relation in Neighbouring:
        assert certify(charge, delta=1e-5, relation=relation).epsilon >= truth * (1 - 1e-9)


def test_the_last_iterate_is_for_single_gaussian_steps() -> None:
    step = events.WithoutReplacement(100, 10, events.Queries((events.Gaussian(1.0), events.CountQuery(5.0))))
    numbers = {"steps": 5, "clip": 1.0, "batch": 10.0, "learning_rate": 0.1, "diameter": 1.0, "expansion": 1.0}
    with pytest.raises(Refused, match="LastIterateRun"):
        events.LastIterateRun(step=step, **numbers)  # type: ignore[arg-type]


def test_a_sampled_projection_prints_what_both_rest_on() -> None:
    step = events.PoissonSampled(0.1, events.ProjectedGaussian(1.0, (50,)))
    printed = " ".join(certify(Charge.of(step), delta=1e-5, relation=ADD_REMOVE).assumptions)
    assert "the projection is drawn afresh" in printed
    assert "sampled independently" in printed
