"""Numbers for clipped error feedback that were derived independently of this code; delta = 1e-5."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from discreet.accounting import feedback
from discreet.accounting.events import ClippedFeedback

DELTA = 1e-5


def a_run(noise: float, feedback_clip: float = 1.0, preclip: float | None = None) -> ClippedFeedback:
    return ClippedFeedback(
        rate=0.02,
        steps=100,
        batch=1000,
        clip=1.0,
        feedback_clip=feedback_clip,
        noise_std_on_mean=noise,
        preclip=preclip,
    )


def mixture_epsilon(run: ClippedFeedback, *, delta: float, grid: float) -> float:
    return max(side.epsilon(delta) for side in feedback._composed(run, grid))


@pytest.mark.parametrize(("noise", "mixture", "one_shot"), [(20.0, 4.3783, 4.2061), (80.0, 0.9297, 0.8350)])
def test_epsilon_of_a_run(noise: float, mixture: float, one_shot: float) -> None:
    run = a_run(noise)
    assert mixture_epsilon(run, delta=DELTA, grid=5e-3) == pytest.approx(mixture, rel=1e-4)
    assert feedback.bound_epsilon(feedback.one_shot_delta, run, delta=DELTA) == pytest.approx(one_shot, rel=1e-4)
    assert feedback.epsilon(run, delta=DELTA).value < one_shot


def test_epsilon_with_a_small_feedback_clip() -> None:
    run = a_run(0.1, feedback_clip=0.001)
    values = [mixture_epsilon(run, delta=DELTA, grid=grid) for grid in (5e-3, 1e-3, 2e-4)]
    assert values == sorted(values, reverse=True)  # finer grids only lower the bound
    assert values[1] == pytest.approx(0.73364, rel=5e-4)


def least_noise(epsilon_at: Callable[[float], float], low: float, high: float) -> float:
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon_at(middle) <= 2.0 else (middle, high)
    return high


def test_noise_for_epsilon_two_by_the_composed_mixture() -> None:
    def at(noise: float, feedback_clip: float) -> float:
        return mixture_epsilon(a_run(noise, feedback_clip), delta=DELTA, grid=2e-3)

    assert least_noise(lambda z: at(z, 1.0), 30, 50) == pytest.approx(39.91, rel=1.5e-3)
    assert least_noise(lambda z: at(z, 0.001), 0.03, 0.05) == pytest.approx(0.0403, rel=2e-3)
    assert least_noise(lambda z: at(z, 0.0), 5e-4, 2e-3) == pytest.approx(0.000881, rel=2e-3)  # DP-SGD
    # DP-SGD clipped at G needs G times that noise.
    assert least_noise(lambda z: at(z / 2, 0.0), 1e-3, 4e-3) == pytest.approx(0.00176, rel=2e-3)


@pytest.mark.parametrize(("preclip", "noise"), [(2.0, 0.01396), (10.0, 0.0949)])
def test_noise_for_epsilon_two_by_energy(preclip: float, noise: float) -> None:
    def at(z: float) -> float:
        return feedback.bound_epsilon(feedback.energy_delta, a_run(z, preclip=preclip), delta=DELTA)

    assert least_noise(at, noise / 2, noise * 2) == pytest.approx(noise, rel=1e-3)


def test_the_smallest_bound_needs_less_noise_than_any_of_them() -> None:
    assert feedback.epsilon(a_run(34.5), delta=DELTA).value < 2.0  # the composed mixture needs 39.91


# The claim is false --------------------------------------------------------------------------------------


def claimed_noise(records: int, batch: int, steps: int, epsilon: float) -> float:
    """Theorem 3.8 with C1 = C2 = 1 and unbounded gradients: C = batch."""
    return math.sqrt(32 * steps * (1 + 2 * batch**2) * math.log(1 / DELTA)) / (records * epsilon)


def attack(records: int, batch: int, steps: int, noise: float) -> float:
    """An analytic lower bound: zero gradients against one record with a huge one.

    After its first inclusion every release is shifted by C2 = 1. The test sums what follows step `start`.
    """
    rate, best = batch / records, 0.0
    x = np.linspace(0, 60, 3001)
    for start in np.unique(np.geomspace(1, steps - 1, 80).astype(int)):
        included = -math.expm1(start * math.log1p(-rate))
        hit = included * special.ndtr(math.sqrt(steps - start) / noise - x)
        kept = hit > DELTA * 1.001
        if kept.any():
            best = max(best, float((np.log(hit[kept] - DELTA) - special.log_ndtr(-x[kept])).max()))
    return best


@pytest.mark.parametrize(
    ("records", "batch", "steps", "target", "known"),
    [
        (10_000, 100, 1000, 1.0, 20.27),
        (10_000, 1000, 100, 1.0, 1.29),
        (1_000_000, 1000, 1000, 1.0, 784.0),
        (50_000, 1000, 100, 2.0, 18.06),
    ],
)
def test_the_claim_is_broken_and_the_certificate_is_not(
    records: int, batch: int, steps: int, target: float, known: float
) -> None:
    """`known` is the lower bound of an attack slightly stronger than ours."""
    noise = claimed_noise(records, batch, steps, target)
    shown = attack(records, batch, steps, noise)
    run = ClippedFeedback(
        rate=batch / records, steps=steps, batch=batch, clip=1.0, feedback_clip=1.0, noise_std_on_mean=noise
    )
    assert target < shown <= known
    assert shown > 0.85 * known
    assert feedback.epsilon(run, delta=DELTA).value > known


def test_the_published_pinned_attack_is_covered_too() -> None:
    """Another record holds the error at the opposite end: shift 2 C2. Known lower bounds."""
    for records, batch, steps, target, known in (
        (10_000, 100, 1000, 1.0, 52.40),
        (10_000, 1000, 100, 1.0, 2.71),
        (1_000_000, 1000, 1000, 1.0, 2797.0),
        (50_000, 1000, 100, 2.0, 45.60),
    ):
        noise = claimed_noise(records, batch, steps, target)
        run = ClippedFeedback(
            rate=batch / records, steps=steps, batch=batch, clip=1.0, feedback_clip=1.0, noise_std_on_mean=noise
        )
        assert feedback.epsilon(run, delta=DELTA).value > known
