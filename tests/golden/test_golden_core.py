"""The numbers that the core of the accounting is pinned to (delta = 1e-5, add/remove unless said).

With a grid given the tolerance is 1e-4, relative. On the default grid the certificate may not fall below the
finest value known and may exceed it by at most 0.5 %.
"""

import pytest

from discreet.accounting import rdp as renyi
from discreet.accounting.accountants import certify, pld_epsilon, rdp_epsilon
from discreet.accounting.charges import Charge
from discreet.accounting.events import (
    CountQuery,
    Gaussian,
    PoissonSampled,
    Queries,
    TruncatedPoissonSampled,
    WithoutReplacement,
)
from discreet.core.relation import Neighbouring
from discreet.methods.geodp.recipes import GeoDpOneStepClaim

ADD_REMOVE, REPLACE_ONE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
DELTA = 1e-5


def poisson(rate: float, noise: float, steps: int) -> Charge:
    return Charge.of(PoissonSampled(rate, Gaussian(noise)), steps)


def schedule(power: float) -> Charge:
    """40 epochs of 59 steps, batch 1024 of 60000, noise 3/k^power in epoch k."""
    return Charge(tuple((PoissonSampled(1024 / 60_000, Gaussian(3 / k**power)), 59) for k in range(1, 41)))


def on_grid(charge: Charge, grid: float) -> float:
    return pld_epsilon(charge, delta=DELTA, relation=ADD_REMOVE, grid=grid)


# Numerics ----------------------------------------------------------


@pytest.mark.parametrize(("order", "expected"), [(1.1, 0.0021887101), (1.5, 0.00299894), (2.0, 0.0040228014)])
def test_renyi_divergence_of_the_sampled_gaussian(order: float, expected: float) -> None:
    assert renyi.sampled_gaussian(0.25, 4.0, (order,))[0] == pytest.approx(expected, rel=1e-4)


def test_renyi_divergence_where_dp_accounting_gives_up() -> None:
    assert renyi.sampled_gaussian(0.25, 2.0, (1.1,))[0] == pytest.approx(0.00923689, rel=1e-4)


def test_real_orders_convert_to_the_known_epsilon() -> None:
    found = rdp_epsilon(poisson(0.017, 1.1, 2344), delta=DELTA, relation=ADD_REMOVE)
    assert found == pytest.approx(4.656, abs=1e-3)


def test_a_replaced_record_costs_the_double_distance() -> None:
    gaussian = Charge.of(Gaussian(1.0))
    assert certify(gaussian, delta=DELTA, relation=REPLACE_ONE).epsilon == pytest.approx(9.997, abs=1e-3)
    assert rdp_epsilon(gaussian, delta=DELTA, relation=ADD_REMOVE) == pytest.approx(4.7285, rel=1e-3)
    assert certify(gaussian, delta=DELTA, relation=ADD_REMOVE).epsilon == pytest.approx(4.37718, abs=1e-5)


# Poisson ----------------------------------------------------------

ON_GRID = [
    (0.017, 1.1, 2344, 1e-3, 4.2586),
    (0.017, 1.1, 2344, 1e-4, 4.25769),
    (0.01, 1.0, 100, 1e-3, 0.7181),
    (0.01, 1.0, 1000, 1e-3, 1.8289),
    (0.01, 1.0, 10**4, 1e-3, 6.1910),
    (0.01, 1.0, 10**4, 2e-4, 6.1878),
    (0.01, 1.0, 10**4, 5e-3, 6.2724),
    (0.01, 1.0, 10**5, 5e-3, 26.005),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "grid", "expected"), ON_GRID)
def test_poisson_on_a_given_grid(rate: float, noise: float, steps: int, grid: float, expected: float) -> None:
    assert on_grid(poisson(rate, noise, steps), grid) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "finest"),
    [(0.017, 1.1, 2344, 1e-4), (0.01, 1.0, 100, 1e-4), (0.01, 1.0, 1000, 1e-4), (0.01, 1.0, 10**4, 1e-4)],
)
def test_poisson_on_the_default_grid(rate: float, noise: float, steps: int, finest: float) -> None:
    charge = poisson(rate, noise, steps)
    found = certify(charge, delta=DELTA, relation=ADD_REMOVE)
    best = on_grid(charge, finest)
    assert found.accountant == "PLD"
    assert best <= found.epsilon <= 1.005 * best


def test_the_default_grid_is_finer_than_a_coarse_golden() -> None:
    """26.005 belongs to h = 5e-3; at h = 2e-4 the same run has 25.574."""
    found = certify(poisson(0.01, 1.0, 10**5), delta=DELTA, relation=ADD_REMOVE).epsilon
    assert 25.5737 <= found <= 25.5737 * 1.005


# Other samplers ----------------------------------------------------------


