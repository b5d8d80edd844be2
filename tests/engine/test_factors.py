"""Per-sample factors alone: norms that bound what is summed, at every magnitude and under cancellation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from discreet.engine.factors import linear as outer
from discreet.engine.factors import parts as factors
from discreet.engine.factors.convolution import Convolution, Geometry
from discreet.engine.factors.lengths import length_bound, row_norms
from discreet.engine.factors.linear import OneHot, Outer, Sum, merge, settle
from discreet.engine.factors.parts import BoundedFactors, FormedGradients, Part, in_range, share

SINGLE, DOUBLE = torch.float32, torch.float64
ROUNDING = 2**-17  # what the guarantee allows a contribution to exceed its norm by
ROOM = 1 << 40


def outers(records: int = 5, positions: int = 3, dtype: torch.dtype = DOUBLE) -> Outer:
    left, right = torch.randn(records, positions, 4), torch.randn(records, positions, 6)
    return Outer(left.to(dtype), right.to(dtype), (4, 6))


def one_hots(records: int = 5, positions: int = 3, dtype: torch.dtype = DOUBLE) -> OneHot:
    return OneHot(torch.randint(0, 4, (records, positions)), torch.randn(records, positions, 6).to(dtype), (4, 6))


def convolutions(records: int = 5, frames: int = 1, dtype: torch.dtype = DOUBLE) -> Convolution:
    geometry = Geometry((2, 1), (1, 0), (1, 2), 1)
    images, outputs = torch.randn(records * frames, 6, 5, 6), torch.randn(records * frames, 4, 3, 4)
    return Convolution(images.to(dtype), outputs.to(dtype), (4, 6, 2, 2), geometry, records)


PARTS = {
    "dense": lambda dtype: FormedGradients(torch.randn(5, 4, 6).to(dtype)),
    "outer, one position": lambda dtype: outers(positions=1, dtype=dtype),
    "outer": lambda dtype: outers(dtype=dtype),
    "one-hot": lambda dtype: one_hots(dtype=dtype),
    "one-hot, repeated": lambda dtype: one_hots(positions=9, dtype=dtype),
    "sum": lambda dtype: Sum([outers(dtype=dtype), one_hots(dtype=dtype)]),
    "sum of all": lambda dtype: Sum(
        [outers(dtype=dtype), one_hots(dtype=dtype), FormedGradients(torch.randn(5, 4, 6).to(dtype))]
    ),
    "convolution": lambda dtype: convolutions(dtype=dtype),
    "convolution, frames": lambda dtype: convolutions(frames=3, dtype=dtype),
}


@pytest.mark.parametrize(("groups", "ratio", "kind"), [(1, 1e9, Outer), (1, 0.0, Convolution), (2, 1e9, Convolution)])
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("sides", [(6,), (5, 6), (4, 5, 6)])
def test_a_convolution_at_few_positions_is_a_linear_map_of_patches(
    sides: tuple[int, ...], frames: int, groups: int, ratio: float, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer, "GRAM_RATIO", ratio)
    geometry = Geometry((2,) * len(sides), (1,) * len(sides), (2,) * len(sides), groups)
    images, weight = (
        torch.randn(4 * frames, 6, *sides).double(),
        torch.randn(4, 6 // groups, *(2 for _ in sides)).double(),
    )
    outputs = torch.ops.aten.convolution(
        images, weight, None, geometry.stride, geometry.padding, geometry.dilation, False, [0] * len(sides), groups
    ).normal_()
    part = outer.convolution(images, outputs, weight.shape, geometry, 4)
    truth = Convolution(images, outputs, weight.shape, geometry, 4).instantiate(0, 4)
    torch.testing.assert_close(part.instantiate(0, 4), truth)
    torch.testing.assert_close(part.measure()[0], row_norms(truth))
    total = torch.zeros(1, *weight.shape).double()
    part.add_weighted(torch.ones(1, 4).double(), total)
    torch.testing.assert_close(total[0], truth.sum(0))
    assert type(part) is kind


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("kind", PARTS)
def test_a_part_agrees_with_its_gradients(kind: str, dtype: torch.dtype) -> None:
    part: Part = PARTS[kind](dtype)
    tolerance = 1e-5 if dtype == SINGLE else 1e-12
    grads = part.instantiate(0, 5)
    assert grads.shape == (5, *part.shape)
    assert grads.dtype == part.dtype == dtype
    truth = grads.double().flatten(1)
    norm, absolute = part.measure()
    assert torch.allclose(norm, truth.norm(dim=1), rtol=tolerance)
    assert bool((absolute >= norm * (1 - tolerance)).all())
    weights, total = torch.rand(2, 5), torch.zeros(2, *part.shape, dtype=dtype)
    part.add_weighted(weights, total)
    assert torch.allclose(total.double().flatten(1), weights.double() @ truth, rtol=tolerance, atol=tolerance)
    assert torch.allclose(part.instantiate(2, 4).double().flatten(1), truth[2:4], atol=tolerance)
    index = torch.tensor([4, 1])
    taken = part.take(index)
    assert taken.records == 2
    assert torch.allclose(taken.instantiate(0, 2).double().flatten(1), truth[index], atol=tolerance)
    assert part.take(index, DOUBLE).instantiate(0, 2).dtype == DOUBLE
    for settled in (BoundedFactors(part), settle(part, ROOM), settle(part, 0)):
        assert torch.allclose(settled.norms, truth.norm(dim=1), rtol=tolerance)
        assert bool((settled.norms >= truth.norm(dim=1) * (1 - ROUNDING)).all())


def test_merging_adds_up_all_uses() -> None:
    parts: list[Part] = [
        outers(),
        outers(positions=1),
        one_hots(),
        one_hots(positions=4),
        FormedGradients(torch.randn(5, 4, 6).double()),
    ]
    for chosen in (parts, parts[:2], parts[2:4], parts[:4], parts[4:]):
        truth = torch.stack([part.instantiate(0, 5) for part in chosen]).sum(0)
        for room in (ROOM, 0):
            merged = merge(chosen, (4, 6), room)
            assert torch.allclose(merged.instantiate(0, 5), truth)
            assert torch.allclose(merged.norms, truth.flatten(1).norm(dim=1))


# Norms at every magnitude -----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [0, 1, 127, 128, 129, 1000])
def test_row_norms(columns: int) -> None:
    rows = torch.randn(6, columns)
    assert torch.allclose(row_norms(rows), rows.double().norm(dim=1), rtol=1e-6)


@given(st.integers(-44, 37), st.integers(-44, 37), st.integers(0, 2**20))
def test_outer_norms_bound_contributions_at_every_magnitude(left: int, right: int, seed: int) -> None:
    """Clip to 1e-3, 1 and 1e3: the contribution stays within, though floats end on the way."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(2, 2, 3, generator=generator) * 10.0**left
    b = torch.randn(2, 2, 4, generator=generator) * 10.0**right
    for settled in (BoundedFactors(Outer(a, b, (3, 4))), BoundedFactors(Outer(a[:, :1], b[:, :1], (3, 4)))):
        for clip in (1e-3, 1.0, 1e3):
            weights = (clip / settled.norms).clamp(max=1.0)
            for record in range(2):
                alone = torch.zeros(1, 2).double()
                alone[0, record] = weights[record]
                total = torch.zeros(1, 3, 4)
                settled.add_weighted(alone, total)
                assert float(total.double().norm()) <= clip * (1 + ROUNDING)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_weights_are_never_rounded_up(dtype: torch.dtype) -> None:
    tiny, largest = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    values = [0.0, tiny / 3, tiny, 0.3, largest, math.inf, math.nan, -math.inf, -0.5]
    weights = torch.tensor([*values, *([1e300, 2.5e-45] if dtype == SINGLE else [])], dtype=DOUBLE)
    found = in_range(weights, dtype)
    assert found.dtype == dtype
    assert found[:5].tolist() == [0.0, 0.0, tiny, pytest.approx(0.3), largest]
    assert found[5:9].tolist() == [0.0, 0.0, 0.0, -0.5]
    if dtype == SINGLE:
        assert found[9:].tolist() == [largest, 0.0]


