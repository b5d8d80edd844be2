"""The projected Gaussian mechanism: price, sensitivity where the noise is added, noise, refusals."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from discreet.accounting import events
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.engine.layout import Layout, Mask
from discreet.methods.d2p2.projected_noise import (
    DenseBlocks,
    DenseLayers,
    Orthonormal,
    OrthonormalLayers,
    PaperLift,
    ProjectedNoise,
    UnbiasedLift,
    block_sizes,
    block_widths,
    layer_widths,
    width,
)
from discreet.methods.d2p2.projections import Hadamard, padded_size
from discreet.methods.dicesgd.stages import TwoLevel
from discreet.methods.dp_sgd.clipping import AdaptiveQuantile
from discreet.stages.clipping import FlatClip, Query
from discreet.stages.noise import GaussianNoise
from discreet.stages.values import _AGGREGATION, BoundedSum, StepContext

ALPHA = 1e-6
LAYOUT = Layout(("w", "b"), ((6, 9), (9,)))
DENSE = DenseLayers(layer_widths(LAYOUT.sizes, 0.5))
BLOCKS = DenseBlocks(20, block_widths(LAYOUT.size, 20, 0.5))
QUERY = Query(1.0)


def context(*, seed: int = 0, step: int = 0, layout: Layout = LAYOUT) -> StepContext:
    return StepContext(step=step, steps_per_epoch=1, batch=1.0, layout=layout, streams=Streams.seeded(seed))


def bounded(value: Tensor, sensitivity: float = 1.0) -> BoundedSum:
    return BoundedSum(value.clone(), sensitivity, key=_AGGREGATION)


def release(mechanism: ProjectedNoise | GaussianNoise, value: Tensor, noise: float, when: StepContext) -> Tensor:
    return mechanism.release([bounded(value)], [QUERY], noise, when)[0]


# -- price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounder", [FlatClip(2.0), TwoLevel(clip=1.0, residual=3.0), AdaptiveQuantile()])
def test_orthonormal_rows_cost_what_no_projection_costs(bounder: FlatClip) -> None:
    queries = [*bounder.vectors(1.0), *bounder.scalars()]
    plain = GaussianNoise().event(queries, 1.1)
    assert ProjectedNoise(reduction=0.3).event(queries, 1.1) == plain


def test_dense_matrices_cost_a_mixture() -> None:
    mechanism = ProjectedNoise(reduction=0.5, projection=DENSE)
    assert mechanism.event([QUERY], 1.1) == events.ProjectedGaussian(1.1, (27, 4))
    blocks = ProjectedNoise(reduction=0.5, projection=BLOCKS)
    assert blocks.event([QUERY], 1.1) == events.ProjectedGaussian(1.1, (10, 10, 10, 2))


def test_nothing_removed_costs_nothing_more() -> None:
    assert ProjectedNoise(reduction=0.0, projection=DENSE).event([QUERY], 1.1) == events.Gaussian(1.1)


@pytest.mark.parametrize("bounder", [TwoLevel(clip=1.0, residual=3.0), AdaptiveQuantile()])
@pytest.mark.parametrize("projection", [DENSE, BLOCKS])
def test_no_price_for_a_dense_projection_of_several_queries(bounder: TwoLevel, projection: DenseLayers) -> None:
    queries = [*bounder.vectors(1.0), *bounder.scalars()]
    with pytest.raises(Refused, match="a single vector query"):
        ProjectedNoise(reduction=0.5, projection=projection).event(queries, 1.1)


# -- what it releases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "projection", [Orthonormal(), OrthonormalLayers(), DENSE, BLOCKS], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("lift", [UnbiasedLift(), PaperLift()], ids=lambda p: type(p).__name__)
def test_nothing_removed_is_the_gaussian_mechanism_bit_for_bit(projection: DenseLayers, lift: UnbiasedLift) -> None:
    mechanism = ProjectedNoise(reduction=0.0, projection=projection, lift=lift)
    value = torch.randn(LAYOUT.size)
    assert torch.equal(release(mechanism, value, 1.1, context()), release(GaussianNoise(), value, 1.1, context()))


@pytest.mark.parametrize(
    "projection", [Orthonormal(), OrthonormalLayers(), DENSE, BLOCKS], ids=lambda p: type(p).__name__
)
def test_fresh_at_each_step_and_the_same_when_regenerated(projection: DenseLayers) -> None:
    mechanism = ProjectedNoise(reduction=0.5, projection=projection)
    value = torch.randn(LAYOUT.size)
    first, again, other = (release(mechanism, value, 0.0, context(step=step)) for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not bool(torch.isclose(first, other).any())


def test_the_papers_lift_is_the_root_of_the_width_times_the_unbiased_one() -> None:
    value = torch.randn(LAYOUT.size)
    for projection, roots in (
        (DENSE, [math.sqrt(27)] * 54 + [math.sqrt(4)] * 9),
        (Orthonormal(), [math.sqrt(width(padded_size(63), 0.5))] * 63),
        (OrthonormalLayers(), [math.sqrt(32)] * 54 + [math.sqrt(6)] * 9),  # 54 is padded to 64, 9 to 12
    ):
        unbiased = ProjectedNoise(reduction=0.5, projection=projection)
        paper = dataclasses.replace(unbiased, lift=PaperLift())
        expected = release(unbiased, value, 1.0, context()) * torch.tensor(roots)
        assert torch.allclose(release(paper, value, 1.0, context()), expected, rtol=1e-4, atol=1e-5)


def test_algorithm_1_as_printed() -> None:
    """A (A^T g / sqrt(p) + noise), matrix by matrix from the same streams."""
    value = torch.randn(LAYOUT.size)
    found = release(ProjectedNoise(reduction=0.5, projection=DENSE, lift=PaperLift()), value, 1.5, context())
    streams = Streams.seeded(0)
    drawn, noise = streams.projection.at(0), streams.noise.normal(31)
    expected = []
    for part, p, epsilon in zip(value.split([54, 9]), (27, 4), noise.split([27, 4]), strict=True):
        a = drawn.normal(len(part) * p).view(p, len(part)).T
        expected.append(a @ (a.T @ part / math.sqrt(p) + 1.5 * epsilon))
    assert torch.allclose(found, torch.cat(expected), rtol=1e-4, atol=1e-4)


def test_single_numbers_get_plain_noise() -> None:
    mechanism = ProjectedNoise(reduction=0.5)
    count, query = torch.tensor([3.5], dtype=torch.float64), Query(0.5, sigma=2.0)
    gradient = bounded(torch.randn(LAYOUT.size))
    when = context()
    noisy = mechanism.release([gradient, bounded(count, 0.5)], [QUERY, query], 1.0, when)
    assert [tuple(value.shape) for value in noisy] == [(63,), (1,)]
    assert noisy[1].dtype == torch.float64
    streams = Streams.seeded(0)
    kept = width(padded_size(63), 0.5)
    expected = 3.5 + 2.0 * float(streams.noise.normal(kept + 1, dtype=torch.float64)[-1])
    assert float(noisy[1]) == pytest.approx(expected, rel=1e-12)


def test_no_exact_sum_stays_behind() -> None:
    total = bounded(torch.ones(LAYOUT.size))
    noisy = ProjectedNoise(reduction=0.5).release([total], [QUERY], 1.0, context())[0]
    assert noisy.data_ptr() == total.value.data_ptr()
    assert noisy.dtype == torch.float32


# -- where the noise is added -------------------------------------------------------------------------------------


class Watched:
    """The vectors before their noise, by watching the noise stream."""

    def __init__(self, when: StepContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: list[Tensor] = []
        self.stds: list[float] = []
        stream = when.streams.noise
        add = stream.add_normal_

        def watch(value: Tensor, std: float) -> Tensor:
            self.images.append(value.clone())
            self.stds.append(std)
            return add(value, std)

        monkeypatch.setattr(stream, "add_normal_", watch)


def moved(
    mechanism: ProjectedNoise, value: Tensor, monkeypatch: pytest.MonkeyPatch, layout: Layout | None = None
) -> float:
    """How far one record that contributes `value` moves the vector that the noise is added to."""
    images = []
    others = 3 * torch.randn(len(value), generator=torch.Generator().manual_seed(3))
    layout = layout or Layout(("w",), ((len(value),),))
    for total in (others, others + value):
        when = context(layout=layout)
        watched = Watched(when, monkeypatch)
        mechanism.release([bounded(total.double())], [QUERY], 1.5, when)
        assert watched.stds == [1.5]
        images.append(watched.images[0])
    return float((images[1] - images[0]).double().norm())


def unit_vectors(size: int, seed: int = 0) -> list[Tensor]:
    """Contributions at the clip: random, constant, single coordinates, and rows of the projection itself."""
    stream = Streams.seeded(seed).projection.at(0)
    kept = width(padded_size(size), 0.5)
    projection = Hadamard(size, kept, stream)
    rows = []
    for index in range(0, kept, max(1, kept // 4)):
        spike = torch.zeros(kept, dtype=torch.float64)
        spike[index] = 1.0
        rows.append(projection.lift(spike, torch.float64))
    single = torch.zeros(size, dtype=torch.float64)
    single[size // 2] = 1.0
    vectors = [*rows, single, torch.ones(size).double(), torch.randn(size).double()]
    return [vector / vector.norm() for vector in vectors]


@pytest.mark.parametrize("size", [12, 63, 64, 1000])
def test_a_record_never_moves_the_projected_sum_by_more_than_the_clip(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = ProjectedNoise(reduction=0.5)
    for vector in unit_vectors(size):
        assert moved(mechanism, vector, monkeypatch) <= 1.0


@pytest.mark.parametrize("sizes", [(1, 11), (54, 9), (600, 400)])
def test_nor_when_every_layer_is_projected_by_itself(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """At the clip in one layer, or spread over both, along rows of the layers' own projections."""
    layout = Layout(("w", "b"), tuple((size,) for size in sizes))
    mechanism = ProjectedNoise(reduction=0.5, projection=OrthonormalLayers())
    stream = Streams.seeded(0).projection.at(0)
    rows = []
    for part, size in enumerate(sizes):
        kept = width(padded_size(size), 0.5)
        spike = torch.zeros(kept, dtype=torch.float64)
        spike[0] = 1.0
        rows.append(Hadamard(size, kept, stream.at(part)).lift(spike, torch.float64))
        rows[-1] /= rows[-1].norm()
    zeros = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    vectors = [
        torch.cat([rows[0], zeros[1]]),
        torch.cat([zeros[0], rows[1]]),
        torch.cat([0.6 * rows[0], 0.8 * rows[1]]),
        *unit_vectors(sum(sizes)),
    ]
    lengths = [moved(mechanism, vector, monkeypatch, layout) for vector in vectors]
    assert max(lengths) <= 1.0
    # Rows of the projection keep their length where the layer fills its matrix: 11 of 12 and 1 of 1 do.
    assert max(lengths) > 0.65


