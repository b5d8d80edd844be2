"""Normals from cipher words: the distribution, its tails, and adding noise to tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats

from discreet.core import normals
from discreet.core.check import Refused
from discreet.core.streams import Streams

ALPHA = 1e-6  # the draws are seeded; a fresh seed would fail a sound stream with this chance


@pytest.fixture(params=["compiled-1", "compiled-2", "pure-1", "pure-2"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    kind, _, count = request.param.partition("-")
    if kind == "pure":
        monkeypatch.setattr(normals, "compiled", None)
    before = torch.get_num_threads()
    torch.set_num_threads(int(count))
    yield int(count)
    torch.set_num_threads(before)


def rejects(sample: torch.Tensor, scale: float = 1.0) -> bool:
    """Kolmogorov-Smirnov at level ALPHA against N(0, scale^2)."""
    return bool(stats.kstest(sample.double().numpy() / scale, "norm").pvalue < ALPHA)


def transform(words: list[int]) -> torch.Tensor:
    buffers = normals.Buffers.of(len(words))
    buffers.words[:] = words
    return torch.from_numpy(buffers.box_muller())


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
    assert abs(float((cosine**2 * sine**2).mean()) - 1) < 10 * bound  # the product of squares has deviation < 10
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


@pytest.mark.parametrize(
    "shared",
    [
        torch.zeros(1).expand(4),
        torch.zeros(4, 1).expand(4, 3),
        torch.zeros(10).unfold(0, 4, 2),
        torch.zeros(7).as_strided((4, 4), (1, 1)),
    ],
)
def test_elements_that_share_memory_are_refused_before_a_draw(shared: torch.Tensor) -> None:
    stream = Streams.seeded(4).noise
    with pytest.raises(Refused, match="clone"):
        stream.add_normal_(shared, 1.0)
    assert stream.spent == 0
    assert not shared.any()


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
