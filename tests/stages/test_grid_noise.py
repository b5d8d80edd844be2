"""Noise on a grid: exact probabilities, the stated privacy for the numbers that are released, and a run with it."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

import loop
from discreet import methods
from discreet.accounting import gdp
from discreet.core import normals
from discreet.core.check import Refused
from discreet.core.generators import exact
from discreet.core.streams import Streams
from discreet.engine.layout import Layout
from discreet.stages.clipping import Query
from discreet.stages.grid_noise import GridNoise
from discreet.stages.noise import GaussianNoise
from discreet.stages.plan import Recipe
from discreet.stages.values import _AGGREGATION, BoundedSum, StepContext

ALPHA = 1e-6  # the draws are seeded; a fresh seed would fail a sound sampler with this chance


def masses(scale: float, reach: int) -> np.ndarray:
    """P(round(scale N) = k) for k = -reach .. reach."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / scale
    return np.where(edges[1:] <= 0, np.diff(stats.norm.cdf(edges)), -np.diff(stats.norm.sf(edges)))


def fits(drawn: np.ndarray, expected: np.ndarray) -> bool:
    reach = len(expected) // 2
    counts = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(expected))
    kept = expected * len(drawn) > 10
    rest = [counts[~kept].sum()], [expected[~kept].sum()]
    observed, wanted = np.append(counts[kept], rest[0]), np.append(expected[kept], rest[1])
    wanted *= len(drawn) / wanted.sum()
    if wanted[-1] < 5:  # too few beyond the kept ones for a test
        observed, wanted = observed[:-1], wanted[:-1] * observed[:-1].sum() / wanted[:-1].sum()
    return bool(stats.chisquare(observed, wanted).pvalue > ALPHA)


# Rounded normals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.4, 1.0, 7.3])
def test_rounded_normals_have_the_exact_probabilities(scale: float) -> None:
    drawn = exact.rounded_normals(Streams.seeded(1).noise, 200_000, scale)
    reach = math.ceil(8 * scale)
    assert fits(drawn, masses(scale, reach))
    assert not fits(drawn, masses(scale * 1.03, reach))
    if scale < 0.5:
        discrete = np.exp(-(np.arange(-reach, reach + 1) ** 2) / 2 / scale**2)
        assert not fits(drawn, discrete / discrete.sum())  # another distribution on a coarse grid


def test_values_at_a_large_scale_are_normal() -> None:
    drawn = exact.rounded_normals(Streams.seeded(2).noise, 100_001, 2.0**20) / 2.0**20
    assert stats.kstest(drawn, "norm").pvalue > ALPHA
    assert stats.kstest(drawn * 1.05, "norm").pvalue < ALPHA
    assert len(exact.rounded_normals(Streams.seeded(2).noise, 0, 1.0)) == 0
    assert not exact.rounded_normals(Streams.seeded(2).noise, 100, 0.0).any()


def test_interval_arithmetic_and_the_fast_path_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = 1000.0
    words = Streams.seeded(3).mask.uniform64(320).view(np.int64)
    fast = exact._rounded(Streams.seeded(4).noise, words, scale)
    resolved: list[int] = []
    real = exact._resolved
    monkeypatch.setattr(exact, "_errors", lambda values: np.full(len(values), np.inf))
    monkeypatch.setattr(exact, "_resolved", lambda *given: resolved.append(1) or real(*given))
    assert np.array_equal(exact._rounded(Streams.seeded(4).noise, words, scale), fast)
    assert len(resolved) == 160


def test_values_next_to_a_boundary_are_resolved_and_both_sides_occur() -> None:
    """u = e^(-1/8), angle 0: x = 1/2 up to the bits behind the words, so that these decide the rounding."""
    with mpmath.workdps(60):
        first = int(mpmath.floor(mpmath.exp(mpmath.mpf(-1) / 8) * 2**63))
    seen = {exact._resolved(Streams.seeded(seed).noise, first, 0, 1.0)[0] for seed in range(40)}
    assert seen == {0, 1}


