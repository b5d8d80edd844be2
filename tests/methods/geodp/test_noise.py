"""GeoDP as published: its noise is the paper's, its guarantee is nobody's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import loop
from discreet import methods
from discreet.accounting.events import NonPrivate
from discreet.auditing.bounds import Floats
from discreet.auditing.broken import GeoDp
from discreet.auditing.games import play
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.engine.layout import Layout, Mask
from discreet.methods.dp_sgd.clipping import AdaptiveQuantile
from discreet.methods.geodp.spherical import to_spherical
from discreet.methods.geodp.stages import GeometricNoise
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages import clipping
from discreet.stages.clipping import Clipping, Query
from discreet.stages.sampling import FullBatch, Horizon
from discreet.stages.values import _AGGREGATION, BoundedSum, StepContext

ALPHA = 1e-6
CLIP, BATCH = 0.5, 200.0


def context(size: int, streams: Streams, mask: Mask | None = None, batch: float = BATCH) -> StepContext:
    layout = Layout(("w", "b"), ((size - 1,), (1,)))
    return StepContext(step=0, steps_per_epoch=1, batch=batch, layout=layout, streams=streams, mask=mask)


def release(mechanism: GeometricNoise, value: Tensor, noise: float, when: StepContext, clip: float = CLIP) -> Tensor:
    total = BoundedSum(value.clone(), clip, key=_AGGREGATION)
    return mechanism.release([total], [Query(clip)], noise, when)[0]


def deviations(size: int, seed: int) -> tuple[float, Floats]:
    """Noisy less exact coordinates of one release, in units of the paper's standard deviations."""
    generator = torch.Generator().manual_seed(3)
    total = torch.randn(size, generator=generator, dtype=torch.float64) * 20
    mechanism = GeometricNoise(beta=0.02)
    found = release(mechanism, total, 0.8, context(size, Streams.seeded(seed)))
    before, after = to_spherical(total / BATCH), to_spherical(found / BATCH)
    norm_std = CLIP * 0.8 / BATCH
    angle_std = math.sqrt(size + 2) * 0.02 * math.pi * 0.8 / BATCH
    angles = ((after[1] - before[1]) / angle_std).numpy()
    return float(after[0] - before[0]) / norm_std, angles


def test_angles_carry_the_papers_noise() -> None:
    """Kolmogorov-Smirnov on 19,999 angles, false alarms 1e-6; 10 % more or less noise is seen."""
    _, angles = deviations(20_000, seed=0)
    for times, alike in ((1.0, True), (0.9, False), (1.1, False)):
        assert bool(stats.kstest(angles * times, "norm").pvalue > ALPHA) is alike
    assert abs(stats.pearsonr(angles[1:], angles[:-1]).statistic) < 0.036  # 5 standard deviations


def test_the_norm_carries_the_papers_noise() -> None:
    """The same on 1000 releases; 1.5 times more or less is seen."""
    norms = np.array([deviations(8, seed)[0] for seed in range(1000)])
    for times, alike in ((1.0, True), (2 / 3, False), (1.5, False)):
        assert bool(stats.kstest(norms * times, "norm").pvalue > ALPHA) is alike


def test_it_is_the_mechanism_that_the_audit_attacks() -> None:
    game = GeoDp(dimension=7, batch=50, beta=0.3, noise=1.7)
    assert GeometricNoise(beta=0.3).angle_std(7, 1.7, 50.0) == pytest.approx(game.angle_std, rel=1e-12)


def test_without_noise_nothing_changes() -> None:
    total = torch.randn(100)
    found = release(GeometricNoise(beta=0.1), total, 0.0, context(100, Streams.seeded(0)))
    assert found.dtype == total.dtype
    assert torch.allclose(found, total, atol=1e-6)
    assert not bool(release(GeometricNoise(), torch.zeros(9), 0.0, context(9, Streams.seeded(0))).any())


def test_no_exact_sum_stays_behind() -> None:
    total = BoundedSum(torch.ones(20), CLIP, key=_AGGREGATION)
    GeometricNoise(beta=1.0).release([total], [Query(CLIP)], 1.0, context(20, Streams.seeded(0)))
    assert not bool((total.value == 1).any())


