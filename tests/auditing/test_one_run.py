"""One run with many canaries: the theorem's bound on exact distributions, and every method's real run."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from discreet import methods
from discreet.auditing.bounds import Guesses, guess
from discreet.auditing.releases import Attacked, canaries, linear
from discreet.core.check import Refused
from discreet.core.streams import Stream
from discreet.methods import METHODS

DELTA = 1e-7


def one_run(attacked: Attacked) -> Guesses:
    """One run of the plan's real steps with as many canaries as it has records, and guesses at their coins."""
    count = attacked.plan.horizon.size.records
    there = np.random.default_rng().random(count) < 0.5
    with linear(count) as (net, engine):
        releases = attacked.run(net, engine, canaries(attacked.plan, there))
    return guess(np.sum([released.value.double().numpy() for released in releases], axis=0), there)


def test_randomised_response_is_never_exceeded_and_nearly_reached() -> None:
    """Coins told truly with probability e / (1 + e), exactly epsilon = 1: exact, by summing over the outcomes."""
    right = 1 / (1 + np.exp(-1))
    correct = np.arange(1001)
    shown = np.array([Guesses(canaries=1000, made=1000, correct=int(v)).epsilon(0.0, 0.99) for v in correct])
    chance = stats.binom.pmf(correct, 1000, right)
    assert chance[shown > 1].sum() <= 0.01
    assert chance[shown > 0.99].sum() > 0.001  # the bound is tight: it can fail
    assert chance @ shown > 0.7


@pytest.mark.parametrize(("made", "correct", "delta"), [(50, 45, 1e-4), (200, 160, 1e-5), (7, 7, 1e-3)])
def test_the_p_value_is_the_sum_written_out(made: int, correct: int, delta: float) -> None:
    guesses, right = Guesses(canaries=300, made=made, correct=correct), 1 / (1 + np.exp(-0.4))
    law = stats.binom(made, right)
    steepest = max(sum(law.pmf(v) for v in range(correct - i, correct)) / i for i in range(1, correct + 1))
    assert guesses.chance(0.4, delta) == pytest.approx(law.sf(correct - 1) + 600 * delta * steepest)


def test_more_delta_shows_less_and_more_right_guesses_show_more() -> None:
    shown = [Guesses(canaries=1000, made=100, correct=90).epsilon(delta) for delta in (0.0, 1e-6, 1e-5, 1e-2)]
    assert shown == sorted(shown, reverse=True)
    assert shown[-1] == 0
    assert Guesses(canaries=1000, made=100, correct=99).epsilon(1e-6) > shown[1]
    assert Guesses(canaries=1000, made=100, correct=50).epsilon(0.0) == 0


@pytest.mark.parametrize("name", METHODS)
def test_one_run_never_exceeds_a_certificate(name: str) -> None:
    """Each is wrong with probability at most 1e-6."""
    attacked = Attacked.of(METHODS[name].recipe(), records=400, noise=1.0, delta=DELTA, steps=2)
    shown = one_run(attacked).epsilon(DELTA, 1 - 1e-6)
    assert shown <= attacked.plan.certificate().epsilon


def test_one_run_sees_a_record_and_catches_lost_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = Attacked.of(methods.dp_sgd(), records=1000, noise=4.0, delta=DELTA)
    certified = attacked.plan.certificate().epsilon
    assert certified < 1.5
    real = Stream.add_normal_
    monkeypatch.setattr(Stream, "add_normal_", lambda self, value, std: real(self, value, std / 20))
    assert one_run(attacked).epsilon(DELTA) > certified


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(Refused, match="made"):
        Guesses(canaries=10, made=11, correct=3)
    with pytest.raises(Refused, match="made"):
        Guesses(canaries=10, made=5, correct=6)
