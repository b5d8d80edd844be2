"""Scalar games: never above the certificate, close to it, and above it when the noise is halved.

Generators are seeded, so that nothing here depends on luck.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from discreet.accounting import gdp
from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, PoissonSampled
from discreet.auditing.bounds import epsilon_of
from discreet.auditing.games import PoissonStep, play
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([2026, seed])


def _expected(mu: float, trials: int, *, delta: float, risk: float) -> float:
    """The bound to expect for a Gaussian release at distance mu from so many trials a world."""
    half, cuts = trials // 2, np.linspace(-2, mu + 6, 801)
    likely, unlikely = half * special.ndtr(mu - cuts), half * special.ndtr(-cuts)
    return float(epsilon_of(np.floor(likely), np.ceil(unlikely), (half, half), delta, risk).max())


def test_never_above_the_certificate_over_20_repeats() -> None:
    for delta, trials in ((1e-2, 100_000), (1e-5, 100_000)):
        certified = gdp.epsilon(1.0, delta)
        found = [
            play(PoissonStep(noise=1.0), trials=trials, delta=delta, generator=_rng(repeat)).epsilon
            for repeat in range(20)
        ]
        assert max(found) <= certified
        assert min(found) > 0.3 * certified


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_halved_noise_is_caught(delta: float) -> None:
    found = play(PoissonStep(noise=0.5), trials=400_000, delta=delta, generator=_rng(1))
    assert found.epsilon > gdp.epsilon(1.0, delta)
    assert found.epsilon <= gdp.epsilon(2.0, delta)


def test_a_million_trials_come_within_a_tenth_at_a_large_delta() -> None:
    found = play(PoissonStep(noise=1.0), trials=10**6, delta=1e-2, generator=_rng(2))
    exact = gdp.epsilon(1.0, 1e-2)
    assert 0.9 * exact <= found.epsilon <= exact
    assert found.epsilon == pytest.approx(_expected(1.0, 10**6, delta=1e-2, risk=1e-3), rel=0.02)


@pytest.mark.slow
def test_a_hundred_million_trials_come_within_15_percent_at_a_small_delta() -> None:
    found = play(PoissonStep(noise=1.0), trials=10**8, delta=1e-5, generator=_rng(3))
    exact = gdp.epsilon(1.0, 1e-5)
    assert 0.85 * exact <= found.epsilon <= exact


def test_poisson_sampling_holds_and_halved_noise_does_not() -> None:
    rate, delta = 0.2, 1e-3
    charge = Charge.of(PoissonSampled(rate, Gaussian(0.8)))
    certified = certify(charge, delta=delta, relation=Neighbouring.ADD_REMOVE).epsilon
    held = play(PoissonStep(rate=rate, noise=0.8), trials=400_000, delta=delta, generator=_rng(4))
    assert 0.5 * certified < held.epsilon <= certified
    halved = play(PoissonStep(rate=rate, noise=0.4), trials=400_000, delta=delta, generator=_rng(5))
    assert halved.epsilon > certified


def test_every_trial_is_counted_and_told() -> None:
    told: list[tuple[int, int]] = []
    found = play(
        PoissonStep(noise=1.0),
        trials=2**21 + 5,
        delta=1e-2,
        generator=_rng(6),
        advance=lambda done, total: told.append((done, total)),
    )
    assert found.trials == (2**20 + 3, 2**20 + 3)
    assert told[-1] == (2**21 + 5, 2**21 + 5)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_too_few_trials_and_bad_settings_are_refused() -> None:
    with pytest.raises(Refused, match="trials"):
        play(PoissonStep(noise=1.0), trials=3, delta=1e-2)
    with pytest.raises(Refused, match="noise"):
        PoissonStep(noise=0.0)
    with pytest.raises(Refused, match="rate"):
        PoissonStep(rate=0.0, noise=1.0)


@pytest.mark.os_entropy
def test_without_a_generator_the_operating_system_seeds() -> None:
    found = {play(PoissonStep(noise=1.0), trials=2000, delta=1e-2).hits for _ in range(6)}
    assert len(found) > 1  # six plays alike: below 1e-9, as two are with probability below 0.01