def test_weights_in_range_stay_as_they_are() -> None:
    """They are brought into range once for all parameters; each part looks again."""
    tiny = torch.finfo(SINGLE).tiny
    weights = torch.tensor([[tiny, 0.3, 1.0]])
    assert in_range(weights, SINGLE) is weights
    assert in_range(torch.tensor([tiny / 3, 0.3, math.nan, math.inf]), SINGLE).tolist() == [
        *(0.0, pytest.approx(0.3), 0.0, 0.0)
    ]


def test_a_plain_cast_would_round_a_weight_up() -> None:
    """||g|| = 4e44 needs the weight 2.5e-45, which float32 rounds up to 2.8e-45: 12 % above the clip."""
    settled = BoundedFactors(Outer(torch.full((1, 1, 1), 2e22), torch.full((1, 1, 1), 2e22), (1, 1)))
    weight = 1 / settled.norms.view(1, 1)
    assert float(weight.float() * 2e22 * 2e22) > 1.1
    total = torch.zeros(1, 1, 1)
    settled.add_weighted(weight, total)
    assert float(total) <= 1


def test_weights_go_to_the_longer_factor_where_the_shorter_would_leave_the_range() -> None:
    """w * 1e-44 has no digits left; times 3e38 its rounding is a share of a small clip."""
    left, right = torch.full((1, 1, 1), 1e-44), torch.full((1, 1, 1), 3e38)
    settled = BoundedFactors(Outer(left, right, (1, 1)))
    clip = 0.36 * float(settled.norms)
    assert float((left * 0.36) * right) > clip * 1.1  # scaled on the left, as the cheaper one
    total = torch.zeros(1, 1, 1)
    settled.add_weighted(clip / settled.norms.view(1, 1), total)
    assert float(total) <= clip * (1 + ROUNDING)
    on_left, on_right = share(torch.rand(2), torch.ones(2), torch.ones(2), prefer_left=True, dtype=SINGLE)
    assert on_left is not None
    assert on_right is None


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
def test_weights_that_would_vanish_in_the_shorter_factor_go_to_the_longer(shape: tuple[int, int]) -> None:
    """w * 1e-12 is 0.8e-45, which float32 rounds up to 1.4e-45: one record moved the sum by 1.7 clips."""
    left, right = torch.full((1, 1, shape[0]), 3e38), torch.full((1, 1, shape[1]), 1e-12)
    weight = torch.full((1, 1), 0.8e-33, dtype=DOUBLE)
    for own in (Outer(left, right, shape), Outer(right, left, shape[::-1])):
        settled, total = BoundedFactors(own), torch.zeros(1, *own.shape)
        settled.add_weighted(weight, total)
        assert float(total.double().norm()) == pytest.approx(float(weight * settled.norms), rel=1e-6)


