"""Coins, subsets and orders: exact probabilities, from exact integer comparisons."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.core.check import Refused
from discreet.core.generators.residues import unbiased
from discreet.core.streams import Stream, Streams

ALPHA = 1e-6  # the draws are seeded; a fresh seed would fail a sound stream with this chance


# Coins ----------------------------------------------------------------------------------------------------


class Fixed:
    """A stand-in for the cipher that replays given words."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def update_into(self, zeros: memoryview, target: memoryview) -> None:
        taken, self.words = self.words[: len(zeros) // 8], self.words[len(zeros) // 8 :]
        assert 8 * len(taken) == len(zeros)
        target[: len(zeros)] = np.array(taken, dtype=np.uint64).tobytes()


def fed(words: list[int]) -> Stream:
    stream = Streams.seeded(0).sampling
    stream._words = Fixed(words)  # type: ignore[assignment]
    return stream


@pytest.mark.parametrize("rate", [1e-7, 0.1, 1 / 3, 0.5, 256 / 50_000, 2.0**-12, 1 - 2.0**-53, 1e-15])
def test_coins_have_exactly_the_probability_of_the_float(rate: float) -> None:
    exact = Fraction(rate) * 2**64
    below = exact.numerator // exact.denominator
    # Every word below the threshold is in, every word above is out ...
    assert fed([0, below - 1]).bernoulli(2, rate).all()
    assert not fed([below + 1, 2**64 - 1]).bernoulli(2, rate).any()
    # ... and the word on the threshold is in with the fraction that is left, so that the total is the rate.
    rest = exact - below
    second = (rest * 2**64).numerator // (rest * 2**64).denominator
    if rest == 0:
        assert not fed([below]).bernoulli(1, rate).any()
        assert Fraction(below, 2**64) == Fraction(rate)
    else:
        assert fed([below, second - 1]).bernoulli(1, rate).all()
        assert not fed([below, second + 1]).bernoulli(1, rate).any()
        assert rest * 2**64 - second == 0  # the bits of these floats end within 128
        assert not fed([below, second]).bernoulli(1, rate).any()
        assert Fraction(below, 2**64) + Fraction(second, 2**128) == Fraction(rate)


def test_a_rate_of_a_tenth_of_a_millionth_is_not_rounded_to_a_float32_grid() -> None:
    exact = Fraction(1e-7) * 2**64
    grid = Fraction(math.ceil(1e-7 * 2**24), 2**24)  # what rand() < q does in float32
    assert grid > Fraction(119, 10**9)
    word = exact.numerator // exact.denominator + 1
    assert Fraction(word, 2**64) < grid
    assert not fed([word]).bernoulli(1, 1e-7).any()


def test_rate_one_always_and_the_smallest_rate_works() -> None:
    assert fed([0, 2**63, 2**64 - 1]).bernoulli(3, 1.0).all()
    assert not Streams.seeded(19).sampling.bernoulli(10_000, 5e-324).any()
    exponent = 1074 - 64 * 16  # 5e-324 = 2^-1074: sixteen words of zero, then 2^14 of 2^64 words
    assert fed([0] * 16 + [2 ** (64 - exponent) - 1]).bernoulli(1, 5e-324).all()
    assert not fed([0] * 16 + [2 ** (64 - exponent)]).bernoulli(1, 5e-324).any()
    assert len(Streams.seeded(19).sampling.bernoulli(0, 0.5)) == 0


def wilson(hits: int, n: int) -> tuple[float, float]:
    interval = stats.binomtest(hits, n).proportion_ci(1 - ALPHA, method="wilson")
    return interval.low, interval.high


@pytest.mark.parametrize("rate", [0.001, 0.017, 0.5, 0.9])
def test_inclusion_frequency(rate: float) -> None:
    n = 400_000
    coins = Streams.seeded(20).sampling.bernoulli(n, rate)
    assert coins.dtype == np.bool_
    low, high = wilson(int(coins.sum()), n)
    assert low <= rate <= high
    assert not low <= min(1.5 * rate, 1.0) <= high


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0001, math.nan, "0.1", True])
def test_bad_rates_are_refused(rate: object) -> None:
    with pytest.raises(Refused, match="rate"):
        Streams.seeded(0).sampling.bernoulli(3, rate)  # type: ignore[arg-type]