def test_dense_projections_do_move_it_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control, and the paper's error: A^T / sqrt(p) lengthens about every second vector."""
    size = 64
    mechanism = ProjectedNoise(reduction=0.9, projection=DenseLayers(layer_widths((size,), 0.9)))
    assert max(moved(mechanism, vector, monkeypatch) for vector in unit_vectors(size)) > 1.1


@pytest.mark.parametrize("projection", [Orthonormal(), OrthonormalLayers(), DENSE], ids=lambda p: type(p).__name__)
def test_what_lies_on_frozen_coordinates_does_not_leave(projection: DenseLayers) -> None:
    mechanism = ProjectedNoise(reduction=0.5, projection=projection)
    mask = Mask((True, False))
    value = torch.randn(LAYOUT.size)
    other = value.clone()
    other[54:] += 100
    one, two = (release(mechanism, total, 1.0, dataclasses.replace(context(), mask=mask)) for total in (value, other))
    assert torch.equal(one, two)
    assert not torch.equal(release(mechanism, value, 1.0, context()), one)


def test_lifted_noise_has_the_stated_size() -> None:
    """Unbiased lifting: variance n/p on each coordinate. Kolmogorov-Smirnov; 10 % more or less is seen."""
    layout = Layout(("w",), ((20_000,),))
    found = release(ProjectedNoise(reduction=0.3), torch.zeros(20_000), 1.5, context(layout=layout))
    padded = padded_size(20_000)
    std = 1.5 * math.sqrt(padded / width(padded, 0.3))
    for times, alike in ((1.0, True), (0.9, False), (1.1, False)):
        value = stats.kstest(found.double().numpy() / (std * times), "norm").pvalue
        assert bool(value > ALPHA) is alike


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", [-0.1, 1.0, 2.0, math.nan])
def test_the_reduction_is_a_share(reduction: float) -> None:
    with pytest.raises(Refused, match="reduction"):
        ProjectedNoise(reduction=reduction)


