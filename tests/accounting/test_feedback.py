"""Clipped error feedback: bounds against exact densities, the energy inequality, collinearity, inverses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from deltas import composed_delta, feedback_delta
from numpy.typing import NDArray
from scipy import special, stats

from discreet.accounting import feedback, projected
from discreet.accounting.events import ClippedFeedback
from discreet.core.check import Refused

Floats = NDArray[np.float64]


def a_run(**changed: float) -> ClippedFeedback:
    settings: dict[str, float] = {
        "rate": 0.02, "steps": 100, "batch": 1000, "clip": 1.0, "feedback_clip": 1.0, "noise_std_on_mean": 20.0
    }  # fmt: skip
    return ClippedFeedback(**(settings | changed))


def mixture_delta(run: ClippedFeedback, epsilon: float) -> float:
    return max(composed_delta(side, epsilon) for side in feedback._composed(run, 1e-3))


# The worst case on two steps, by densities on a plane ----------------------------------------------------


def exact_two_steps(rate: float, held: float, fresh: float, epsilon: float) -> tuple[float, float]:
    """Both directions for two steps in the worst case: after an inclusion the error pulls by `held`.

    The step before is clean; the densities are summed on a fine grid, in units of the noise.
    """
    x = np.linspace(-9, 9 + held + fresh, 1601)
    cell = (x[1] - x[0]) ** 2

    def normal(mean: float) -> Floats:
        return np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)

    q = np.outer(normal(0), normal(0))
    p = np.zeros_like(q)
    for first, second in itertools.product((0, 1), repeat=2):
        weight = rate ** (first + second) * (1 - rate) ** (2 - first - second)
        p += weight * np.outer(normal(first * fresh), normal(first * held + second * fresh))
    gain = math.exp(epsilon)
    return float(np.maximum(p - gain * q, 0).sum() * cell), float(np.maximum(q - gain * p, 0).sum() * cell)


@pytest.mark.parametrize(("rate", "held", "fresh"), [(0.3, 1.0, 0.8), (0.1, 2.0, 0.3), (0.6, 0.4, 1.2)])
def test_every_bound_covers_the_worst_case_on_two_steps(rate: float, held: float, fresh: float) -> None:
    run = a_run(rate=rate, steps=2, batch=1.0, clip=fresh, feedback_clip=held / 2, noise_std_on_mean=1.0)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        exact = max(exact_two_steps(rate, held, fresh, epsilon))
        for bound in (
            mixture_delta(run, epsilon),
            feedback.one_shot_delta(run, epsilon=epsilon),
            feedback.patterns_delta(run, epsilon=epsilon),
        ):
            assert bound >= exact * (1 - 1e-6)


def test_billing_it_like_dp_sgd_would_be_caught() -> None:
    """Negative control: two sampled Gaussians with the feedback forgotten lie far below the exact value."""
    run = a_run(rate=0.1, steps=2, batch=1.0, clip=0.3, feedback_clip=0.0, noise_std_on_mean=1.0)
    forgotten = mixture_delta(run, 0.3)
    assert forgotten < 0.2 * max(exact_two_steps(0.1, 2.0, 0.3, 0.3))


def test_the_pattern_bound_is_tight_where_it_can_be() -> None:
    """All inclusions certain: no mixture is left, and the bound is the exact Gaussian."""
    run = a_run(rate=1.0, steps=2, batch=1.0, clip=0.8, feedback_clip=0.5, noise_std_on_mean=1.0)
    mu = math.sqrt(0.8**2 + 1.8**2)
    exact = float(projected.gaussian_profile(np.array([1.0]), mu)[0])
    assert feedback.patterns_delta(run, epsilon=1.0) == pytest.approx(exact, rel=1e-8)
    assert max(exact_two_steps(1.0, 1.0, 0.8, 1.0)) == pytest.approx(exact, rel=1e-6)


# The step ------------------------------------------------------------------------------------------------


def plane_delta(rate: float, a: Floats, u: Floats, epsilon: float) -> tuple[float, float]:
    """Both directions of (1-q) N(a) + q N(a+u) against N(0) in the plane."""
    x = np.linspace(-8, 11, 1201)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"))

    def normal(mean: Floats) -> Floats:
        return np.exp(-((grid - mean[:, None, None]) ** 2).sum(0) / 2) / (2 * math.pi)

    p, q = (1 - rate) * normal(a) + rate * normal(a + u), normal(np.zeros(2))
    cell, gain = (x[1] - x[0]) ** 2, math.exp(epsilon)
    return float(np.maximum(p - gain * q, 0).sum() * cell), float(np.maximum(q - gain * p, 0).sum() * cell)


def test_collinear_is_the_worst_case_in_both_directions() -> None:
    a, rate = np.array([1.0, 0.0]), 0.3
    straight = plane_delta(rate, a, np.array([1.5, 0.0]), 0.5)
    for angle in (0.4, 1.2, 2.0, math.pi):
        bent = plane_delta(rate, a, 1.5 * np.array([math.cos(angle), math.sin(angle)]), 0.5)
        assert bent[0] <= straight[0] + 1e-9
        assert bent[1] <= straight[1] + 1e-9
    smaller = plane_delta(rate, 0.5 * a, np.array([1.5, 0.0]), 0.5)
    assert smaller[0] < straight[0]


def test_the_step_has_the_integral_as_its_profile() -> None:
    step = feedback.mixture_step(rate=0.3, held=1.0, fresh=1.5, grid=1e-2)
    exact = plane_delta(0.3, np.array([1.0, 0.0]), np.array([1.5, 0.0]), 0.5)
    for pmf, truth in zip((step.with_without, step.without_with), exact, strict=True):
        delta = pmf.infinite + float(pmf.mass @ np.maximum(0, -np.expm1(0.5 - pmf.losses)))
        assert delta == pytest.approx(truth, rel=2e-5)  # what the plane's grid resolves
        assert pmf.infinite + pmf.mass.sum() == pytest.approx(1, abs=1e-12)


def test_without_feedback_a_step_is_the_sampled_gaussian() -> None:
    step = feedback.mixture_step(rate=0.02, held=0.0, fresh=0.9, grid=1e-3).with_without
    nearly = feedback.mixture_step(rate=0.02, held=1e-9, fresh=0.9, grid=1e-3).with_without
    for epsilon in (0.0, 0.5, 2.0):
        exact = float(projected.profile(np.array([epsilon]), rate=0.02, mu=0.9)[0][0])
        for pmf in (step, nearly):
            delta = pmf.infinite + float(pmf.mass @ np.maximum(0, -np.expm1(epsilon - pmf.losses)))
            assert delta == pytest.approx(exact, rel=1e-5)


# The energy inequality -----------------------------------------------------------------------------------


def clip(v: Floats, bound: float) -> Floats:
    return v * min(1.0, bound / max(float(np.linalg.norm(v)), 1e-300))


def normalise(v: Floats, bound: float) -> Floats:
    """What Algorithm 4 does instead: every vector is stretched to the bound."""
    return v * bound / max(float(np.linalg.norm(v)), 1e-300)


def moved(
    rng: np.random.Generator,
    squeeze: Callable[[Floats, float], Floats],
    *,
    steps: int,
    bound: float,
    c1: float,
    c2: float,
) -> tuple[float, int]:
    """The distance of the two runs over all releases, and the number of inclusions. Adversarial."""
    e, other = np.zeros(2), np.zeros(2)
    total, inclusions = 0.0, 0
    for _ in range(steps):
        common = rng.normal(size=2) * rng.choice([0.01, 1.0, 5.0])
        extra = np.zeros(2)
        if rng.random() < 0.4:
            inclusions += 1
            direction = rng.normal(size=2) if rng.random() < 0.3 else (other - e) + 1e-9
            extra = clip(direction / np.linalg.norm(direction) * bound, bound)
        base = clip(common, c1)
        v, w = base + squeeze(e, c2), base + squeeze(other, c2)
        gap = (w - v) + clip(extra, c1)
        total += float(gap @ gap)
        w = w + clip(extra, c1)
        e, other = e + common - v, other + common + extra - w
    return math.sqrt(total), inclusions


@pytest.mark.parametrize(
    ("bound", "c1", "c2", "reached"), [(3.0, 1.0, 0.5, 0.3), (2.0, 1.0, 5.0, 0.5), (1.5, 0.1, 0.02, 0.03)]
)
def test_energy_of_a_run_stays_below_the_bound(bound: float, c1: float, c2: float, reached: float) -> None:
    rng = np.random.default_rng(3)
    closest = 0.0
    for _ in range(300):
        distance, n = moved(rng, clip, steps=12, bound=bound, c1=c1, c2=c2)
        limit = math.sqrt(n) * c1 + n * (bound - c1)
        assert distance <= limit * (1 + 1e-9)
        closest = max(closest, distance / limit if n else 0.0)
    assert closest > reached  # the inequality is not vacuous


def test_energy_inequality_fails_for_automatic_clipping() -> None:
    """Negative control: the inequality needs the projection; stretching small errors to C2 breaks it."""
    rng = np.random.default_rng(4)
    runs = [moved(rng, normalise, steps=12, bound=1.5, c1=1.0, c2=5.0) for _ in range(200)]
    assert any(distance > math.sqrt(n) + 0.5 * n + 1e-9 for distance, n in runs)


# The whole run -------------------------------------------------------------------------------------------


def test_patterns_are_never_worse_than_what_they_refine() -> None:
    for changed in (
        {},
        {"noise_std_on_mean": 80.0},
        {"noise_std_on_mean": 0.1, "feedback_clip": 0.001},
        {"steps": 1000, "rate": 0.001},
    ):
        run = a_run(**changed)
        assert feedback.bound_epsilon(feedback.patterns_delta, run, delta=1e-5) <= feedback.bound_epsilon(
            feedback.one_shot_delta, run, delta=1e-5
        )
    for bound, noise in ((2.0, 0.01396), (10.0, 0.0949)):
        run = a_run(preclip=bound, noise_std_on_mean=noise)
        assert feedback.bound_epsilon(feedback.patterns_delta, run, delta=1e-5) <= feedback.bound_epsilon(
            feedback.energy_delta, run, delta=1e-5
        )


def test_patterns_without_grouping_agree() -> None:
    """T=100 has one group per step: an independent sum over all patterns gives the same delta."""
    run = a_run()
    rho, total = 1 - 0.98**100, 0.0
    inside = math.log1p(math.expm1(2.0) / rho)
    for first in range(1, 101):
        left = 100 - first
        k = np.arange(left + 1)
        mu = np.sqrt(
            feedback.fresh(run) ** 2
            + (left - k) * feedback.held(run) ** 2
            + k * (feedback.held(run) + feedback.fresh(run)) ** 2
        )
        weights = 0.02 * 0.98 ** (first - 1) * stats.binom.pmf(k, left, 0.02)
        tail = special.ndtr(mu / 2 - inside / mu) - math.exp(inside) * special.ndtr(-mu / 2 - inside / mu)
        total += float(weights @ tail)
    assert feedback.patterns_delta(run, epsilon=2.0) == pytest.approx(total, rel=1e-3)
    assert feedback.patterns_delta(run, epsilon=2.0) >= total * (1 - 1e-9)


@pytest.mark.parametrize(
    "changed", [{}, {"noise_std_on_mean": 0.1, "feedback_clip": 0.001}, {"preclip": 2.0, "noise_std_on_mean": 0.02}]
)
def test_epsilon_and_delta_are_inverse(changed: dict[str, float]) -> None:
    run = a_run(**changed)
    bound = feedback.epsilon(run, delta=1e-5, grid=1e-3)
    assert feedback_delta(run, epsilon=bound.value, grid=1e-3).value == pytest.approx(1e-5, rel=1e-3)
    assert feedback_delta(run, epsilon=bound.value * 0.99, grid=1e-3).value > 1e-5


def test_the_winner_is_named_and_is_the_smallest() -> None:
    assert feedback.epsilon(a_run(feedback_clip=0.0, noise_std_on_mean=0.001), delta=1e-5).name == "mixture"
    run = a_run(preclip=2.0, noise_std_on_mean=0.02)
    found = feedback.epsilon(run, delta=1e-5)
    assert found.value == min(feedback.bound_epsilon(bound, run, delta=1e-5) for bound in feedback.BOUNDS.values())


def test_more_noise_and_fewer_steps_cost_less() -> None:
    base = feedback.epsilon(a_run(), delta=1e-5).value
    assert feedback.epsilon(a_run(noise_std_on_mean=22.0), delta=1e-5).value < base
    assert feedback.epsilon(a_run(steps=50), delta=1e-5).value < base
    assert feedback.epsilon(a_run(feedback_clip=1.1), delta=1e-5).value > base


def test_a_preclip_below_the_clip_leaves_no_error() -> None:
    """G <= C1: the energy is that of n Gaussian inclusions of size G."""
    run = a_run(preclip=0.5, noise_std_on_mean=0.001)
    n = np.arange(1, 101)
    tail = projected.gaussian_profile(np.array([1.0]), np.sqrt(n) * 0.5)
    assert feedback.energy_delta(run, epsilon=1.0) == pytest.approx(
        float(stats.binom.pmf(n, 100, 0.02) @ tail), rel=1e-8
    )


def test_extremes_stay_finite_or_say_infinite() -> None:
    assert feedback.epsilon(a_run(noise_std_on_mean=1e-3), delta=1e-5).value > 1e6
    assert feedback.epsilon(a_run(noise_std_on_mean=1e7), delta=1e-5).value == pytest.approx(0, abs=1e-5)
    assert feedback.epsilon(a_run(rate=1.0, steps=1), delta=1e-5).value > 0
    assert feedback.epsilon(a_run(steps=100_000, rate=1e-4, noise_std_on_mean=3000.0), delta=1e-5).value < 1


@pytest.mark.parametrize(
    "changed", [{"rate": 0.0}, {"steps": 0}, {"clip": -1.0}, {"feedback_clip": -1.0}, {"preclip": 0.0}]
)
def test_bad_settings_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(Refused, match="Remedy"):
        a_run(**changed)
