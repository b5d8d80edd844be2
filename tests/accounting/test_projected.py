"""The projected Gaussian: profiles against quadrature, the mixture over s against exact integrals, RDP."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy import integrate, special

from discreet.accounting import pld, projected, rdp
from discreet.accounting.pld import Floats, Pmf
from discreet.accounting.pld_composition import ComposedLoss
from timing import times_as_long


def delta_of(pmf: Pmf, epsilon: float) -> float:
    return pmf.infinite + float(pmf.mass @ np.maximum(0.0, -np.expm1(epsilon - pmf.losses)))


def step_profile(epsilons: Floats, *, rate: float, noise: float, dims: tuple[float, ...]) -> tuple[Floats, Floats]:
    """The bound of both directions of one step that `pld_step` puts on a grid."""
    return projected._mixed(epsilons, rate, noise, projected._nodes(dims, noise, 200, 1e-13))


def reference_profile(t: float, mu: float) -> float:
    with mpmath.workdps(60):
        m, t_ = mpmath.mpf(mu), mpmath.mpf(t)
        return float(mpmath.ncdf(m / 2 - t_ / m) - mpmath.exp(t_) * mpmath.ncdf(-m / 2 - t_ / m))


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 7.0, 60.0])
@pytest.mark.parametrize("position", [-40.0, -3.0, 0.0, 0.5, 3.0, 12.0, 30.0])
def test_gaussian_profile_keeps_its_digits_in_the_tails(mu: float, position: float) -> None:
    t = mu * (position + mu / 2)
    expected = reference_profile(t, mu)
    got = float(projected.gaussian_profile(np.array([t]), mu)[0])
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_the_textbook_formula_would_fail_that_test() -> None:
    mu, t = 1.0, 12.5
    naive = special.ndtr(mu / 2 - t / mu) - math.exp(t) * (1 - special.ndtr(mu / 2 + t / mu))
    assert abs(naive / reference_profile(t, mu) - 1) > 0.5


def integrated(epsilon: float, rate: float, mu: float) -> tuple[float, float]:
    def density(x: float) -> tuple[float, float]:
        base = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return base * (1 - rate + rate * math.exp(mu * x - mu * mu / 2)), base

    def removed(x: float) -> float:
        p, q = density(x)
        return max(0.0, p - math.exp(epsilon) * q)

    def added(x: float) -> float:
        p, q = density(x)
        return max(0.0, q - math.exp(epsilon) * p)

    pieces = np.linspace(-10, 10 + mu, 41)
    ends = list(itertools.pairwise(pieces))
    sides = [sum(integrate.quad(side, a, b, limit=200)[0] for a, b in ends) for side in (removed, added)]
    return sides[0], sides[1]


@pytest.mark.parametrize(("rate", "mu"), [(0.3, 1.5), (1.0, 1.0), (0.05, 4.0)])
def test_profile_is_the_integral_in_both_directions(rate: float, mu: float) -> None:
    for epsilon in (0.0, 0.02, 0.3, 1.0):
        got = projected.profile(np.array([epsilon]), rate=rate, mu=mu)
        expected = integrated(epsilon, rate, mu)
        assert [float(side[0]) for side in got] == pytest.approx(expected, rel=1e-6, abs=1e-10)
    removed, added = projected.profile(np.array([0.2]), rate=0.3, mu=1.5)
    assert removed[0] > 1.05 * added[0]  # the directions differ: swapping them would be seen


def test_profile_is_convex_in_w_and_not_in_s() -> None:
    """The rule that moves mass between nodes needs convexity in Phi(mu/2); in mu itself it would be wrong."""
    w = np.linspace(0.51, 0.999, 150)
    mu_of_w = 2 * special.ndtri(w)
    mu = np.linspace(0.05, 6.0, 150)
    concave_in_mu = 0
    for t in np.linspace(-3, 12, 31):
        values = np.array([projected.gaussian_profile(np.array([t]), m)[0] for m in mu_of_w])
        assert np.diff(values, 2).min() > -1e-13
        plain = np.array([projected.gaussian_profile(np.array([t]), m)[0] for m in mu])
        concave_in_mu += bool(np.diff(plain, 2).min() < -1e-7)
    assert concave_in_mu > 5


def exact_mixture(epsilon: float, rate: float, noise: float, survival: Callable[[float], float]) -> tuple[float, float]:
    """E_s delta_s by parts: int (d delta_s / ds) P(S > s) ds, with d delta_G / d mu = phi(t/mu - mu/2)."""
    t = math.log1p(math.expm1(epsilon) / rate)
    inside = math.expm1(-epsilon) / rate
    t_back = -math.log1p(inside) if inside > -1 else math.inf
    left = 1 - (1 - rate) * math.exp(epsilon)

    def along(s: float, at: float) -> float:
        mu = s / noise
        return math.exp(-((at / mu - mu / 2) ** 2) / 2) / math.sqrt(2 * math.pi) / noise * survival(s)

    pieces = np.concatenate([np.linspace(1e-9, 2, 60), np.linspace(2, 12, 60)[1:]])

    def total(at: float) -> float:
        ends = itertools.pairwise(pieces)
        return sum(integrate.quad(along, a, b, args=(at,), epsabs=1e-20, epsrel=1e-10)[0] for a, b in ends)

    return rate * total(t), (left * total(t_back) if left > 0 and math.isfinite(t_back) else 0.0)


@pytest.mark.parametrize(("rate", "noise", "p"), [(1.0, 1.1, 1), (0.1, 0.8, 2), (0.3, 2.0, 10), (1.0, 1.0, 1000)])
def test_mixture_is_above_the_exact_one_and_close(rate: float, noise: float, p: int) -> None:
    for epsilon in (0.0, 0.1, 1.0, 4.0):
        exact = exact_mixture(epsilon, rate, noise, lambda s: special.chdtrc(p, p * s * s))
        got = step_profile(np.array([epsilon]), rate=rate, noise=noise, dims=(p,))
        for bound, truth in zip(got, exact, strict=True):
            assert truth * (1 - 1e-9) <= bound[0] <= truth * 1.004 + 2e-13


def test_rounding_s_down_would_be_caught() -> None:
    edges, masses, _ = projected._buckets((1.0,), 200, 1e-13)
    down = np.concatenate([[edges[0]], edges[:-1]])
    exact = exact_mixture(4.0, 1.0, 1.1, lambda s: special.chdtrc(1, s * s))[0]
    wrong = sum(m * projected.gaussian_profile(np.array([4.0]), s / 1.1)[0] for s, m in zip(down, masses, strict=True))
    assert wrong < exact


def test_the_discretisation_meets_the_profile_on_the_grid_and_exceeds_it_between() -> None:
    step = projected.pld_step(rate=0.2, noise=0.9, dims=(3,), grid=0.02)
    for pmf, index in ((step.with_without, 0), (step.without_with, 1)):
        assert pmf.infinite + pmf.mass.sum() == pytest.approx(1, abs=1e-12)
        for k in (0, 1, 7, 60):
            truth = step_profile(np.array([0.02 * k]), rate=0.2, noise=0.9, dims=(3,))[index][0]
            assert delta_of(pmf, 0.02 * k) == pytest.approx(truth, rel=1e-9, abs=1e-14)
            between = step_profile(np.array([0.02 * k + 0.01]), rate=0.2, noise=0.9, dims=(3,))
            assert delta_of(pmf, 0.02 * k + 0.01) >= between[index][0] * (1 - 1e-12)


def test_negative_losses_carry_the_right_mass() -> None:
    """Under the second distribution of the pair the total mass is 1 as well: sum of mass * e^-loss."""
    step = projected.pld_step(rate=0.2, noise=0.9, dims=(), grid=1e-3)
    for pmf in (step.with_without, step.without_with):
        assert float(pmf.mass @ np.exp(-pmf.losses)) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("rate", "noise"), [(0.017, 1.1), (1.0, 1.1), (0.5, 3.0)])
def test_without_a_projection_it_is_the_sampled_gaussian(rate: float, noise: float) -> None:
    ours = projected.pld_step(rate=rate, noise=noise, dims=(math.inf,), grid=1e-3)
    theirs = pld.sampled_gaussian(rate, noise, 1e-3, -60.0)
    for mine, other in ((ours.with_without, theirs.with_without), (ours.without_with, theirs.without_with)):
        got, expected = ComposedLoss([(mine, 300)]).epsilon(1e-5), ComposedLoss([(other, 300)]).epsilon(1e-5)
        assert got == pytest.approx(expected, rel=1e-6)
    orders = (1.1, 2.0, 3.5, 16.0)
    got_rdp = projected.rdp(rate=rate, noise=noise, dims=(), orders=orders)
    assert got_rdp == pytest.approx(rdp.sampled_gaussian(rate, noise, orders), rel=1e-8)


# Several layers -------------------------------------------------------------------------------------------


def total_variation(dims: tuple[float, ...]) -> float:
    return float(step_profile(np.array([0.0]), rate=1.0, noise=1.0, dims=dims)[0][0])


def test_the_smallest_width_is_not_a_dominating_choice_for_plds() -> None:
    """Negative control for the layer rule: p=1 has the SMALLER total variation, min p_l would be unsound."""
    assert total_variation((math.inf,)) == pytest.approx(0.382925, rel=1e-5)
    assert 0.295167 <= total_variation((1,)) <= 0.295167 * 1.0005
    assert total_variation((1, math.inf)) > total_variation((math.inf,)) > total_variation((1,))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_the_max_rule_covers_every_split_of_the_norm(share: float) -> None:
    """A record with squared norm `share` in a layer of width 1 and the rest in one of width 4."""
    grid = np.linspace(1e-4, 1 - 1e-4, 700)
    first = special.chdtri(1, 1 - grid)
    second = special.chdtri(4, 1 - grid) / 4
    s = np.sqrt(share * first[:, None] + (1 - share) * second[None, :])
    for epsilon in (0.0, 0.5, 2.0):
        truth = projected.gaussian_profile(np.full(s.size, epsilon), (s / 1.2).ravel()).mean()
        bound = step_profile(np.array([epsilon]), rate=1.0, noise=1.2, dims=(1, 4))[0][0]
        assert truth <= bound


def test_equal_layers_and_one_infinite_layer() -> None:
    many = step_profile(np.array([1.0]), rate=1.0, noise=1.0, dims=(5,) * 40)[0][0]
    few = step_profile(np.array([1.0]), rate=1.0, noise=1.0, dims=(5, 5))[0][0]
    one = step_profile(np.array([1.0]), rate=1.0, noise=1.0, dims=(5,))[0][0]
    assert one < few < many
    exact = exact_mixture(
        1.0, 1.0, 1.0, lambda s: 1.0 if s < 1 else -math.expm1(2 * math.log1p(-special.chdtrc(5, 5 * s * s)))
    )[0]
    with_identity = step_profile(np.array([1.0]), rate=1.0, noise=1.0, dims=(5, 5, math.inf))[0][0]
    assert exact <= with_identity <= exact * 1.002


# RDP --------------------------------------------------------------------------------------------------------


def double_quadrature(rate: float, noise: float, p: int, order: float) -> float:
    nodes, weights = np.polynomial.legendre.leggauss(60)

    def panels(a: float, b: float, count: int) -> tuple[Floats, Floats]:
        edges = np.linspace(a, b, count + 1)
        half = (edges[1] - edges[0]) / 2
        x = (edges[:-1, None] + half * (nodes + 1)).ravel()
        return x, np.tile(weights * half, count)

    s, ws = panels(1e-9, 14.0 if p < 8 else 6.0, 40)
    log_pdf = math.log(2) + p / 2 * math.log(p / 2) - special.gammaln(p / 2) + (p - 1) * np.log(s) - p * s * s / 2
    total = 0.0
    for value, weight, log_density in zip(s, ws, log_pdf, strict=True):
        mu = value / noise
        x, wx = panels(-12, order * mu + 12, 20)
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + mu * x - mu * mu / 2)
        excess = np.expm1(order * ratio) - order * np.expm1(ratio)
        total += weight * math.exp(log_density) * float(wx @ (excess * np.exp(-x * x / 2))) / math.sqrt(2 * math.pi)
    return math.log1p(total) / (order - 1)


@pytest.mark.parametrize(("rate", "noise", "p", "order"), [(0.3, 2.0, 2, 1.7), (0.1, 1.5, 8, 3.0), (0.1, 1.5, 8, 2.5)])
def test_rdp_is_the_double_integral(rate: float, noise: float, p: int, order: float) -> None:
    got = projected.rdp(rate=rate, noise=noise, dims=(p,), orders=(order,))[0]
    truth = double_quadrature(rate, noise, p, order)
    assert truth * (1 - 1e-7) <= got <= truth * (1 + 3e-6)


def test_interpolated_orders_are_above_the_integral_and_close() -> None:
    for order in (3.5, 7.25):
        bound = projected.rdp(rate=0.1, noise=2.0, dims=(40,), orders=(order,))[0]
        log_excess = projected._real(0.1, 2.0, 40.0, order)
        exact = math.log1p(math.exp(log_excess)) / (order - 1)
        assert exact < bound < 1.05 * exact


def test_rdp_is_infinite_from_the_stated_order_on() -> None:
    p, noise = 3, 1.5
    limit = 0.5 + math.sqrt(0.25 + p * noise**2)
    finite, infinite = projected.rdp(rate=0.1, noise=noise, dims=(p, 50), orders=(limit - 0.05, limit + 1e-9))
    assert math.isfinite(finite)
    assert math.isinf(infinite)


def test_the_smallest_width_is_the_worst_case_for_rdp() -> None:
    """Moments of a split record, sum_l x_l chi2_{p_l}/p_l, stay below those of the smallest width."""
    rng = np.random.default_rng(7)
    samples = 200_000
    y = rng.chisquare(6, samples)[:, None] / 6, rng.chisquare(30, samples)[:, None] / 30
    for order in (1.5, 3.0):
        worst = projected.rdp(rate=0.2, noise=2.0, dims=(6, 30), orders=(order,))[0]
        assert worst == projected.rdp(rate=0.2, noise=2.0, dims=(6,), orders=(order,))[0]
        for share in (0.0, 0.5):
            s = np.sqrt(share * y[0] + (1 - share) * y[1])[:, 0]
            knots = np.quantile(s, np.linspace(0, 1, 200))
            moments = [math.exp((order - 1) * rdp.sampled_gaussian(0.2, 2.0 / k, (order,))[0]) for k in knots]
            split = math.log(float(np.interp(s, knots, moments).mean())) / (order - 1)
            assert split < worst


# Interface --------------------------------------------------------------------------------------------------


def test_a_finer_grid_takes_linear_time() -> None:
    """Four times the points: linear time is 4 (measured 3.4), quadratic 16."""

    def price(grid: float, repeat: int) -> None:
        projected.pld_step(rate=0.017 + repeat * 1e-4, noise=1.123, dims=(1,), grid=grid)

    assert times_as_long(lambda repeat: price(1e-3, repeat), lambda repeat: price(4e-3, repeat), repeats=2) < 10


def test_losses_beyond_the_longest_grid_count_as_infinite() -> None:
    step = projected.pld_step(rate=1.0, noise=0.002, dims=(), grid=1e-2)
    assert step.with_without.infinite > 0.9