@pytest.mark.parametrize("dims", [(), (0,), (3, -1), (2.5,), [3]])
def test_widths_are_whole(dims: tuple[int, ...]) -> None:
    with pytest.raises(Refused, match="layer_widths"):
        DenseLayers(dims)
    with pytest.raises(Refused, match="block_widths"):
        DenseBlocks(8, dims)


@pytest.mark.parametrize(
    ("projection", "reduction"),
    [(DenseLayers((27,)), 0.5), (DenseLayers((27, 5)), 0.5), (DENSE, 0.4), (DenseBlocks(21, (10,) * 4), 0.5)],
)
def test_another_model_than_was_priced_is_refused(projection: DenseLayers, reduction: float) -> None:
    mechanism = ProjectedNoise(reduction=reduction, projection=projection)
    when = context()
    with pytest.raises(Refused, match="the widths of this model"):
        mechanism.check(LAYOUT)
    with pytest.raises(Refused, match="the widths of this model"):
        release(mechanism, torch.randn(LAYOUT.size), 1.0, when)
    assert when.streams.noise.spent == 0


@pytest.mark.parametrize(
    "mechanism",
    [
        ProjectedNoise(reduction=0.5, projection=DENSE),
        ProjectedNoise(reduction=0.5, projection=BLOCKS),
        ProjectedNoise(reduction=0.3),
        ProjectedNoise(reduction=0.3, projection=OrthonormalLayers()),
        ProjectedNoise(reduction=0.0, projection=DenseLayers((1,))),
    ],
)
def test_the_model_that_was_priced_is_welcome(mechanism: ProjectedNoise) -> None:
    mechanism.check(LAYOUT)


def test_a_sum_with_a_larger_bound_is_refused() -> None:
    with pytest.raises(Refused, match="sensitivity"):
        ProjectedNoise(reduction=0.3).release([bounded(torch.zeros(LAYOUT.size), 2.0)], [QUERY], 1.0, context())


def test_widths() -> None:
    assert layer_widths((100, 10, 1), 0.9) == (10, 1, 1)
    assert block_sizes(7, 3) == (3, 3, 1)
    assert block_sizes(6, 3) == (3, 3)
    assert block_widths(7, 3, 0.5) == (2, 2, 1)
