"""Clopper-Pearson, the choice of the event, and the estimator on distributions that are known exactly."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import special, stats

from discreet.accounting import gdp
from discreet.auditing import bounds
from discreet.auditing.bounds import Audit, Floats, Tally, best_audit, choose, judge
from discreet.core.check import Refused


@pytest.mark.parametrize(("hits", "trials"), [(0, 5), (1, 5), (3, 17), (17, 17), (40, 10_000), (9_999, 10_000)])
@pytest.mark.parametrize("risk", [0.05, 0.0005])
def test_clopper_pearson_is_scipys(hits: int, trials: int, risk: float) -> None:
    interval = stats.binomtest(hits, trials).proportion_ci(confidence_level=1 - 2 * risk, method="exact")
    assert float(bounds.lower(hits, trials, risk)) == pytest.approx(interval.low, rel=1e-9)
    assert float(bounds.upper(hits, trials, risk)) == pytest.approx(interval.high, rel=1e-9)


@pytest.mark.parametrize("p", [0.001, 0.03, 0.5, 0.97])
def test_both_bounds_fail_no_more_often_than_stated(p: float) -> None:
    """Exact, by summing the binomial distribution: no false alarms."""
    hits, risk = np.arange(201), 0.01
    chance = stats.binom.pmf(hits, 200, p)
    assert chance[bounds.lower(hits, 200, risk) > p].sum() <= risk
    assert chance[bounds.upper(hits, 200, risk) < p].sum() <= risk
    assert chance[bounds.lower(hits, 200, 0.3) > p].sum() > 0 or p == 0.001  # the check can fail


def test_tallies_count_in_any_number_of_pieces() -> None:
    values = np.random.default_rng(1).standard_normal((2, 1000))
    whole, pieces = Tally(-2, 2, bins=64), Tally(-2, 2, bins=64)
    whole.add(absent=values[0], present=values[1])
    for part in np.array_split(values, 7, axis=1):
        pieces.add(absent=part[0], present=part[1])
    for present in (False, True):
        assert (whole.above(present=present) == pieces.above(present=present)).all()
        assert whole.trials(present=present) == 1000
        cuts = np.linspace(-2, 2, 65)[1:-1]
        exact = (values[int(present)][:, None] >= cuts).sum(0)
        assert (whole.above(present=present)[1:] == exact).all()


def test_a_tally_takes_infinities_and_refuses_nan() -> None:
    tally = Tally(0, 1, bins=2)
    tally.add(absent=np.array([-math.inf]), present=np.array([math.inf]))
    assert tally.above(present=True).tolist() == [1, 1]
    assert tally.above(present=False).tolist() == [1, 0]
    with pytest.raises(Refused, match="nan"):
        tally.add(absent=np.array([math.nan]), present=np.zeros(1))


def _audit(first: Tally, second: Tally, *, delta: float, confidence: float) -> Audit:
    return best_audit([(first, second)], delta=delta, confidence=confidence)


def _exact(absent: Floats, present: Floats) -> tuple[Tally, Tally]:
    """Two tallies of the same values."""
    tallies = Tally.around(absent, present), Tally.around(absent, present)
    for tally in tallies:
        tally.add(absent=absent, present=present)
    return tallies


def _normal_quantiles(count: int) -> Floats:
    """A sample without luck: the quantiles in the middle of `count` equal slices."""
    return np.asarray(special.ndtri((np.arange(count) + 0.5) / count))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_estimator_on_an_exact_gaussian_pair(mu: float) -> None:
    values = _normal_quantiles(500_000)
    found = _audit(*_exact(values, values + mu), delta=1e-2, confidence=0.999)
    exact = gdp.epsilon(mu, 1e-2)
    assert 0.85 * exact < found.epsilon < exact


def test_the_other_direction_is_tried_too() -> None:
    """The likely world may be the one without the record: mirroring both worlds changes nothing."""
    values = _normal_quantiles(200_000)
    mixture = np.where(np.arange(200_000) % 10 == 0, values[::-1] + 6, values)
    forward = _audit(*_exact(values, mixture), delta=1e-3, confidence=0.99)
    backward = _audit(*_exact(-mixture, -values), delta=1e-3, confidence=0.99)
    assert forward.epsilon > 3
    assert backward.epsilon == pytest.approx(forward.epsilon, rel=0.02)


def test_equal_worlds_show_nothing_and_separate_ones_the_ceiling() -> None:
    values = _normal_quantiles(10_000)
    assert _audit(*_exact(values, values), delta=1e-5, confidence=0.999).epsilon == 0
    apart = _audit(*_exact(values, values + 100), delta=1e-5, confidence=0.999)
    assert apart.epsilon == pytest.approx(math.log(10_000 / math.log(2 / 0.001)), abs=0.01)
    assert apart.hits == (10_000, 0)


def test_a_choice_on_the_judging_trials_would_cheat() -> None:
    """Equal worlds, 100 seeded audits at confidence 1/2: honest ones are wrong in at most half, the others mostly."""
    rng, honest, cheating = np.random.default_rng(7), 0, 0
    for _ in range(100):
        tallies = [Tally(-4, 4, bins=256) for _ in range(2)]
        for tally in tallies:
            tally.add(absent=rng.standard_normal(4000), present=rng.standard_normal(4000))
        first, second = tallies
        at = {"delta": 0.0, "confidence": 0.5}
        honest += judge(second, choose(first, **at)[1], **at).epsilon > 0
        cheating += judge(second, choose(second, **at)[1], **at).epsilon > 0
    assert honest <= 50
    assert cheating > 75


def test_delta_is_taken_off() -> None:
    shown = bounds.epsilon_of(5_000, 10, (10_000, 10_000), 0.3, 0.001)
    p, q = bounds.lower(5_000, 10_000, 0.0005), bounds.upper(10, 10_000, 0.0005)
    assert float(shown) == pytest.approx(math.log((p - 0.3) / q))
    assert float(bounds.epsilon_of(5_000, 10, (10_000, 10_000), 0.6, 0.001)) == 0


def test_tallies_with_other_cuts_are_refused() -> None:
    with pytest.raises(Refused, match="same cuts"):
        _audit(Tally(0, 1), Tally(0, 2), delta=1e-5, confidence=0.9)


@pytest.mark.parametrize("bad", [{"delta": -0.1}, {"delta": 1.0}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_bad_numbers_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(Refused, match="Remedy"):
        choose(Tally(0, 1), **{"delta": 1e-5, "confidence": 0.9, **bad})


def test_bounds_and_games_start_without_torch() -> None:
    code = (
        "import sys, discreet.auditing.games, discreet.auditing.broken, discreet.auditing.truth; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
