"""Numbers for the last iterate that were derived independently of this code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from last_iterate_steps import poisson_step

from discreet.accounting import gdp, rdp
from discreet.accounting import last_iterate as last
from discreet.methods.dpsgd_dc.curvature import lipschitz_glm, lipschitz_smooth
from research.reproductions.dpsgd_dc.renyi import fixed_size_rdp, rdp_at

# Figure 1 of the paper: L=1, C=2, sigma=4, D=1, n=8, b=2, eta=.2, at order 1.1
ORDER, RATE, SHIFT = 1.1, 2 / 8, 1 / (0.2 * 4)
NOISE = 4 * 2 / 2  # sigma b / C; half of it when a record is replaced
STEPS = (1, 10, 50, 100, 500)


def poisson(noise: float) -> float:
    return float(rdp.sampled_gaussian(RATE, noise, (ORDER,))[0])


def fixed_size(noise: float) -> float:
    return float(fixed_size_rdp(rate=RATE, noise=noise, orders=(ORDER,))[0])


def paper(steps: int, factor: float = 1.2) -> float:
    """Theorem 3.3 and Eq. 54."""
    open_ended = 2 * RATE * steps / NOISE**2
    return ORDER * min(open_ended, (math.sqrt(2 * RATE) / NOISE + factor * SHIFT / math.sqrt(2)) ** 2)


def test_claims_of_the_paper() -> None:
    expected = (0.034375, 0.34375, 1.684375, 1.684375, 1.684375)
    assert [paper(steps) for steps in STEPS] == pytest.approx(expected, rel=1e-6)


def test_composition() -> None:
    expected = (0.002189, 0.021887, 0.109436, 0.218871, 1.094355)
    assert [steps * poisson(NOISE) for steps in STEPS] == pytest.approx(expected, abs=6e-7)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # plain Poisson steps with c=1.2 hold for no sampler: this row checks the formula alone
        ("formula", (0.002189, 0.021887, 0.109436, 0.218871, 0.592154)),
        ("fixed size", (0.011547, 0.115473, 0.577366, 0.884275, 0.884275)),
        ("GLM", (0.002189, 0.021887, 0.109436, 0.175038, 0.175038)),
    ],
)
def test_figure_one(name: str, expected: tuple[float, ...]) -> None:
    step, noise, factor = {
        "formula": (poisson, NOISE, lipschitz_smooth(learning_rate=0.2, smoothness=1.0)),
        "fixed size": (fixed_size, NOISE / 2, lipschitz_smooth(learning_rate=0.2, smoothness=1.0)),
        # |B| <= 8 = 4 b always, so that eta L |B|/b = 0.8 <= 2
        "GLM": (poisson, NOISE, lipschitz_glm(learning_rate=0.2, smoothness=1.0, ratio=8 / 2)),
    }[name]
    for steps, value in zip(STEPS, expected, strict=True):
        got = rdp_at(ORDER, step=step, noise=noise, steps=steps, shift=SHIFT, factor=factor)[0]
        assert got == pytest.approx(value, rel=1e-4, abs=6e-7)


def test_composition_alone_beats_the_paper_up_to_step_769() -> None:
    assert 769 * poisson(NOISE) < paper(769)
    assert 770 * poisson(NOISE) > paper(770)


@pytest.mark.parametrize(
    ("rate", "noise", "order", "lemma", "true"), [(0.01, 1.0, 32.0, 0.64, 11.246), (0.1, 0.7, 8.0, 3.265, 5.532)]
)
def test_lemma_of_the_paper_is_violated(rate: float, noise: float, order: float, lemma: float, true: float) -> None:
    assert 2 * order * rate / noise**2 == pytest.approx(lemma, rel=2e-4)
    assert float(rdp.sampled_gaussian(rate, noise, (order,))[0]) == pytest.approx(true, rel=1e-4)
    # It does hold for without||with, the direction of its proof.
    assert rdp.backward(rate, noise, np.array([order]))[0] < lemma


# When does it pay? ---------------------------------------------------------------------------------------


def test_full_batch_plateau() -> None:
    """n=1000, D=2, eta=8, z=sqrt(1000): mu=1 and epsilon 4.377 for any T; composition has mu=7.07."""
    n, diameter, eta, clip = 1000, 2.0, 8.0, 1.0
    noise = math.sqrt(1000)
    shift = diameter / (eta * noise * clip / n)
    assert math.sqrt(4 * diameter * n / (eta * noise**2 * clip)) == pytest.approx(1)
    for steps in (50_000, 10**7):
        mu, absorbed = last.gaussian_mu(steps=steps, noise=noise, shift=shift, factor=1.0)
        assert mu == pytest.approx(1, rel=1e-9)
        assert absorbed == round(shift * noise)
        assert gdp.epsilon(mu, 1e-5) == pytest.approx(4.37718, rel=1e-4)
    assert math.sqrt(50_000) / noise == pytest.approx(7.07, rel=1e-3)
    # It pays from T = 4 D n / (eta C) = 1000 on.
    assert last.gaussian_mu(steps=999, noise=noise, shift=shift, factor=1.0)[0] == pytest.approx(math.sqrt(0.999))
    assert last.gaussian_mu(steps=1010, noise=noise, shift=shift, factor=1.0)[1] < 1010


def test_minibatch_logistic_regression_never_pays_at_a_useful_epsilon() -> None:
    """n=60000, b=600, eta=.5, L=.5, D=2, z=1: c=1.25 is composition at every T; c=1 plateaus near 131."""
    shift = 2 / (0.5 / 600)
    for steps in (100, 1000, 10_000):
        run = last.BoundedRun(**poisson_step(rate=0.01, noise=1.0), steps=steps, shift=shift, factor=1.25)
        assert last.epsilon(run, delta=1e-5).name.startswith("composition")
    far = last.BoundedRun(**poisson_step(rate=0.01, noise=1.0), steps=4 * 10**6, shift=shift, factor=1.0)
    found = last.epsilon(far, delta=1e-5)
    assert found.name.startswith("last iterate")
    assert 0.975 * 131 < found.value < 131
    renyi = min(bound.value for bound in last._by_rdp(far, 1e-5)[0] if bound.name == "last iterate, RDP")
    assert 131 < renyi < 131 * 1.03  # a coarse search over beta, m and orders
