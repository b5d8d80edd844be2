"""An audit of the selection itself: a canary raises the scores, and the bound stays below the certificate."""

import math

import numpy as np
import pytest

from discreet.accounting.accountants import certify
from discreet.accounting.best_of_runs import TruncatedNegativeBinomial
from discreet.accounting.charges import Charge
from discreet.accounting.events import BestOfRuns, Gaussian
from discreet.core.relation import Neighbouring

TRIALS, DELTA = 200_000, 1e-2


def chosen(law: TruncatedNegativeBinomial, canary: bool, noise: float, seed: int) -> np.ndarray:
    """The score of the chosen run in each trial: the best of K noisy counts, which the canary raises by one."""
    random = np.random.default_rng(seed)
    shares = np.cumsum([p for _, p in zip(range(4000), (p for _, p in law.probabilities()), strict=False)])
    counts = 1 + np.minimum(np.searchsorted(shares, random.random(TRIALS), side="right"), 3999)
    best = np.full(TRIALS, -np.inf)
    for run in range(int(counts.max())):
        some = counts > run
        best[some] = np.maximum(best[some], float(canary) + noise * random.standard_normal(int(some.sum())))
    return best


def shown(law: TruncatedNegativeBinomial, noise: float) -> float:
    """A lower bound on epsilon at DELTA with 99.9 % confidence, over thresholds that the first half chooses."""
    from scipy.stats import beta

    with_canary, without = chosen(law, True, noise, 1), chosen(law, False, noise, 2)
    half, worst = TRIALS // 2, 0.0
    for one, other in ((with_canary, without), (-without, -with_canary)):
        places = np.quantile(other[:half], np.linspace(0.5, 0.9995, 60))
        gains = [np.log(max((one[:half] > at).mean() - DELTA, 1e-9) / (other[:half] > at).mean()) for at in places]
        at = places[int(np.argmax(gains))]
        hits, misses = int((one[half:] > at).sum()), int((other[half:] > at).sum())
        low = beta.ppf(0.0005, hits, half - hits + 1)
        high = beta.ppf(0.9995, misses + 1, half - misses)
        worst = max(worst, math.log(max(low - DELTA, 1e-12) / high))
    return worst


@pytest.mark.parametrize(("shape", "mean"), [(0.0, 10.0), (1.0, 5.0)])
def test_the_audit_of_a_selection_stays_below_its_certificate(shape: float, mean: float) -> None:
    noise, law = 1.5, TruncatedNegativeBinomial.of_mean(shape=shape, mean=mean)
    run = ((Gaussian(noise), 1),)
    one, whole = (
        certify(charge, delta=DELTA, relation=Neighbouring.ADD_REMOVE).epsilon
        for charge in (Charge(run), Charge.of(BestOfRuns((run,), mean, shape)))
    )
    found = shown(law, noise)
    assert 0.4 * one < found <= whole
    # Negative control: candidates with a third of the noise that is charged break the certificate.
    assert shown(law, noise / 3) > whole