def test_without_replacement() -> None:
    """z = 1 against 2C is a noise of 2 against C."""
    charge = Charge.of(WithoutReplacement(10_000, 100, Gaussian(2.0)), 1000)
    assert rdp_epsilon(charge, delta=DELTA, relation=REPLACE_ONE) == pytest.approx(3.5761, rel=1e-4)
    by_pld = pld_epsilon(charge, delta=DELTA, relation=REPLACE_ONE, grid=1e-3)
    assert by_pld == pytest.approx(2.1993, rel=1e-4)
    certificate = certify(charge, delta=DELTA, relation=REPLACE_ONE)
    assert certificate.accountant == "PLD"
    assert certificate.epsilon == pytest.approx(2.1993, rel=5e-3)


@pytest.mark.parametrize(("cap", "theirs"), [(620, 8.3336), (660, 4.4791), (700, 1.8799), (800, 1.8289)])
def test_truncated_poisson_is_at_least_as_tight_as_dp_accounting(cap: int, theirs: float) -> None:
    """dp-accounting's pair for a full batch is loose; ours also covers every smaller size of the data."""
    from dp_accounting.pld import privacy_loss_distribution

    reference = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        60_000, 0.01, cap, 1.0, value_discretization_interval=1e-3
    ).self_compose(1000)
    assert reference.get_epsilon_for_delta(DELTA) == pytest.approx(theirs, rel=1e-4)
    charge = Charge.of(TruncatedPoissonSampled(0.01, cap, 60_000, Gaussian(1.0)), 1000)
    found = certify(charge, delta=DELTA, relation=ADD_REMOVE).epsilon
    assert found <= theirs * 1.0001
    assert found >= 1.8282  # never below the same run without a cap
    assert found >= 0.96 * theirs


def test_a_cap_that_never_bites_costs_nothing() -> None:
    charge = Charge.of(TruncatedPoissonSampled(0.01, 800, 60_000, Gaussian(1.0)), 1000)
    assert on_grid(charge, 1e-3) == pytest.approx(1.8289, rel=1e-4)


def test_a_larger_public_bound_never_lowers_the_certificate() -> None:
    """dp-accounting's own numbers rise and fall with n: at 76000 records 14.01, at 200000 6.67."""
    found = [
        certify(
            Charge.of(TruncatedPoissonSampled(0.01, 700, n, Gaussian(1.0)), 1000), delta=DELTA, relation=ADD_REMOVE
        ).epsilon
        for n in (60_000, 61_000, 63_000, 76_000, 200_000)
    ]
    assert found == sorted(found)
    assert found[1] == pytest.approx(2.24, rel=0.01)
    assert found[2] == pytest.approx(3.91, rel=0.01)


# Schedules ----------------------------------------------------------


@pytest.mark.parametrize(
    ("power", "grid", "expected"), [(0.0, 1e-4, 1.0806), (0.25, 5e-4, 2.8305), (0.5, 1e-3, 19.8178)]
)
def test_schedules_entry_by_entry(power: float, grid: float, expected: float) -> None:
    assert on_grid(schedule(power), grid) == pytest.approx(expected, rel=1e-4)
    found = certify(schedule(power), delta=DELTA, relation=ADD_REMOVE).epsilon
    assert expected * (1 - 1e-3) <= found <= expected * 1.005


# Queries that share a sample ----------------------------------------------------------


def test_polar_release() -> None:
    step = PoissonSampled(0.01, Queries((Gaussian(1.2), Gaussian(4.0))))
    assert on_grid(Charge.of(step, 1000), 1e-3) == pytest.approx(1.4002, rel=1e-4)
    found = certify(Charge.of(step, 1000), delta=DELTA, relation=ADD_REMOVE).epsilon
    assert 1.39930 <= found <= 1.39931 * 1.005


def test_sound_geometric_release_whitens() -> None:
    assert Queries((Gaussian(2.0), Gaussian(3.0))).whitened.noise == pytest.approx(1.66410, abs=1e-5)


def test_the_quantile_count_whitens_against_one_half() -> None:
    charged = Queries((Gaussian(1.0), CountQuery(sigma=10.0))).whitened.noise
    assert charged == pytest.approx((1.0**-2 + 20.0**-2) ** -0.5, rel=1e-12)


def test_ranked_freeze_with_a_second_draw_is_a_second_release() -> None:
    twice = PoissonSampled(0.017, Queries((Gaussian(1.1), Gaussian(1.1))))
    assert on_grid(Charge.of(twice, 2344), 1e-3) == pytest.approx(8.894, rel=1e-4)
    assert on_grid(poisson(0.017, 1.1, 2344), 1e-3) == pytest.approx(4.2586, rel=1e-4)


def test_geodp_claim_beside_the_exact_gaussian() -> None:
    assert GeoDpOneStepClaim(noise=1.0, beta=1.0).epsilon(DELTA) == pytest.approx(4.84481, abs=1e-5)
    assert certify(Charge.of(Gaussian(1.0)), delta=DELTA, relation=ADD_REMOVE).epsilon == pytest.approx(
        4.37718, abs=1e-5
    )