def real_pair(first: int, second: int, a: float, b: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    u = abs(mpmath.mpf(first) + a) / 2**63
    radius, turn = mpmath.sqrt(-2 * mpmath.log(u)), (mpmath.mpf(second) + b) / 2**63
    return radius * mpmath.cospi(turn), radius * mpmath.sinpi(turn)


@pytest.mark.parametrize("kind", ["compiled", "pure"])
def test_the_error_bound_holds_for_all_continuations_of_the_words(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "pure":
        monkeypatch.setattr(normals, "compiled", None)
    small = [2**63 - 2**k for k in range(2, 60, 3)]  # radii near 0
    tails = [2**k for k in range(0, 60, 3)] + [-(2**k) for k in range(1, 60, 3)]
    some = np.random.default_rng(0).integers(-(2**63), 2**63, 200, dtype=np.int64).tolist()
    pairs = list(zip(small + tails, some, strict=False)) + list(zip(some[0::2], some[1::2], strict=True))
    pairs += pairs[: -len(pairs) % 16]
    values = normals.transform(np.array(pairs, dtype=np.int64).reshape(-1))
    bounds = exact._errors(values)
    worst = 0.0
    with mpmath.workdps(60):
        for number, (first, second) in enumerate(pairs):
            for a, b in itertools.product((2.0**-60, 1.0 - 2.0**-50), repeat=2):
                for side, real in enumerate(real_pair(first, second, a, b)):
                    off = abs(real - mpmath.mpf(float(values[2 * number + side])))
                    worst = max(worst, float(off / bounds[2 * number + side]))
    assert worst <= 1
    assert worst > 2.0**-9  # the bound is not empty: a thousandth of it would fail


# The mechanism ----------------------------------------------------------------------------------------------


def released(value: torch.Tensor, query: Query, *, bits: int, noise: float, seed: int = 1) -> torch.Tensor:
    context = StepContext(
        step=0, steps_per_epoch=1, batch=1.0, layout=Layout(("w",), (tuple(value.shape),)), streams=Streams.seeded(seed)
    )
    total = BoundedSum(value.clone(), query.sensitivity, key=_AGGREGATION)
    (noisy,) = GridNoise(bits).release([total], [query], noise, context)
    assert noisy.data_ptr() == total.value.data_ptr()  # the exact sum is overwritten
    return noisy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_releases_lie_on_the_grid_with_the_stated_noise(dtype: torch.dtype) -> None:
    count, query, noise, bits = 40_000, Query(0.7), 1.3, 10
    value = torch.linspace(-3, 3, count, dtype=dtype)
    noisy = released(value, query, bits=bits, noise=noise)
    spacing = GridNoise(bits).spacing(0.7)
    assert spacing == 2.0 ** (-1 - bits)
    assert torch.equal(noisy / spacing, (noisy / spacing).round())
    enlarged = noise * (0.7 + spacing * math.sqrt(count))
    sample = (noisy - value).double().numpy() / enlarged
    assert stats.kstest(sample, "norm").pvalue > ALPHA
    assert stats.kstest(sample * (enlarged / noise / 0.7), "norm").pvalue < ALPHA  # control: without the allowance


def test_the_price_at_twenty_bits_is_a_thousandth_for_a_million_coordinates() -> None:
    grid, query = GridNoise(), Query(0.1)
    factor = grid.steps(query, 1.0, 10**6) * grid.spacing(0.1) / 0.1
    assert 1 < factor < 1.001
    assert grid.event((query,), 1.3) == GaussianNoise().event((query,), 1.3)


def hockey_stick(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


CLIP = 0.9  # no multiple of a spacing


def moves(bits: int, dims: int) -> set[tuple[int, ...]]:
    """How far rounding can move neighbours that are CLIP apart, in steps of the grid: the longest moves."""
    found = set()
    for angle in np.linspace(0, math.pi / 2, 100 if dims == 2 else 1):
        away = CLIP / GridNoise(bits).spacing(CLIP) * np.array([math.cos(angle), math.sin(angle)][:dims])
        for offset in itertools.product(np.linspace(-0.5, 0.5, 11), repeat=dims):
            found.add(tuple(np.abs(np.floor(away + offset + 0.5) - np.floor(np.array(offset) + 0.5)).astype(int)))
    return {one for one in found if not any(other != one and (np.array(other) >= one).all() for other in found)}


@pytest.mark.parametrize(("bits", "dims"), [(1, 1), (3, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("noise", [0.8, 2.0])
def test_the_release_is_as_private_as_the_gaussian(bits: int, dims: int, noise: float) -> None:
    """The whole distribution on the grid, for the worst neighbours, against the formula of the Gaussian."""
    grid = GridNoise(bits)

    def worst(scale: float, epsilon: float) -> float:
        reach = math.ceil(8 * scale) + 2 ** (bits + 1)
        base = masses(scale, reach)
        found = []
        for move in moves(bits, dims):
            shifted = [np.roll(base, step) for step in move]
            pair = (base, shifted[0]) if dims == 1 else (np.outer(base, base), np.outer(*shifted))
            found.append(hockey_stick(*pair, epsilon))
        return max(found)

    scale = grid.steps(Query(CLIP), noise, dims)
    plain = noise * CLIP / grid.spacing(CLIP)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        assert worst(scale, epsilon) <= gdp.delta(1 / noise, epsilon) + 1e-12
    assert worst(plain, 1.0) > gdp.delta(1 / noise, 1.0)  # control: the allowance is needed


def test_bad_grids_are_refused() -> None:
    for bits in (0, -1, 1.5):
        with pytest.raises(Refused, match="bits"):
            GridNoise(bits)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="at most 30"):
        GridNoise(31)
    with pytest.raises(Refused, match="coarser grid"):
        exact.rounded_normals(Streams.seeded(1).noise, 1, 2.0**41)


@pytest.mark.parametrize("recipe", [methods.dp_sgd(clip=0.5), methods.adaptive_quantile(clip=0.5)])
def test_a_run_on_the_grid_is_charged_and_trained_like_any_other(recipe: Recipe) -> None:
    on_grid = loop.plan(recipe.using(mechanism=GridNoise()))
    assert on_grid.certificate().epsilon == loop.plan(recipe).certificate().epsilon
    net = loop.model()
    private = loop.private(net, on_grid)
    before = [parameter.clone() for parameter in net.parameters()]
    loop.train(private)
    assert all(not torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))
    assert private.spent().certified.epsilon == pytest.approx(on_grid.certificate().epsilon)


def test_infinite_and_missing_sums_stay_finite() -> None:
    noisy = released(torch.tensor([math.inf, -math.inf, math.nan, 0.0]), Query(1.0), bits=20, noise=1.0)
    assert bool(torch.isfinite(noisy).all())
