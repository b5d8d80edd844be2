"""Small values of the methods' helpers, computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from discreet.engine.layout import Layout
from discreet.methods.d2p2.projected_noise import block_sizes, width
from discreet.methods.d2p2.projections import hadamard, padded_size
from discreet.methods.d2p2.recipes import InverseFourthRoot, InverseRoot
from discreet.methods.dicesgd.stages import FeedbackClip, TwoLevel
from discreet.methods.dpsgd_dc.curvature import LinearModel, Link, lipschitz_smooth
from discreet.methods.dpsgd_dc.domain import Ball
from discreet.methods.dpsgd_dc.guard import ClippedFeatures
from discreet.methods.geodp.spherical import canonical_, from_spherical, middle, to_spherical
from discreet.methods.geodp.stages import AngleWindow, GeometricNoise, mean_share
from discreet.methods.random_freeze.selection import Granularity, RandomFreeze
from discreet.stages.sampling import Horizon
from discreet.stages.schedule import Period


def test_d2p2() -> None:
    assert (width(10, 0.3), width(1, 0.9)) == (7, 1)
    assert block_sizes(10, 4) == (4, 4, 2)
    assert [padded_size(size) for size in (1, 3, 9, 13, 20, 550_000)] == [1, 4, 12, 16, 20, 655360]
    assert hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [10.0, -2.0, -4.0, 0.0]
    assert InverseRoot().factor(3, steps_per_epoch=1) == 0.5
    assert InverseFourthRoot(Period.STEP).factor(15, steps_per_epoch=1) == 0.5


def test_dicesgd() -> None:
    norms = torch.tensor([[0.5, 2.0, 5.0]])
    hidden = FeedbackClip(1.0, preclip=3.0).hidden(norms, 1.0).mul(norms)
    assert hidden.flatten().tolist() == pytest.approx([0.0, 1.0, 2.0], abs=5e-4)
    assert TwoLevel.smoothed(1.0, 9.0, 0.1).share ** 2 == pytest.approx(3.065, abs=5e-4)


def test_dpsgd_dc() -> None:
    assert LinearModel(link=Link.LOGISTIC, features=1.0).smoothness == 0.5
    assert lipschitz_smooth(learning_rate=0.2, smoothness=1.0) == 1.2
    assert [link.curvature for link in Link] == [0.25, 1.0, 0.5]
    assert Ball(radius=1.5).diameter == 3.0
    clipped = ClippedFeatures(1.0)(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    assert clipped.flatten().tolist() == pytest.approx([0.6, 0.8, 0.3, 0.4], abs=5e-4)


def test_geodp() -> None:
    assert AngleWindow(beta=0.1).radius(98) == pytest.approx(1.570796, abs=5e-7)
    assert AngleWindow().radius(98) == 0.5
    assert (mean_share(30.0, 40.0), mean_share(-1.0, 40.0)) == (0.75, 0.0)
    assert GeometricNoise(beta=1.0).angle_std(3, 1.0, 100.0) == pytest.approx(0.070248, abs=5e-7)
    norm, angles = to_spherical(torch.tensor([1.0, 3.0**0.5]))
    assert (float(norm), float(angles)) == pytest.approx((2.0, math.pi / 3), abs=5e-7)
    vector = from_spherical(torch.tensor(2.0), torch.tensor([math.pi / 3]))
    assert vector.tolist() == pytest.approx([1.0, math.sqrt(3)], abs=5e-7)
    assert vector.dtype == torch.float64
    assert middle(4, torch.zeros(())).tolist() == [math.pi / 2, math.pi / 2, 0.0]
    wrapped = canonical_(torch.tensor([-0.1, 4.0, 4.0], dtype=torch.float64))
    assert wrapped.tolist() == pytest.approx([0.0, math.pi, 4 - 2 * math.pi])


def test_random_freeze() -> None:
    assert Granularity.ROWS.total_units(Layout(("w", "b"), ((2, 3), (2,)))) == 4
    cooling = RandomFreeze(final_rate=0.9, cooling_epochs=4)
    assert [cooling.rate(epoch) for epoch in range(5)] == pytest.approx([0.0, 0.3, 0.6, 0.9, 0.9])
    run = Horizon.of(records=50_000, batch=1000, epochs=40)
    assert RandomFreeze(final_rate=0.7, cooling_epochs=40).density(run) == pytest.approx(0.65)
