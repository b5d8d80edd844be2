"""Last iterate: exact densities on an interval, Lipschitz rules, fixed size."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from deltas import last_iterate_delta
from last_iterate_steps import fixed_size_step, gaussian_step, poisson_step
from numpy.typing import NDArray
from scipy import integrate, special, stats

from discreet.accounting import gdp, pld, rdp
from discreet.accounting import last_iterate as last
from discreet.core.check import Refused
from discreet.methods.dpsgd_dc.curvature import lipschitz_convex, lipschitz_glm, lipschitz_smooth
from research.reproductions.dpsgd_dc.renyi import fixed_size_rdp, rdp_at

Floats = NDArray[np.float64]


# A run on an interval, by its densities ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Interval:
    """x <- project(c x - drift * sampled + N(0, 1)) on [-half, half]: units of the noise, shift = 2 half.

    The extra record pushes by `drift` when it is sampled (rate); a projection leaves atoms at both ends.
    """

    half: float
    factor: float
    drift: float
    rate: float
    steps: int
    start: float

    @functools.cache  # noqa: B019, frozen and few
    def law(self, *, present: bool) -> tuple[Floats, Floats]:
        """The last iterate: density at the nodes, and the two atoms."""
        nodes, _ = self.rule()
        density, atoms = np.zeros(len(nodes)), np.zeros(2)
        first = True
        for _ in range(self.steps):
            where = np.array([self.start]) if first else np.concatenate([nodes, [-self.half, self.half]])
            mass = np.array([1.0]) if first else np.concatenate([density * self.rule()[1], atoms])
            first, density, atoms = False, np.zeros(len(nodes)), np.zeros(2)
            pushes = [(1 - self.rate, 0.0), (self.rate, self.drift)] if present else [(1.0, 0.0)]
            for weight, push in pushes:
                mean = self.factor * where - push
                kernel = np.exp(-((nodes[None, :] - mean[:, None]) ** 2) / 2) / math.sqrt(2 * math.pi)
                density += weight * (mass @ kernel)
                low, high = special.ndtr(-self.half - mean), special.ndtr(mean - self.half)
                atoms += weight * np.array([mass @ low, mass @ high])
        return density, atoms

    def rule(self) -> tuple[Floats, Floats]:
        x, w = np.polynomial.legendre.leggauss(240)
        return x * self.half, w * self.half

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """delta with||without and without||with. The kinks cost about 1e-6 relative."""
        (p, p_ends), (q, q_ends) = self.law(present=True), self.law(present=False)
        w, gain = self.rule()[1], math.exp(epsilon)
        forward = w @ np.maximum(p - gain * q, 0) + np.maximum(p_ends - gain * q_ends, 0).sum()
        back = w @ np.maximum(q - gain * p, 0) + np.maximum(q_ends - gain * p_ends, 0).sum()
        return float(forward), float(back)

    def renyi(self, order: float) -> tuple[float, float]:
        (p, p_ends), (q, q_ends) = self.law(present=True), self.law(present=False)
        w = self.rule()[1]

        def side(a: Floats, a_ends: Floats, b: Floats, b_ends: Floats) -> float:
            total = w @ (a**order * b ** (1 - order)) + (a_ends**order * b_ends ** (1 - order)).sum()
            return math.log(total) / (order - 1)

        return side(p, p_ends, q, q_ends), side(q, q_ends, p, p_ends)

    def run(self) -> last.BoundedRun:
        noise = 1 / self.drift
        step = gaussian_step(noise=noise) if self.rate == 1 else poisson_step(rate=self.rate, noise=noise)
        return last.BoundedRun(**step, steps=self.steps, shift=2 * self.half, factor=self.factor)


CASES = [
    Interval(half=0.5, factor=1.0, drift=0.5, rate=1.0, steps=12, start=0.5),
    Interval(half=0.7, factor=0.8, drift=1.0, rate=0.3, steps=9, start=-0.7),
    Interval(half=0.4, factor=1.2, drift=0.7, rate=0.5, steps=10, start=0.0),
    Interval(half=1.5, factor=1.0, drift=2.0, rate=0.05, steps=3, start=1.5),
    Interval(half=3.0, factor=1.0, drift=0.5, rate=1.0, steps=30, start=0.0),
]


def test_the_densities_are_probabilities() -> None:
    for case in CASES:
        for present in (True, False):
            density, atoms = case.law(present=present)
            assert case.rule()[1] @ density + atoms.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", [1.5, 4.0, 16.0])
def test_renyi_certificate_covers_the_exact_run(case: Interval, order: float) -> None:
    def step(noise: float) -> float:
        return float(rdp.sampled_gaussian(case.rate, noise, (order,))[0])

    bound, _, _ = rdp_at(
        order, step=step, noise=1 / case.drift, steps=case.steps, shift=2 * case.half, factor=case.factor
    )
    assert max(case.renyi(order)) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_loss_distribution_covers_the_exact_run(case: Interval) -> None:
    run = case.run()
    for m, beta in ((1, 0.3), (2, 0.5), (case.steps, 0.6)):
        for delta in (1e-2, 1e-4):
            epsilon = last.pld_epsilon(run, absorbed=min(m, run.steps), beta=beta, delta=delta, grid=2e-3)
            assert max(case.deltas(epsilon)) <= delta * (1 + 1e-5)
    for delta in (1e-2, 1e-4):
        assert max(case.deltas(last.epsilon(run, delta=delta).value)) <= delta * (1 + 1e-5)


def test_forgetting_the_shift_would_be_caught() -> None:
    """Negative controls: no payment for the shift, and a contraction that the update does not have."""
    case = CASES[-1]
    free = replace(case.run(), shift=1e-6)
    wrong = last.pld_epsilon(free, absorbed=1, beta=0.9, delta=1e-2, grid=2e-3)
    assert max(case.deltas(wrong)) > 1e-2 * 1.5
    shrunk = replace(case.run(), factor=0.2)
    wrong = last.pld_epsilon(shrunk, absorbed=2, beta=0.9, delta=1e-2, grid=2e-3)
    assert max(case.deltas(wrong)) > 1e-2 * 1.5


def test_the_papers_slope_is_exceeded_by_an_exact_run() -> None:
    """Theorem 3.3 allows 2 a q T / z^2 = 6.4 at order 16: with||without exceeds it, the reverse does not."""
    q, steps, order = 0.05, 4, 16
    k = np.arange(steps + 1)
    weights = stats.binom.pmf(k, steps, q)
    x = np.linspace(-12, 60, 20_001)  # the sum of four unit noises, in its standard deviations
    ratio = special.logsumexp(np.log(weights)[:, None] + k[:, None] / 2 * x - (k[:, None] / 2) ** 2 / 2, axis=0)
    base = -(x**2) / 2 - math.log(math.sqrt(2 * math.pi)) + math.log(x[1] - x[0])
    forward = special.logsumexp(base + order * ratio) / (order - 1)
    back = special.logsumexp(base + (1 - order) * ratio) / (order - 1)
    claim = 2 * order * q * steps
    assert claim == pytest.approx(6.4)
    assert back < claim < forward
    assert forward <= steps * rdp.sampled_gaussian(q, 1.0, (float(order),))[0]  # what we certify covers it


# Lipschitz constants -------------------------------------------------------------------------------------


def clipped_jacobian(hessian: Floats, gradient: Floats, scale: float) -> Floats:
    """Jacobian of clip(gradient) where the clip bites: scale * (I - g g^T / |g|^2) H."""
    unit = gradient / np.linalg.norm(gradient)
    return scale * (np.eye(len(unit)) - np.outer(unit, unit)) @ hessian


def test_convex_rule_is_an_upper_bound_and_is_attained() -> None:
    rng = np.random.default_rng(11)
    for size in (0.1, 0.5, 1.0, 2.0):
        limit = lipschitz_convex(learning_rate=size, smoothness=1.0)
        most = 0.0
        for _ in range(600):
            d = int(rng.integers(2, 5))
            basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
            hessian = basis @ np.diag(rng.choice([0.0, 1.0, rng.random()], size=d)) @ basis.T
            jacobian = clipped_jacobian(hessian, rng.normal(size=d), 1.0 if rng.random() < 0.7 else rng.random())
            most = max(most, float(np.linalg.norm(np.eye(d) - size * jacobian, 2)))
        assert most <= limit * (1 + 1e-9)
        # One direction of curvature, turned against the gradient: the supremum over the angle is the rule.
        attained = max(
            float(np.linalg.norm(np.eye(2) - size * clipped_jacobian(np.outer(v, v), np.array([1.0, 0.0]), 1.0), 2))
            for v in (np.array([math.cos(t), math.sin(t)]) for t in np.linspace(0, math.pi, 1001))
        )
        assert attained == pytest.approx(limit, rel=1e-5)
        assert attained > 1  # so that "1 for convex losses" would be wrong


def test_glm_rule_covers_clipped_logistic_and_linear_regression() -> None:
    rng = np.random.default_rng(12)
    for learning_rate, decay in ((0.5, 0.0), (3.0, 0.0), (1.0, 0.4), (0.4, 3.0)):
        for _ in range(300):
            a = rng.normal(size=(6, 3))
            a /= np.linalg.norm(a, axis=1, keepdims=True)
            x, y = rng.normal(size=(2, 3)) * rng.choice([0.1, 3.0])
            label = rng.choice([-1.0, 1.0], size=6)

            # Squared loss, L = 1 for unit rows; six records over a divisor of 4.
            moved = [
                v - learning_rate * (decay * v + (np.clip(a @ v - label, -0.7, 0.7)[:, None] * a).sum(0) / 4)
                for v in (x, y)
            ]
            limit = lipschitz_glm(learning_rate=learning_rate, smoothness=1.0, ratio=6 / 4, decay=decay)
            assert np.linalg.norm(moved[0] - moved[1]) <= limit * np.linalg.norm(x - y) * (1 + 1e-9)


def test_glm_rule_numbers() -> None:
    assert lipschitz_glm(learning_rate=0.5, smoothness=0.5) == 1
    assert lipschitz_glm(learning_rate=0.5, smoothness=0.5, decay=0.1) == pytest.approx(0.95)
    assert lipschitz_glm(learning_rate=4.0, smoothness=1.0) == 3  # beyond 2/L it expands
    assert lipschitz_glm(learning_rate=1.0, smoothness=1.0, ratio=3.0) == 2  # a batch three times too large
    assert lipschitz_smooth(learning_rate=0.5, smoothness=1.0, ratio=2.0, decay=0.2) == pytest.approx(1.9)


def test_multinomial_regression_is_not_covered_by_the_glm_rule() -> None:
    """Softmax of three classes, one record: a clipped step expands, as in the convex rule."""
    rng = np.random.default_rng(13)
    most = 0.0
    for _ in range(6_000):
        p = rng.dirichlet([0.3, 0.3, 0.3])
        gradient = p - np.eye(3)[rng.integers(3)]
        hessian = np.diag(p) - np.outer(p, p)
        most = max(most, float(np.linalg.norm(np.eye(3) - 2 * clipped_jacobian(hessian, gradient, 1.0), 2)))
    assert most > 1.01
    assert most <= lipschitz_convex(learning_rate=2.0, smoothness=0.5)


# Pieces of the bound -------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.999, 1.0, 1 + 1e-12, 1 - 1e-12, 1.001, 1.2, 40.0])
def test_left_over_is_the_sum(factor: float) -> None:
    for m in (1, 2, 7, 60):
        expected = factor ** (2 * m) / sum(factor ** (2 * j) for j in range(m))
        assert float(last.left_over(float(m), factor)) == pytest.approx(expected, rel=1e-9)
    assert math.isfinite(float(last.left_over(1e6, 1.2)))


def test_left_over_is_what_the_best_sequence_achieves() -> None:
    """a_j proportional to c^(m-1-j) brings the shift to zero with energy E; any other sequence needs more."""
    rng = np.random.default_rng(14)
    factor, m = 1.3, 5
    pull = factor ** (m - 1 - np.arange(m))
    best = pull * factor**m / (pull @ pull)
    shift = 1.0
    for a in best:
        shift = factor * shift - a
        assert shift >= -1e-12
    assert shift == pytest.approx(0, abs=1e-12)
    assert best @ best == pytest.approx(float(last.left_over(float(m), factor)))
    for _ in range(50):
        other = best + rng.normal(size=m) * 0.1
        other *= factor**m / (pull @ other)
        assert other @ other >= best @ best - 1e-12


def test_fixed_size_divergence_covers_a_worst_looking_pair() -> None:
    """All other records zero: (1-q) N(0) + q N(+1) against (1-q) N(0) + q N(-1), which moves 2 C = 2."""
    q, sigma = 0.25, 4.0
    for order in (1.1, 2.0, 8.0):

        def integrand(x: float, order: float = order) -> float:
            up = (1 - q) + q * math.exp((2 * x - 1) / (2 * sigma**2))
            down = (1 - q) + q * math.exp((-2 * x - 1) / (2 * sigma**2))
            return (
                up**order * down ** (1 - order) * math.exp(-x * x / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
            )

        exact = math.log(integrate.quad(integrand, -80, 120, limit=400, epsabs=1e-14)[0]) / (order - 1)
        bound = float(fixed_size_rdp(rate=q, noise=sigma / 2, orders=(order,))[0])
        assert exact <= bound
        # The sampled Gaussian of add/remove, taken in its place, is not a bound for both sides at low orders.
        assert bound > rdp.sampled_gaussian(q, sigma / 2, (order,))[0]


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_fixed_size_divergence_agrees_with_its_loss_distribution(noise: float) -> None:
    pmf = pld.without_replacement(0.1, noise, 1e-3, -300.0).with_without
    for order in (1.3, 2.0, 5.0):
        from_losses = math.log(float(pmf.mass @ np.exp((order - 1) * pmf.losses))) / (order - 1)
        assert float(fixed_size_rdp(rate=0.1, noise=noise, orders=(order,))[0]) == pytest.approx(from_losses, rel=2e-3)
    assert fixed_size_rdp(rate=1.0, noise=noise, orders=(3.0,))[0] == pytest.approx(1.5 / noise**2)


# The certificate -----------------------------------------------------------------------------------------


def test_a_huge_domain_gives_composition() -> None:
    run = last.BoundedRun(**poisson_step(rate=0.01, noise=1.0), steps=1000, shift=1e6, factor=1.0)
    found = last.epsilon(run, delta=1e-5)
    assert found.name == "composition, PLD"
    assert found.value == pytest.approx(1.8289, rel=1e-3)


def test_a_small_domain_gives_a_plateau_whatever_the_number_of_steps() -> None:
    values = [
        last.epsilon(
            last.BoundedRun(**fixed_size_step(rate=0.1, noise=1.0), steps=steps, shift=2.0, factor=1.0), delta=1e-5
        )
        for steps in (1000, 10_000)
    ]
    assert values[0].value == pytest.approx(values[1].value, rel=1e-2)
    assert values[0].name.startswith("last iterate")


def test_the_gaussian_form_agrees_with_the_general_one() -> None:
    general = last.BoundedRun(**gaussian_step(noise=3.0), steps=40, shift=2.0, factor=1.05)
    mu, _ = last.gaussian_mu(steps=40, noise=3.0, shift=2.0, factor=1.05)
    closed, searched = gdp.epsilon(mu, 1e-5), last.epsilon(general, delta=1e-5).value
    assert closed <= searched <= closed * 1.02


@pytest.mark.parametrize("step", [gaussian_step(noise=2.0), poisson_step(rate=0.3, noise=1.0)], ids=["full", "Poisson"])
def test_epsilon_and_delta_are_inverse(step: dict[str, Any]) -> None:
    run = last.BoundedRun(**step, steps=300, shift=1.0, factor=1.0)
    found = last.epsilon(run, delta=1e-6, grid=2e-3)
    assert last_iterate_delta(run, epsilon=found.value, grid=2e-3).value == pytest.approx(1e-6, rel=0.02)
    assert found.name.startswith("last iterate")


def test_rules_refuse_what_they_do_not_cover() -> None:
    with pytest.raises(Refused, match="<= 2"):
        lipschitz_convex(learning_rate=3.0, smoothness=1.0)
    with pytest.raises(Refused, match="ratio"):
        lipschitz_glm(learning_rate=1.0, smoothness=1.0, ratio=0.0)