def test_a_mask_leaves_a_smaller_gradient() -> None:
    mask = Mask((torch.arange(9) % 2 == 0, False))
    total = torch.randn(10)
    found = release(GeometricNoise(), total, 0.0, context(10, Streams.seeded(0), mask))
    assert torch.allclose(found, total[[0, 2, 4, 6, 8]], atol=1e-6)
    plan = methods.geodp().using(selection=RandomFreeze(final_rate=0.5))
    loop.train(loop.private(which=loop.plan(plan)))


class Turned:
    """The mechanism itself in the attack of the audit: an average near zero, and one record that turns it."""

    def __init__(self, batch: float) -> None:
        self.batch = batch

    def draw(self, trials: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
        streams = Streams.seeded(int(generator.integers(2**31)))
        quiet = torch.tensor([0.01, 0.0, 0.0], dtype=torch.float64)
        loud = quiet + torch.tensor([-0.01, math.sqrt(1 - 1e-4), 0.0], dtype=torch.float64)
        return self._world(quiet, trials, streams), self._world(loud, trials, streams)

    def _world(self, total: Tensor, trials: int, streams: Streams) -> Floats:
        when = context(3, streams, batch=self.batch)
        found = (release(GeometricNoise(beta=1.0), total, 1.0, when, clip=1.0) for _ in range(trials))
        return np.array([math.acos(min(1.0, float(v[0].abs() / v.norm()))) for v in found])


def test_the_claim_is_broken_by_the_mechanism_itself() -> None:
    """Batch 100, beta 1, d 3, sigma 1: claimed 4.845 at 1e-5, yet two worlds separate. Wrong once in 1000."""
    claim = _bound(methods.geodp(clip=1.0, beta=1.0), steps=1).charge().claimed
    assert claim is not None
    assert claim.epsilon(1e-5) == pytest.approx(4.84481, abs=1e-5)
    audited = play(Turned(100.0), trials=3000, delta=1e-5, confidence=0.999, generator=np.random.default_rng(0))
    assert audited.epsilon > 4.845
    # Negative control: where the noise on angles covers their whole range, the attack shows nothing of the kind.
    hidden = play(Turned(1.0), trials=1500, delta=1e-5, confidence=0.999, generator=np.random.default_rng(0))
    assert hidden.epsilon < 1


def _bound(recipe: methods.Plan, steps: int) -> methods.Plan:
    plan = recipe.using(sampling=FullBatch())
    return plan.bind(noise=1.0, horizon=Horizon.of(records=100, batch=100, steps=steps), delta=1e-5)


def test_nothing_is_certified_and_several_steps_are_not_claimed() -> None:
    assert isinstance(GeometricNoise().event([Query(1.0)], 1.0), NonPrivate)
    plan = _bound(methods.geodp(), steps=5)
    assert plan.certificate().epsilon == math.inf
    assert any("no proven guarantee" in line for line in plan.certificate().assumptions)
    claimed = plan.charge().claimed
    assert claimed is not None
    assert claimed.epsilon(1e-5) is None
    with pytest.raises(Refused):
        methods.geodp().for_budget(epsilon=3.0, delta=1e-5, records=1000, batch=100, epochs=2)


@pytest.mark.parametrize(
    ("clipping", "kind"),
    [(Clipping.FLAT, clipping.FlatClip), (Clipping.AUTO_S, clipping.AutoS), (Clipping.PSAC, clipping.Psac)],
)
def test_every_clipping_of_the_tables(clipping: Clipping, kind: type) -> None:
    plan = methods.geodp(clip=0.3, clipping=clipping)
    assert isinstance(plan.bounder, kind)
    assert plan.bounder.vectors(1.0) == (Query(0.3),)
    assert methods.geodp(clip=0.3, clipping=clipping.value) == plan  # type: ignore[arg-type]


def test_with_selective_update_nothing_is_certified_either() -> None:
    run = loop.private(which=loop.plan(methods.geodp(loss_clip=0.01)))
    loop.train(run)
    assert run.ledger.length == 2 * loop.STEPS
    assert run.spent().certified.epsilon == math.inf


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.1, math.nan])
def test_beta_is_a_share(beta: float) -> None:
    with pytest.raises(Refused, match="beta"):
        methods.geodp(beta=beta)


def test_other_queries_are_refused() -> None:
    plan = methods.geodp().using(bounder=AdaptiveQuantile())
    with pytest.raises(Refused, match="one sum"):
        loop.train(loop.private(which=loop.plan(plan)))