# Subsets and orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 60_000, 2**32 + 1, 2**63 + 1, 2**64 - 1])
def test_residues_are_unbiased(bound: int) -> None:
    limit = 2**64 // bound * bound  # words below this fall on every residue equally often
    inside = np.array([0, limit - 1], dtype=np.uint64)
    assert unbiased(inside, np.full(2, bound, dtype=np.uint64)).all()
    if limit < 2**64:
        outside = np.array([limit, 2**64 - 1], dtype=np.uint64)
        assert not unbiased(outside, np.full(2, bound, dtype=np.uint64)).any()


def test_biased_words_are_drawn_again() -> None:
    # 2^64 mod 3 = 1, so the word 2^64 - 1 would favour residue 0.
    assert fed([2**64 - 1, 2**64 - 1, 5]).integers(1, below=3).tolist() == [2]


def test_whole_numbers_are_uniform() -> None:
    n, below = 30_000, 7
    seen = np.bincount(Streams.seeded(24).sampling.integers(n, below=below), minlength=below)
    assert len(seen) == below
    assert stats.chisquare(seen).pvalue > ALPHA
    seen[0] += n // below // 4
    assert stats.chisquare(seen).pvalue < ALPHA  # control
    assert Streams.seeded(24).sampling.integers(3, below=1).tolist() == [0, 0, 0]
    assert len(Streams.seeded(24).sampling.integers(0, below=5)) == 0
    with pytest.raises(Refused, match="below"):
        Streams.seeded(24).sampling.integers(3, below=0)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_subset_is_equally_likely(count: int) -> None:
    stream, n = Streams.seeded(21).sampling, 6000
    seen = Counter(tuple(stream.choice(count, 5).tolist()) for _ in range(n))
    subsets = list(itertools.combinations(range(5), count))
    assert set(seen) == set(subsets)
    assert stats.chisquare([seen[subset] for subset in subsets]).pvalue > ALPHA
    skewed = [seen[subset] + (n // 10 if subset == subsets[0] else 0) for subset in subsets]
    assert stats.chisquare(skewed).pvalue < ALPHA  # control


def test_choice_is_sorted_distinct_and_complete() -> None:
    stream = Streams.seeded(22).sampling
    for count, of in ((0, 4), (4, 4), (1, 1), (700, 60_000), (59_000, 60_000)):
        chosen = stream.choice(count, of)
        assert len(chosen) == count
        assert chosen.dtype == np.int64
        assert (np.diff(chosen) > 0).all()
        assert count == 0 or (chosen[0] >= 0 and chosen[-1] < of)
    with pytest.raises(Refused, match="count <= of=3"):
        stream.choice(4, 3)
    with pytest.raises(Refused, match="of"):
        stream.choice(0, 0)


def test_every_order_is_equally_likely() -> None:
    stream, n = Streams.seeded(23).sampling, 6000
    seen = Counter(tuple(stream.permutation(4).tolist()) for _ in range(n))
    orders = list(itertools.permutations(range(4)))
    assert set(seen) == set(orders)
    assert stats.chisquare([seen[order] for order in orders]).pvalue > ALPHA
    skewed = [seen[order] + (n // 10 if order == orders[0] else 0) for order in orders]
    assert stats.chisquare(skewed).pvalue < ALPHA  # control
    assert stream.permutation(0).tolist() == []
    assert sorted(stream.permutation(1000).tolist()) == list(range(1000))


def test_tied_words_are_drawn_again() -> None:
    assert fed([7, 7, 1, 9, 3, 5]).permutation(3).tolist() == [1, 2, 0]
