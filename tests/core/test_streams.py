"""Streams: the right distributions, exact probabilities, and no block ever used twice.

Every draw is seeded, so a pass stays a pass; alpha is the chance that a fresh seed would have failed.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import random
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from discreet.core import normals
from discreet.core.check import Refused
from discreet.core.streams import Stream, Streams, unbiased

ALPHA = 1e-6
NAMES = ("noise", "sampling", "mask", "projection", "init")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rejects(sample: torch.Tensor, scale: float = 1.0) -> bool:
    """Kolmogorov-Smirnov at level ALPHA against N(0, scale^2)."""
    return bool(stats.kstest(sample.double().numpy() / scale, "norm").pvalue < ALPHA)


def transform(words: list[int]) -> torch.Tensor:
    source = np.array(words, dtype=np.int64)
    out = np.empty(len(words))
    normals.box_muller(source, out, torch.empty(3, len(words) // 2, dtype=torch.float64))
    return torch.from_numpy(out)


# The normal distribution --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_pass_a_ks_test_that_rejects_other_scales(dtype: torch.dtype, threads: int) -> None:
    sample = Streams.seeded(1).noise.normal(200_000, dtype=dtype)
    assert sample.dtype == dtype
    assert not rejects(sample)
    assert rejects(sample, 2 / 3)
    assert rejects(sample, 3 / 2)
    assert rejects(sample + 0.02)


def test_both_halves_of_a_pair_are_normal_and_uncorrelated() -> None:
    n = 100_000
    pairs = Streams.seeded(2).noise.normal(2 * n, dtype=torch.float64).view(n, 2)
    cosine, sine = pairs.unbind(1)
    assert not rejects(cosine)
    assert not rejects(sine)
    bound = stats.norm.isf(ALPHA / 4) / math.sqrt(n)  # two two-sided tests of a correlation
    assert abs(float((cosine * sine).mean())) < bound
    assert (
        abs(float((cosine**2 * sine**2).mean()) - 1) < 10 * bound
    )  # the product of squares has deviation < 10
    assert float((cosine * (sine + cosine)).mean()) > bound  # control: dependence is seen


def test_normals_have_the_right_tails() -> None:
    n, far = 1_000_000, 3.5
    count = int((Streams.seeded(3).noise.normal(n).abs() > far).sum())
    low, high = stats.binom(n, 2 * stats.norm.sf(far)).interval(1 - ALPHA)
    assert low <= count <= high
    narrow = stats.binom(n, 2 * stats.norm.sf(far / 0.9)).interval(1 - ALPHA)
    assert not narrow[0] <= count <= narrow[1]


def test_extreme_words_map_to_finite_values_beyond_eight_deviations() -> None:
    least, most = -(2**63), 2**63 - 1
    top = math.sqrt(128 * math.log(2))
    assert top > 9.4
    assert transform([0, 0]).tolist() == pytest.approx([top, 0.0], rel=1e-14)
    assert transform([-1, 0]).tolist() == pytest.approx([top, 0.0], rel=1e-14)
    assert transform([0, 2**62]).tolist() == pytest.approx([0.0, top], abs=1e-14)
    assert transform([0, least]).tolist() == pytest.approx([-top, 0.0], abs=1e-14)
    for edge in (least, most):
        assert transform([edge, 12345]).tolist() == [0.0, 0.0]
    corners = [least, least + 1, -1, 0, 1, most - 1, most]
    for pair in itertools.product(corners, corners):
        assert bool(torch.isfinite(transform(list(pair))).all())


def test_words_map_to_the_stated_formula() -> None:
    words = [int(w) for w in Streams.seeded(4).sampling.uniform64(200).view(np.int64)]
    expected = []
    for first, second in zip(words[0::2], words[1::2], strict=True):
        radius = math.sqrt(-2 * math.log(abs(first + 0.5) / 2**63))
        angle = math.pi * second / 2**63
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    assert transform(words).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_normals_are_made_of_the_cipher_words_of_their_own_range() -> None:
    stream = Streams.seeded(4).noise
    raw = bytearray(8 * 1000 + 16)
    normals.key_stream(normals.cipher(stream._cipher_key, normals.NORMALS), memoryview(raw), 8 * 1000)
    words = np.frombuffer(raw, dtype=np.int64, count=1000)
    expected = transform(words.tolist())
    assert torch.allclose(stream.normal(1000, dtype=torch.float64), expected, rtol=1e-12, atol=1e-14)


# Position: forward only, independent of the cut -----------------------------------------------------------


def cut(seed: int, counts: list[int]) -> torch.Tensor:
    stream = Streams.seeded(seed).noise
    return torch.cat([stream.normal(count, dtype=torch.float64) for count in counts])


@pytest.mark.parametrize(
    "counts", [[200_001], [1] * 50 + [199_951], [3, 0, 65_537, 1, 70_000, 64_460], [131_072, 68_929]]
)
def test_values_depend_neither_on_the_cut_nor_on_the_threads(counts: list[int], threads: int) -> None:
    whole = Streams.seeded(5).noise.normal(200_002, dtype=torch.float64)[:200_001]
    assert sum(counts) == 200_001
    # The vector library may differ in the last bit between the body and the rim of an array.
    assert torch.allclose(cut(5, counts), whole, rtol=1e-12, atol=1e-14)


def test_words_do_not_depend_on_the_cut() -> None:
    one, other = Streams.seeded(6).mask, Streams.seeded(6).mask
    parts = [one.uniform64(count) for count in (3, 0, 1, 70_000, 5)]
    assert (np.concatenate(parts) == other.uniform64(70_009)).all()


def test_words_and_normals_do_not_disturb_each_other() -> None:
    one, other = Streams.seeded(7).noise, Streams.seeded(7).noise
    other.uniform64(33)
    assert torch.equal(one.normal(100), other.normal(100))
    one.normal(70_000)
    assert (one.uniform64(33) != other.uniform64(33)).all()


def test_no_block_repeats(threads: int) -> None:
    stream = Streams.seeded(8).noise
    words = stream.uniform64(200_000).reshape(-1, 2)
    values = torch.cat(
        [stream.normal(count, dtype=torch.float64) for count in (7, 65_000, 200_001, 3, 12_000)]
    )
    assert len(np.unique(words, axis=0)) == len(words)
    assert len(values.unique()) == len(values)


def test_spent_counts_blocks_and_only_grows() -> None:
    stream = Streams.seeded(9).noise
    assert stream.spent == 0
    stream.uniform64(3)
    assert stream.spent == 2
    stream.normal(100_000)
    assert stream.spent == 2 + 50_000
    seen = stream.spent
    stream.normal(1)
    assert stream.spent > seen


def test_threads_that_share_a_stream_never_get_the_same_value() -> None:
    stream = Streams.seeded(10).noise
    drawn: list[list[float]] = []

    def draw() -> None:
        drawn.append([v for _ in range(200) for v in stream.normal(11, dtype=torch.float64).tolist()])

    workers = [threading.Thread(target=draw) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    values = [v for part in drawn for v in part]
    assert len(values) == 4 * 200 * 11
    assert len(set(values)) == len(values)


# Keys -----------------------------------------------------------------------------------------------------


def every(streams: Streams) -> dict[str, Stream]:
    return {name: getattr(streams, name) for name in NAMES}


def test_same_seed_same_values_and_other_seeds_other_values() -> None:
    assert torch.equal(Streams.seeded(5).noise.normal(50), Streams.seeded(5).noise.normal(50))
    for other in (0, 4, 6, 5 + 2**32, 5 + 2**64, 50):
        assert not torch.isin(
            Streams.seeded(5).noise.normal(50), Streams.seeded(other).noise.normal(50)
        ).any()
        assert Streams.seeded(5).mask.fingerprint != Streams.seeded(other).mask.fingerprint


def test_names_and_indices_give_different_keys() -> None:
    streams = Streams.seeded(5)
    found = [stream.fingerprint for stream in every(streams).values()]
    found += [stream.at(index).fingerprint for stream in every(streams).values() for index in range(20)]
    found += [streams.mask.at(1).at(2).fingerprint, streams.mask.at(2).at(1).fingerprint]
    assert len(set(found)) == len(found)
    first = [stream.uniform64(4).tobytes() for stream in every(Streams.seeded(5)).values()]
    assert len(set(first)) == len(NAMES)


def test_streams_and_draws_are_uncorrelated() -> None:
    n = 50_000
    streams = Streams.seeded(11)
    draws = [stream.normal(n, dtype=torch.float64) for stream in every(streams).values()]
    draws += [streams.noise.normal(n, dtype=torch.float64), streams.mask.at(1).normal(n, dtype=torch.float64)]
    pairs = list(itertools.combinations(draws, 2))
    bound = stats.norm.isf(ALPHA / 2 / len(pairs)) / math.sqrt(n)
    assert all(abs(float((one * other).mean())) < bound for one, other in pairs)
    assert abs(float((draws[0] * (0.1 * draws[0] + draws[1])).mean())) > bound  # control


def test_the_operating_system_never_gives_the_same_key() -> None:
    found = [stream.fingerprint for _ in range(50) for stream in every(Streams.from_os()).values()]
    assert len(set(found)) == 50 * len(NAMES)


def test_statements_tell_seeded_streams_from_private_ones() -> None:
    assert Streams.seeded(0).seeded is True
    assert Streams.seeded(0).statement == "seeded: not private"
    assert Streams.from_os().seeded is False
    assert Streams.from_os().statement == "keyed by the operating system"


@pytest.mark.parametrize("seed", [-1, 1.0, True, "5", None])
def test_bad_seeds_are_refused(seed: object) -> None:
    with pytest.raises(Refused, match="Expected seed"):
        Streams.seeded(seed)  # type: ignore[arg-type]


def test_masks_replay_and_noise_does_not() -> None:
    streams = Streams.seeded(12)
    for stream in (streams.mask, streams.projection, streams.init):
        assert torch.equal(stream.at(3).normal(9), stream.at(3).normal(9))
    for stream in (streams.noise, streams.sampling):
        child = stream.at(3)
        with pytest.raises(Refused, match="never replayed"):
            stream.at(3)
        child.at(0)
        with pytest.raises(Refused, match="never replayed"):
            child.at(0)
        with pytest.raises(Refused, match="whole number >= 0"):
            stream.at(-1)


def test_repr_shows_no_key() -> None:
    streams = Streams.seeded(13)
    for stream in every(streams).values():
        shown = repr(stream) + str(stream) + repr(streams) + stream.fingerprint
        for secret in (stream._key, stream._cipher_key):
            assert secret.hex()[:12] not in shown
            assert repr(secret) not in shown


def test_copies_are_refused() -> None:
    streams = Streams.seeded(14)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(Refused, match="repeat noise"):
            act(streams.noise)
    for act in (copy.deepcopy, pickle.dumps):
        with pytest.raises(Refused, match="repeat noise"):
            act(streams)


def test_a_forked_process_is_refused() -> None:
    stream = Streams.from_os().mask
    stream.normal(10)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about any fork with threads
        child = os.fork()
    if child == 0:
        outcome = b""
        for act in (lambda: stream.normal(1), lambda: stream.uniform64(1), lambda: stream.at(0)):
            try:
                act()
                outcome += b"drew "
            except Refused:
                outcome += b"refused "
        outcome += b"new " if len(Streams.from_os().noise.uniform64(1)) == 1 else b""
        os.write(write, outcome)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"refused refused refused new "
    assert len(stream.normal(1)) == 1


def test_no_call_touches_global_generators(threads: int) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    stream = Streams.from_os().mask
    stream.normal(100_000)
    stream.add_normal_(torch.zeros(10), 1.0)
    stream.bernoulli(100, 0.5)
    stream.choice(5, 100)
    stream.permutation(50)
    stream.at(1).normal(3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()
    assert before[2] == random.getstate()
    state = torch.get_rng_state()
    one = Streams.from_os().noise.normal(5)
    torch.set_rng_state(state)
    assert not torch.isin(one, Streams.from_os().noise.normal(5)).any()


def test_worker_threads_leave_the_thread_count_alone() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        Streams.seeded(0).noise.normal(100_000)
        seen: list[int] = []
        fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert [torch.get_num_threads(), *seen] == [2, 2]
    finally:
        torch.set_num_threads(before)


# Adding noise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1001, 200_003])
def test_add_normal_adds_std_times_the_next_normals(count: int, threads: int) -> None:
    value = torch.arange(count, dtype=torch.float64)
    noise = Streams.seeded(15).noise.normal(count, dtype=torch.float64)
    noisy = value.clone()
    assert Streams.seeded(15).noise.add_normal_(noisy, 2.5) is noisy
    assert torch.allclose(noisy, value + 2.5 * noise, rtol=1e-12)


def test_add_normal_rounds_after_adding() -> None:
    count = 10_000
    value = torch.full((count,), 1000.0, dtype=torch.float32)
    noise = Streams.seeded(16).noise.normal(count, dtype=torch.float64)
    noisy = Streams.seeded(16).noise.add_normal_(value.clone(), 1 / 3)
    assert torch.equal(noisy, (value.double() + noise / 3).float())
    assert not torch.equal(noisy, value + noise.float() / 3)  # control: rounding first gives other bits


def test_add_normal_keeps_shapes_strides_parameters_and_zero() -> None:
    wide = torch.zeros(6, 8)
    view = wide[:, ::2]
    assert Streams.seeded(17).noise.add_normal_(view, 1.0) is view
    assert int((wide != 0).sum()) == 24
    assert torch.equal(wide[:, ::2].reshape(-1), Streams.seeded(17).noise.normal(24))
    weight = torch.nn.Parameter(torch.zeros(3, 3))
    assert int((Streams.seeded(17).noise.add_normal_(weight, 1.0) != 0).sum()) == 9
    still = torch.arange(5.0)
    assert torch.equal(Streams.seeded(17).noise.add_normal_(still.clone(), 0.0), still)
    assert Streams.seeded(17).noise.add_normal_(torch.zeros(0), 1.0).shape == (0,)


def test_add_normal_works_in_inference_mode(threads: int) -> None:
    with torch.inference_mode():
        assert int((Streams.seeded(17).noise.add_normal_(torch.zeros(100_000), 1.0) != 0).sum()) == 100_000


def test_low_precision_and_bad_deviations_are_refused() -> None:
    noise = Streams.seeded(18).noise
    for dtype in (torch.bfloat16, torch.float16, torch.int64):
        with pytest.raises(Refused, match="float32 or float64"):
            noise.normal(3, dtype=dtype)
        with pytest.raises(Refused, match="float32 or float64"):
            noise.add_normal_(torch.zeros(3, dtype=dtype), 1.0)
    for std in (-1.0, math.nan, math.inf, "1"):
        with pytest.raises(Refused, match="std"):
            noise.add_normal_(torch.zeros(3), std)  # type: ignore[arg-type]
    for count in (-1, 1.5, True):
        with pytest.raises(Refused, match="count"):
            noise.normal(count)  # type: ignore[arg-type]


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
    assert fed([2**64 - 1, 2**64 - 1, 5])._below(np.array([3])) == [2]


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
