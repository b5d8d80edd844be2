"""The compiled generator: the words, positions and formula of normals.py, whatever threads, signals and forks do."""

from __future__ import annotations

import itertools
import math
import os
import signal
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from discreet.core import normals
from discreet.core.streams import Streams

compiled = normals.compiled
if compiled is None:
    pytest.skip("the compiled generator was not built, or the processor lacks AES, AVX2, FMA", allow_module_level=True)

KEY = bytes(range(32))


@pytest.fixture(params=["torch's threads", "own threads"])
def team(request: pytest.FixtureRequest) -> Iterator[None]:
    wanted = request.param == "torch's threads"
    if compiled.use_openmp(wanted) != wanted:
        pytest.skip("torch was built without OpenMP")
    yield
    compiled.use_openmp(True)


@pytest.fixture(params=["aes256", "aes512", "vaes256", "vaes512"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    if not compiled.use_kernel(request.param):
        pytest.skip("the processor has no VAES, or no AVX-512")
    yield request.param
    assert compiled.use_kernel("")


def drawn(first: int, count: int, *, threads: int = 1, std: float = 1.0, lane: int = normals.NORMALS) -> np.ndarray:
    values = np.zeros(count)
    compiled.add(KEY, lane, first, values, std, threads)
    return values


def words_at(positions: np.ndarray) -> np.ndarray:
    """The cipher blocks at any positions, without counter mode: the block cipher of the counters themselves."""
    counters = np.empty((len(positions), 2), dtype=">u8")
    counters[:, 0], counters[:, 1] = normals.NORMALS, positions
    blocks = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(counters.tobytes())
    return np.frombuffer(blocks, dtype=np.int64)


def transformed(words: np.ndarray) -> np.ndarray:
    made = np.empty(len(words))
    compiled.transform(np.ascontiguousarray(words), made)
    return made


def test_words_are_those_of_the_reference_at_a_million_random_positions(kernel: str) -> None:
    chance = np.random.default_rng(len(kernel))
    draws, pairs = 8192, 64  # 2^20 words; the blocks of a draw follow each other
    firsts = chance.integers(0, 2**64, draws, dtype=np.uint64, endpoint=False)
    firsts[:4] = [0, 2**32 - 7, 2**63 - 7, 2**64 - 7]  # carries, and the end of the range
    positions = firsts[:, None] + np.arange(pairs, dtype=np.uint64)
    expected = transformed(words_at(positions.reshape(-1))).reshape(draws, 2 * pairs)
    for first, row in zip(firsts.tolist(), expected, strict=True):
        assert np.array_equal(drawn(first, 2 * pairs), row)
    assert not np.array_equal(drawn(5, 2 * pairs), drawn(5, 2 * pairs, lane=normals.WORDS))


def test_values_are_those_of_the_pure_generator(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Streams.seeded(3).noise.normal(300_000, dtype=torch.float64)
    ours32 = Streams.seeded(3).noise.normal(300_000)
    monkeypatch.setattr(normals, "compiled", None)
    pure = Streams.seeded(3).noise.normal(300_000, dtype=torch.float64)
    assert torch.allclose(ours, pure, rtol=1e-12, atol=1e-14)
    assert torch.equal(ours32, Streams.seeded(3).noise.normal(300_000))  # the same after rounding


def test_the_formula_is_exact_to_four_units_in_the_last_place(kernel: str) -> None:
    """Against arithmetic with 40 digits, at random words and at all corners: zero, one, the quarters of a turn."""
    mpmath = pytest.importorskip("mpmath")
    corners = [q * 2**61 + near for q in range(-4, 4) for near in (-1, 0, 1)]
    corners = [w for w in (*corners, 2**63 - 1) if -(2**63) <= w < 2**63]
    some = np.random.default_rng(0).integers(-(2**63), 2**63, 704, dtype=np.int64).tolist()
    pairs = [*itertools.product(corners, corners[::5]), *zip(some[0::2], some[1::2], strict=True)]
    pairs += [(0, 1)] * (-len(pairs) % 16)
    got = transformed(np.array(pairs, dtype=np.int64).reshape(-1)).reshape(-1, 2)
    with mpmath.workdps(40):
        for (first, second), normal in zip(pairs, got, strict=True):
            u = mpmath.mpf(abs(float(first) + 0.5)) / 2**63  # the rounded word is part of the formula
            radius, turn = mpmath.sqrt(-2 * mpmath.log(u)), mpmath.mpf(second) / 2**63
            for value, exact in zip(normal, (radius * mpmath.cospi(turn), radius * mpmath.sinpi(turn)), strict=True):
                assert math.isfinite(value)
                assert abs(value - exact) <= 4 * max(np.spacing(abs(float(exact))), 2.0**-1074)


def test_threads_and_cuts_change_no_bit(kernel: str, team: None) -> None:
    whole = drawn(7, 200_002)
    for threads in (2, 3, 64, 1000):
        assert np.array_equal(drawn(7, 200_002, threads=threads), whole)
    for cut in (2, 30, 32, 34, 2048, 16_386, 100_000):
        assert np.array_equal(np.concatenate([drawn(7, cut), drawn(7 + cut // 2, 200_002 - cut)]), whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_rounded_once(dtype: type, kernel: str) -> None:
    value = np.linspace(900, 1100, 5000, dtype=dtype)
    noisy = value.copy()
    compiled.add(KEY, normals.NORMALS, 3, noisy, 1 / 3, 2)
    assert np.array_equal(noisy, (value.astype(np.float64) + 1 / 3 * drawn(3, 5000)).astype(dtype))


def test_normals_drawn_before_are_added_as_new_ones(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, noise = np.linspace(900, 1100, 5001, dtype=np.float32), np.random.default_rng(0).normal(size=5001)
    noisy, pure = value.copy(), value.copy()
    normals.add_scaled(noisy, noise.copy(), 1 / 3)
    monkeypatch.setattr(normals, "compiled", None)
    normals.add_scaled(pure, noise, 1 / 3)
    assert np.array_equal(noisy, pure)
    assert not np.array_equal(noisy, value)


def test_nothing_beyond_the_array_is_written(kernel: str) -> None:
    for count in (0, 2, 34, 2050, 16_386):
        values = np.zeros(count + 64, dtype=np.float32)
        compiled.add(KEY, normals.NORMALS, 0, values[32 : 32 + count], 1.0, 2)
        assert np.count_nonzero(values) == np.count_nonzero(values[32 : 32 + count]) == count


def test_signals_change_no_value(team: None) -> None:
    ticks: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    expected = [drawn(0, 1_000_000, threads=1) for _ in range(2)]
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        values = [drawn(0, 1_000_000, threads=4) for _ in range(20)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(ticks) > 5
    assert all(np.array_equal(value, expected[0]) for value in values)


def test_a_forked_process_draws_on_threads_of_its_own(team: None) -> None:
    """OpenMP's threads are missing there, and a call that waits for them never ends."""
    expected = drawn(0, 200_000, threads=4)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about any fork with threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.write(write, b"same" if np.array_equal(drawn(0, 200_000, threads=4), expected) else b"other")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"same"


def test_wrong_arrays_and_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 or float64"):
        compiled.add(KEY, 1, 0, np.zeros(4, dtype=np.int64), 1.0, 1)
    with pytest.raises(ValueError, match="32 bytes"):
        compiled.add(KEY[1:], 1, 0, np.zeros(4), 1.0, 1)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        compiled.add(KEY, 1, 0, np.zeros(8)[::2], 1.0, 1)
    locked = np.zeros(4)
    locked.flags.writeable = False
    with pytest.raises((BufferError, ValueError), match=r"read-only|writable"):
        compiled.add(KEY, 1, 0, locked, 1.0, 1)
    with pytest.raises(ValueError, match="as many normals"):
        compiled.add_scaled(np.zeros(4, dtype=np.float32), np.zeros(6), 1.0)
    with pytest.raises(ValueError, match="multiple of 32"):
        compiled.transform(np.zeros(4, dtype=np.int64), np.zeros(4))
