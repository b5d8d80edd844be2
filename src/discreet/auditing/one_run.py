"""A lower bound on epsilon from ONE run with many canaries (Steinke, Nasr, Jagielski 2023).

Each canary is included by a fair coin, and after the run the attacker guesses the most certain coins. If the run is
(epsilon, delta)-private, the number of right guesses is about binomial with probability e^epsilon / (1 + e^epsilon) at
most. The bound is valid for every mechanism and every dependence between canaries, and weaker than that of many runs.
It needs a small delta, since the theorem adds a term 2 * canaries * delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy import stats

from discreet.auditing.bounds import Flags, Floats
from discreet.auditing.games import CONFIDENCE
from discreet.core import check


@final
@dataclass(frozen=True, kw_only=True)
class Guesses:
    """The attacker's result: `correct` of `made` guesses, among `canaries` coins."""

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
        check.inside_unit("the bound holds with this probability, e.g. 0.999", confidence=confidence)
        check.require(0 <= delta < 1, "delta in [0, 1)", f"delta={delta!r}", "a probability of failure")
        risk = 1 - confidence
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