@pytest.mark.parametrize("tiny", [0.0, 1e-42])
@pytest.mark.parametrize("prefer", [0, 1])
def test_weights_above_one_never_meet_a_huge_factor(tiny: float, prefer: int) -> None:
    """A saturated gate has gradient 0 on an input of 3e38; automatic clipping gives it the weight 100."""
    lengths = (1, 2) if prefer else (2, 1)
    left, right = torch.full((2, 1, lengths[0]), tiny), torch.full((2, 1, lengths[1]), 3e38)
    left[1] = right[1] = 1.0
    settled = BoundedFactors(Outer(left, right, lengths))
    total = torch.zeros(1, *lengths)
    settled.add_weighted(torch.full((1, 2), 100.0), total)
    assert bool(total.isfinite().all())


# Cancellation -----------------------------------------------------------------------------------------------


def alternating(records: int, scale: float, noise: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Output gradients that alternate over 64 positions, on inputs that are all but constant."""
    signs = ((-1.0) ** torch.arange(64)).view(1, 64, 1)
    outputs = torch.randn(records, 1, 16) * scale * signs
    inputs = torch.randn(records, 1, 16) + noise * torch.randn(records, 64, 16)
    return outputs.contiguous(), inputs.contiguous()


def leave_one_out(make: Any, records: int, clip: float) -> float:
    """How far removing one record moves the clipped sum, in units of the clip."""
    everyone = list(range(records))

    def total(kept: list[int]) -> Tensor:
        own = make(kept)
        sums = torch.zeros(1, 16, 16)
        own.add_weighted((clip / own.norms).clamp(max=1).unsqueeze(0), sums)
        return sums.double()

    whole = total(everyone)
    return max(float((whole - total([i for i in everyone if i != j])).norm()) / clip for j in everyone)


@pytest.mark.parametrize("noise", [0.0, *(pytest.param(noise, marks=pytest.mark.slow) for noise in (1e-6, 1e-3))])
@pytest.mark.parametrize("scale", [100.0, 1e10])
@pytest.mark.parametrize("strategy", ["gram", "chunks", "kept"])
def test_alternating_gradients_never_move_the_sum_by_more_than_the_clip(
    strategy: str, scale: float, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tolerance: each of the 64 contributions may round by 2^-17 of the clip, and the sums of both batches do."""
    monkeypatch.setattr(outer, "GRAM_RATIO", math.inf if strategy == "gram" else 0.0)
    room = ROOM if strategy == "kept" else 0
    outputs, inputs = alternating(64, scale, noise)

    def make(kept: list[int]) -> Any:
        return settle(Outer(outputs[kept], inputs[kept], (16, 16)), room)

    for clip in (1e-4, 1.0):
        assert leave_one_out(make, 64, clip) <= 1 + 64 * 2 * ROUNDING


def test_alternating_gradients_break_an_engine_that_does_not_sum_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 Gram norms are right, and a float32 sum of products a million times larger is still wrong."""
    monkeypatch.setattr(outer, "GRAM_RATIO", math.inf)
    monkeypatch.setattr(factors, "CANCELLATION", 0.0)
    monkeypatch.setattr(factors, "ROUNDING_ULPS", 0.0)
    outputs, inputs = alternating(64, 100.0, 0.0)
    outputs += 1e-5 * torch.randn_like(outputs)

    def make(kept: list[int]) -> Any:
        return BoundedFactors(Outer(outputs[kept], inputs[kept], (16, 16)))

    assert leave_one_out(make, 64, 1e-4) > 1.1


def test_alternating_gradients_break_gram_norms_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def products(first: Tensor, other: Tensor) -> Tensor:
        return torch.bmm(first.float(), other.float().transpose(1, 2))

    monkeypatch.setattr(outer, "GRAM_RATIO", math.inf)
    outputs, inputs = alternating(64, 100.0, 1e-5)
    truth = torch.bmm(outputs.double().transpose(1, 2), inputs.double()).flatten(1).norm(dim=1)
    part = Outer(outputs, inputs, (16, 16))
    assert float((part.measure()[0] / truth).min()) > 0.99
    monkeypatch.setattr(outer, "_products", products)
    assert float((part.measure()[0] / truth).min()) < 0.5


@pytest.mark.parametrize("kind", ["one-hot", "sum", "convolution"])
def test_cancellation_in_other_parts(kind: str) -> None:
    """The same token with opposite gradients; a head that undoes its embedding; an image of one colour."""
    signs = (-1.0) ** torch.arange(64)
    gradient = torch.randn(6, 1, 8) * 1e4 * signs.view(1, 64, 1) + 1e-3 * torch.randn(6, 64, 8)
    same = torch.zeros(6, 64, dtype=torch.long)
    if kind == "one-hot":
        part: Part = OneHot(same, gradient, (4, 8))
    elif kind == "sum":
        first = torch.zeros(6, 64, 4)
        first[..., 0] = -1.0
        part = Sum([OneHot(same, gradient.abs(), (4, 8)), Outer(first, gradient.abs() + 1e-3, (4, 8))])
    else:
        images = torch.ones(6, 2, 8, 8) + 1e-6 * torch.randn(6, 2, 8, 8)
        geometry = Geometry((1, 1), (0, 0), (1, 1), 1)
        checked = (signs.view(8, 8) * signs[:8].view(8, 1)).expand(6, 3, 8, 8) * 1e4
        part = Convolution(images, checked, (3, 2, 1, 1), geometry, 6)
    wide = part.take(torch.arange(6), DOUBLE).instantiate(0, 6).flatten(1)
    settled = BoundedFactors(part)
    weights = (1e-3 / settled.norms).clamp(max=1)
    for record in range(6):
        total = torch.zeros(1, *part.shape)
        settled.add_weighted((weights * (torch.arange(6) == record)).unsqueeze(0), total)
        assert float(total.double().norm()) <= 1e-3 * (1 + ROUNDING)
    assert bool((settled.norms >= wide.norm(dim=1) * (1 - 1e-3)).all())


def test_positions_that_do_not_cancel_are_not_summed_apart() -> None:
    """The exact way is for the few: ordinary gradients take the fast one."""
    part = outers(records=50, positions=64, dtype=SINGLE)
    assert BoundedFactors(part)._apart.numel() == 0
    assert BoundedFactors(Outer(*alternating(50, 100.0), (16, 16)))._apart.numel() == 50


# Embeddings -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 2**20))
def test_repeated_tokens_are_added_up_once(tokens: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(1, len(tokens), 3, generator=generator).double()
    part = OneHot(torch.tensor([tokens]), gradient, (4, 3))
    truth = torch.zeros(4, 3).double()
    for token, row in zip(tokens, gradient[0], strict=True):
        truth[token] += row
    assert torch.allclose(part.instantiate(0, 1)[0], truth)
    assert torch.allclose(part.measure()[0], truth.norm().view(1))
    used = part.right_NPB[0].abs().sum(1) > 0
    kept = part.index_NP[0][used].tolist()
    assert len(kept) == len(set(kept))


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e-12, 1.0, 1e12, 1e25])
@pytest.mark.parametrize("shape", [(7, 5, 3), (64, 256, 256)])
def test_one_rough_pass_bounds_the_norm_of_every_record(shape: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = scale * torch.randn(shape, generator=generator)
    values[1] *= 1e-15  # squares of one record vanish beside the others
    assert bool((row_norms(values) <= length_bound(values)).all())


def test_a_rough_pass_knows_what_it_cannot_tell() -> None:
    assert length_bound(torch.full((2, 3), 1e-30)) == math.inf
    assert length_bound(torch.full((2, 3), 1e30)) == math.inf
    assert length_bound(torch.tensor([[1.0, math.nan]])) == math.inf
    assert length_bound(torch.ones(1).expand(2, (1 << 21) + 1)) == math.inf


def test_bounds_that_cost_less_are_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    for left, right in ((3, 40), (40, 3)):
        part = Outer(
            torch.randn(9, 5, left, generator=generator), torch.randn(9, 5, right, generator=generator), (left, right)
        )
        largest = part.largest()
        assert largest is not None
        assert bool((largest >= part.absolute()).all())


def test_memory_of_large_gradients_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "REUSE_IN_ALL", 2 * 4 * 3 * 5)
    room, part = factors.GradientBuffer(), Outer(torch.randn(4, 2, 3), torch.randn(4, 2, 5), (3, 5))
    places = [[room.fill(name, part).grads_N.data_ptr() for name in "abc"] for _ in range(2)]
    assert list(room._kept) == ["a", "b"]
    assert places[0][:2] == places[1][:2]
    for grads in (room.fill("c", part), room.fill("a", part)):
        torch.testing.assert_close(grads.grads_N, torch.einsum("npa,npb->nab", part.left_NPA, part.right_NPB))
