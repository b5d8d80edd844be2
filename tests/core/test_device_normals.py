"""Noise where a tensor lives: the words of RFC 8439, the formula of the CPU, and no copy from or to the CPU."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from discreet.core import generators, normals
from discreet.core.check import Refused
from discreet.core.generators import chacha, on_device
from discreet.core.streams import Stream, Streams

ALPHA = 1e-6  # the draws are seeded; a fresh seed would fail a sound generator with this chance
KEY = bytes(range(32))
BLOCK_2_3_2 = """10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e
                 d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"""
BLOCK_A_1 = """76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7
               da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"""


def key_stream(first: int, blocks: int) -> np.ndarray:
    """The same by the cipher library, which counts 32 bits."""
    start = Cipher(algorithms.ChaCha20(KEY, first.to_bytes(8, "little") + bytes(8)), mode=None)
    return np.frombuffer(start.encryptor().update(bytes(64 * blocks)), dtype=np.int64).reshape(blocks, 8)


def drawn(count: int, first: int = 0) -> torch.Tensor:
    values = torch.zeros(count, dtype=torch.float64)
    on_device.add_(KEY, first, values, 1.0)
    return values


# Words ----------------------------------------------------------------------------------------------------


def test_blocks_of_the_rfc() -> None:
    block = chacha.words(KEY, 1 + (0x09000000 << 32), 1, device="cpu", nonce=0x4A000000)
    assert block.numpy().tobytes() == bytes.fromhex(BLOCK_2_3_2)
    assert chacha.words(bytes(32), 0, 1, device="cpu").numpy().tobytes() == bytes.fromhex(BLOCK_A_1)


def test_words_are_those_of_the_cipher_library_at_a_million_random_positions() -> None:
    chance = np.random.default_rng(0)
    for first in chance.integers(0, 2**64, 125, dtype=np.uint64).tolist():
        first -= first % 2**32 // 2**31 * 2000  # no carry within a call of the library
        assert np.array_equal(chacha.words(KEY, first, 1000, device="cpu").numpy(), key_stream(first, 1000))


@pytest.mark.parametrize("top", [2**32, 2**63, 3 * 2**32])
def test_the_counter_has_64_bits(top: int) -> None:
    words = chacha.words(KEY, top - 3, 6, device="cpu").numpy()
    assert np.array_equal(words, np.concatenate([key_stream(top - 3, 3), key_stream(top, 3)]))
    wrapped = chacha.words(KEY, 2**64 - 1, 2, device="cpu").numpy()
    assert np.array_equal(wrapped[1:], key_stream(0, 1))


# Normals --------------------------------------------------------------------------------------------------


def test_normals_are_the_formula_of_the_cpu_on_these_words() -> None:
    buffers = normals.Buffers.of(8000)
    buffers.words[:] = key_stream(5, 1000).reshape(-1)
    expected = torch.from_numpy(buffers.box_muller())
    assert torch.allclose(drawn(8000, 5), expected, rtol=1e-12, atol=1e-14)
    single = torch.zeros(8000)
    on_device.add_(KEY, 5, single, 1.0)
    off = (single - expected.float()).abs().numpy() / np.spacing(expected.float().abs().numpy())
    assert off.max() <= 2


def test_normals_pass_tests_that_reject_other_scales_and_tails() -> None:
    sample = drawn(400_000).numpy()
    assert stats.kstest(sample, "norm").pvalue > ALPHA
    for wrong in (sample * 0.98, sample + 0.02):
        assert stats.kstest(wrong, "norm").pvalue < ALPHA
    far = 3.5
    low, high = stats.binom(len(sample), 2 * stats.norm.sf(far)).interval(1 - ALPHA)
    assert low <= np.count_nonzero(abs(sample) > far) <= high
    assert not low <= np.count_nonzero(abs(sample * 0.9) > far) <= high
    bound = stats.norm.isf(ALPHA / 2) / math.sqrt(len(sample) - 8)
    for lag in range(1, 9):  # within a pair, a block, and between blocks
        assert abs(np.mean(sample[lag:] * sample[:-lag])) < 2 * bound
    assert abs(np.mean(sample[1:] * (sample + np.roll(sample, -1))[:-1])) > 2 * bound  # control


def test_extreme_words_map_to_finite_values() -> None:
    top = math.sqrt(128 * math.log(2))
    assert on_device.box_muller(torch.tensor([0, 0])).tolist() == pytest.approx([top, 0.0], rel=1e-14)
    corners = torch.tensor([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1])
    assert bool(torch.isfinite(on_device.box_muller(torch.cartesian_prod(corners, corners).flatten())).all())


def test_chunks_change_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn(10_001)
    monkeypatch.setattr(on_device, "CHUNK", 16)
    assert torch.allclose(drawn(10_001), whole, rtol=1e-12, atol=1e-14)


def test_sums_are_rounded_once() -> None:
    value = torch.linspace(900, 1100, 5000)
    noisy = value.clone()
    on_device.add_(KEY, 0, noisy, 1 / 3)
    assert torch.equal(noisy, (value.double() + drawn(5000) * (1 / 3)).float())


def test_a_fused_kernel_is_used_only_if_it_gives_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    found = types.ModuleType("triton_normals")
    monkeypatch.setitem(sys.modules, "discreet.core.generators.triton_normals", found)
    monkeypatch.setattr(generators, "triton_normals", found, raising=False)
    for kernel in (on_device._add_, lambda key, first, flat, std: on_device._add_(key, first + 1, flat, std)):
        found.add_ = kernel  # type: ignore[attr-defined]
        on_device._fused.cache_clear()
        if kernel is on_device._add_:
            assert on_device._fused(cpu) is kernel
        else:
            with pytest.raises(Refused, match="the same noise"):
                on_device._fused(cpu)
    on_device._fused.cache_clear()


# Streams --------------------------------------------------------------------------------------------------


def test_no_block_serves_two_draws_and_no_two_streams_share_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bytes, int, int]] = []

    def watched(key: bytes, first: int, flat: torch.Tensor, std: float) -> None:
        calls.append((key, first, on_device.blocks_for(len(flat))))
        if len(flat) == 13:
            raise MemoryError

    monkeypatch.setattr(on_device, "add_", watched)
    streams = Streams.seeded(1)
    for count in (1, 8, 9, 100_000, 3):
        streams.noise.normal(count, device="meta")
    with pytest.raises(MemoryError):
        streams.noise.normal(13, device="meta")
    streams.noise.add_normal_(torch.zeros(4, 5, device="meta"), 2.0)
    ends = [first + blocks for _, first, blocks in calls]
    assert [first for _, first, _ in calls] == [0, *ends[:-1]]
    assert ends[-1] == streams.noise.spent
    for stream in (streams.sampling, streams.mask, streams.mask.at(0), streams.noise.at(0)):
        stream.normal(8, device="meta")
    keys = [key for key, _, _ in calls[-4:]] + [calls[0][0]]
    keys += [stream._cipher_key for stream in (streams.noise, streams.sampling, streams.mask)]
    assert len(set(keys)) == len(keys)


class OneDevice(TorchDispatchMode):
    """Fails on every call with a tensor of another device, and on every value that is read."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind, self.calls = kind, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        assert all(tensor.device.type == self._kind for tensor in tensors), f"{func} leaves the device"
        assert "_local_scalar_dense" not in str(func), f"{func} reads a value"
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_for_a_device_never_touches_the_cpu(dtype: torch.dtype) -> None:
    value = torch.zeros(3, 1001, dtype=dtype, device="meta")
    with OneDevice("meta") as watch:
        noise = Streams.seeded(1).noise
        assert noise.add_normal_(value, 1.0) is value
        assert noise.add_normal_(value.t(), 1.0).shape == (1001, 3)
        assert noise.normal(5, dtype=dtype, device="meta").device.type == "meta"
    assert watch.calls > 100


def test_a_hidden_copy_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_the_cpu(key: bytes, first: int, flat: torch.Tensor, std: float) -> None:
        flat.add_(drawn(len(flat)).to(flat.device))

    monkeypatch.setattr(on_device, "add_", by_the_cpu)
    with pytest.raises(AssertionError, match="leaves the device"), OneDevice("meta"):
        Streams.seeded(1).noise.normal(5, device="meta")


def test_a_device_stream_is_bound_to_its_process_and_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Stream = Streams.seeded(1).noise
    held: list[bool] = []
    monkeypatch.setattr(on_device, "add_", lambda *_: held.append(stream._lock.locked()))
    stream.normal(5, device="meta")
    assert held == [True]
