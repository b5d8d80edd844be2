"""Lower bounds on epsilon, with stated confidence, from distinguishing games.

A game has two worlds, with and without one record, and `trials` values of a statistic in each. For every event E and
both orders of the worlds, (epsilon, delta)-privacy requires P(E) <= e^epsilon Q(E) + delta, so

    epsilon >= ln((lower bound on P(E) - delta) / upper bound on Q(E))

with Clopper-Pearson bounds, each at half of the risk. E is chosen on separate trials. A single event is tested on the
remaining trials, so the confidence needs no correction. This module never imports torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, final

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from discreet.core import check

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

BINS = 4096
CONFIDENCE = 0.999


@final
class Tally:
    """A histogram of the statistic in both worlds; its memory does not grow with the number of trials.

    It has equal bins between `low` and `high`; values outside belong to the outermost bins.

    >>> tally = Tally(0.0, 4.0, bins=4)
    >>> tally.add(absent=np.array([0.5, 1.5]), present=np.array([2.5, 99.0]))
    >>> tally.above(present=True).tolist()
    [2, 2, 2, 1]
    """

    def __init__(self, low: float, high: float, *, bins: int = BINS) -> None:
        check.count("the number of bins of the histogram", least=2, bins=bins)
        remedy = "span the values of the statistic"
        check.require(math.isfinite(low) and low < high < math.inf, "low < high", f"low={low!r}, high={high!r}", remedy)
        self.low, self.high, self.bins = low, high, bins
        self._counts = {present: np.zeros(bins, dtype=np.int64) for present in (False, True)}

    @classmethod
    def around(cls, absent: Floats, present: Floats, *, bins: int = BINS) -> Self:
        """An empty tally that spans these values, with a margin of half their range on both sides."""
        values = np.concatenate([absent, present])
        values = values[np.isfinite(values)]
        check.require(len(values) > 0, "values to span", "none that are finite", "give the statistic a value")
        low, high = float(values.min()), float(values.max())
        margin = (high - low) / 2 or max(1.0, abs(low))
        return cls(low - margin, high + margin, bins=bins)

    def add(self, *, absent: Floats, present: Floats) -> None:
        for values, counts in ((absent, self._counts[False]), (present, self._counts[True])):
            check.require(not np.isnan(values).any(), "a number for every trial", "nan", "fix the statistic")
            place = (values - self.low) * (self.bins / (self.high - self.low))
            index = np.clip(place, 0, self.bins - 1).astype(np.int64)
            counts += np.bincount(index, minlength=self.bins)

    def trials(self, *, present: bool) -> int:
        """How many trials of this world were counted."""
        return int(self._counts[present].sum())

    def above(self, *, present: bool) -> Counts:
        """For each cut (the lower end of a bin): the trials at or above it."""
        return self._counts[present][::-1].cumsum()[::-1]


class Threshold(NamedTuple):
    """An event: the statistic is at or above cut number `cut` (likelier with the record), or below it (without)."""

    cut: int
    upper: bool


@final
@dataclass(frozen=True, kw_only=True)
class Audit:
    """A lower bound on epsilon at `delta`, wrong with probability at most 1 - `confidence`.

    hits, trials  of the tested event, in the world where it is likely and in the other one
    """

    epsilon: float
    delta: float
    confidence: float
    hits: tuple[int, int]
    trials: tuple[int, int]


def lower(hits: npt.ArrayLike, trials: int, risk: float) -> Floats:
    """Clopper-Pearson: a probability that is too high with probability at most `risk`.

    >>> float(lower(0, 10, 0.05)), round(float(lower(10, 10, 0.05)), 4)
    (0.0, 0.7411)
    """
    k, places = _distinct(hits)
    found = special.betaincinv(np.maximum(k, 1), trials - np.maximum(k, 1) + 1, risk)
    return np.asarray(np.where(k == 0, 0.0, found)[places])


def upper(hits: npt.ArrayLike, trials: int, risk: float) -> Floats:
    """Clopper-Pearson: a probability that is too low with probability at most `risk`.

    >>> round(float(upper(0, 10, 0.05)), 4), float(upper(10, 10, 0.05))
    (0.2589, 1.0)
    """
    k, places = _distinct(hits)
    below = np.minimum(k, trials - 1)
    found = special.betainccinv(below + 1, trials - below, risk)
    return np.asarray(np.where(k == trials, 1.0, found)[places])


def _distinct(hits: npt.ArrayLike) -> tuple[Floats, Counts]:
    """The distinct numbers and their places: quantiles are expensive, and many cuts share them."""
    values = np.asarray(hits, dtype=np.float64)
    found, places = np.unique(values, return_inverse=True)
    return found, places.reshape(values.shape)


def epsilon_of(
    likely: npt.ArrayLike, unlikely: npt.ArrayLike, trials: tuple[int, int], delta: float, risk: float
) -> Floats:
    """ln((P - delta) / Q) from hits in the likely and the unlikely world; 0 where nothing is proven."""
    p, q = lower(likely, trials[0], risk / 2), upper(unlikely, trials[1], risk / 2)
    shown = np.log(np.maximum(p - delta, np.finfo(np.float64).tiny)) - np.log(q)
    return np.maximum(np.where(p > delta, shown, 0.0), 0.0)


def choose(tally: Tally, *, delta: float, confidence: float) -> tuple[float, Threshold]:
    """The event with the largest bound, and that bound, on trials that will not test it."""
    risk = risk_of(delta, confidence)
    tests = []
    for is_upper in (True, False):
        likely, unlikely, trials = _hits(tally, is_upper)
        shown = epsilon_of(likely, unlikely, trials, delta, risk)
        # Of equal events take the middle one: where the worlds separate, it has a margin on both sides.
        best = np.flatnonzero(shown >= shown.max() - 1e-12)
        tests.append((float(shown.max()), Threshold(int(best[len(best) // 2]), is_upper)))
    return max(tests, key=lambda scored: scored[0])


def judge(tally: Tally, test: Threshold, *, delta: float, confidence: float) -> Audit:
    """The bound from one event that was chosen on other trials."""
    risk = risk_of(delta, confidence)
    likely, unlikely, trials = _hits(tally, test.upper)
    hits = int(likely[test.cut]), int(unlikely[test.cut])
    epsilon = float(epsilon_of(hits[0], hits[1], trials, delta, risk))
    return Audit(epsilon=epsilon, delta=delta, confidence=confidence, hits=hits, trials=trials)


def best_audit(pairs: Sequence[tuple[Tally, Tally]], *, delta: float, confidence: float) -> Audit:
    """Choose an event on the first tally of each statistic and test it on the second; the best statistic counts."""
    for first, second in pairs:
        same = (first.low, first.high, first.bins) == (second.low, second.high, second.bins)
        check.require(same, "two tallies with the same cuts", "others", "create both from the same pilot trials")
    found = [choose(first, delta=delta, confidence=confidence) for first, _ in pairs]
    place = max(range(len(pairs)), key=lambda index: found[index][0])
    return judge(pairs[place][1], found[place][1], delta=delta, confidence=confidence)


def _hits(tally: Tally, is_upper: bool) -> tuple[Counts, Counts, tuple[int, int]]:
    """Hits at every cut in the likely and in the other world, and the numbers of trials."""
    absent, present = tally.trials(present=False), tally.trials(present=True)
    above_absent, above_present = tally.above(present=False), tally.above(present=True)
    if is_upper:
        return above_present, above_absent, (present, absent)
    return absent - above_absent, present - above_present, (absent, present)


def risk_of(delta: float, confidence: float) -> float:
    """The probability with which a bound may be wrong."""
    check.require(0 <= delta < 1, "delta in [0, 1)", f"delta={delta!r}", "delta is the probability of failure")
    check.inside_unit("the bound holds with this probability, e.g. 0.999", confidence=confidence)
    return 1 - confidence


@final
@dataclass(frozen=True, kw_only=True)
class Guesses:
    """The attacker's result in ONE run with many canaries: `correct` of `made` guesses, among `canaries` coins.

    The bound is that of Steinke, Nasr and Jagielski (2023). Each canary is included by a fair coin, and after the run
    the attacker guesses the most certain coins. If the run is (epsilon, delta)-private, the number of right guesses is
    about binomial with probability e^epsilon / (1 + e^epsilon) at most. This holds for every mechanism and every
    dependence between canaries, and is weaker than the bound of many runs. It needs a small delta, since the theorem
    adds a term 2 * canaries * delta.
    """

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        check.count("numbers of coins and guesses", least=0, made=self.made, correct=self.correct)
        got, fits = f"{self.correct}, {self.made}, {self.canaries}", self.correct <= self.made <= self.canaries
        check.require(fits, "correct <= made <= canaries", got, "count each coin once")

    def chance(self, epsilon: float, delta: float) -> float:
        """The p-value of the theorem: the most likely these guesses can be if the run is (epsilon, delta)-private.

        P(X >= v) + 2 m delta max_i P(v - i <= X < v) / i, X ~ binomial(guesses, e^epsilon / (1 + e^epsilon)).
        """
        right = 1 / (1 + math.exp(-epsilon))
        tail = float(stats.binom.sf(self.correct - 1, self.made, right))
        if delta == 0 or self.correct == 0:
            return min(1.0, tail)
        below = np.cumsum(stats.binom.pmf(np.arange(self.correct - 1, -1, -1), self.made, right))
        steepest = float((below / np.arange(1, self.correct + 1)).max())
        return min(1.0, tail + 2 * self.canaries * delta * steepest)

    def epsilon(self, delta: float, confidence: float = CONFIDENCE) -> float:
        """The largest epsilon that these guesses refute; 0 if none.

        >>> guesses = Guesses(canaries=1000, made=100, correct=95)
        >>> round(guesses.epsilon(0.0), 2), guesses.epsilon(0.1)
        (1.69, 0.0)
        """
        risk = risk_of(delta, confidence)
        if self.chance(0.0, delta) >= risk:
            return 0.0
        low, high = 0.0, 1.0
        while self.chance(high, delta) < risk:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.chance(middle, delta) < risk else (low, middle)
        return low


SHARE = 0.2
"""The share of coins that is guessed. It is fixed: choosing it by the outcome would be multiple testing."""


def guess(scores: Floats, there: Flags, *, share: float = SHARE) -> Guesses:
    """Guess that the highest scores were included and the lowest were not, for `share` of all coins.

    >>> guess(np.array([0.1, 3.0, -2.0, 0.0]), np.array([True, True, False, False]), share=0.5)
    Guesses(canaries=4, made=2, correct=2)
    """
    check.fraction("guess the coins with the most extreme scores, e.g. 0.1", share=share)
    order = np.argsort(scores, kind="stable")
    each = max(1, round(len(scores) * share / 2))
    correct = int(there[order[-each:]].sum() + (~there[order[:each]]).sum())
    return Guesses(canaries=len(scores), made=2 * each, correct=correct)
