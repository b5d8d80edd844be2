"""Domains: projections onto convex sets, which never move two points apart; radius and diameter."""

from __future__ import annotations

import math

import pytest
import torch

from discreet.core.check import Refused
from discreet.methods.dpsgd_dc.domain import Ball, Centre
from discreet.stages.domain import Domain, Unbounded


def parts(values: torch.Tensor) -> list[torch.Tensor]:
    return [values[:6].reshape(2, 3).clone(), values[6:].clone()]


def joined(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.reshape(-1).double() for value in values])


INITIAL = parts(torch.linspace(-1, 1, 10))
DOMAINS: list[Domain] = [Ball(radius=1.3), Ball(radius=0.4, centre=Centre.INITIAL)]


def projected(domain: Domain, values: torch.Tensor) -> torch.Tensor:
    own = parts(values)
    domain.project_(own, INITIAL if domain.needs_initial else [])
    return joined(own)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_projection_is_the_nearest_point(domain: Domain) -> None:
    generator = torch.Generator().manual_seed(3)
    for size in (0.1, 1.0, 1e4):
        points = [torch.randn(10, generator=generator) * size for _ in range(40)]
        images = [projected(domain, point) for point in points]
        for one, point in zip(images, points, strict=True):
            # nothing else in the set is nearer; a second projection does nothing
            distance = float((one - point.double()).norm())
            assert all(distance <= float((other - point.double()).norm()) * (1 + 1e-5) for other in images)
            torch.testing.assert_close(projected(domain, one.float()), one, rtol=1e-6, atol=1e-6)
        for first, x in zip(images, points, strict=True):
            for second, y in zip(images, points, strict=True):
                apart = float((first - second).norm())
                assert apart <= domain.diameter
                assert apart <= float((x.double() - y.double()).norm()) * (1 + 1e-5) + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_ball_holds_its_radius_after_rounding(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    slack = 1e-2 if dtype is torch.bfloat16 else 0.0  # three digits cannot hold the border
    for _ in range(50):
        values = [(torch.randn(500, generator=generator) * 10).to(dtype)]
        Ball(radius=0.7).project_(values, [])
        assert float(values[0].double().norm()) <= 0.7 + slack
        assert float(values[0].double().norm()) > 0.69


def test_points_inside_stay_exactly_where_they_are() -> None:
    inside = torch.full((10,), 0.1)
    for domain in (Ball(radius=1.0), Unbounded()):
        assert torch.equal(projected(domain, inside), inside.double())


def test_radius_and_diameter_are_two_words() -> None:
    assert Ball(radius=2.0).diameter == 4.0
    assert Unbounded().diameter == math.inf
    ends = [torch.tensor([-9.0]), torch.tensor([9.0])]
    for end in ends:
        Ball(radius=2.0).project_([end], [])
    assert float((ends[0] - ends[1]).abs()) == pytest.approx(4.0, rel=1e-5)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_comes_back_into_the_domain(domain: Domain, bad: float) -> None:
    values = torch.linspace(-3, 3, 10)
    values[4] = bad
    image = projected(domain, values)
    assert bool(image.isfinite().all())
    centre = joined(INITIAL) if domain.needs_initial else torch.zeros(10)
    assert float((image - centre).norm()) <= domain.diameter / 2 * (1 + 1e-6)


def test_refusals() -> None:
    with pytest.raises(Refused, match="half of the diameter"):
        Ball(radius=0.0)
    with pytest.raises(Refused, match="Unbounded"):
        Ball(radius=math.inf)
    with pytest.raises(Refused, match="one initial parameter"):
        Ball(radius=1.0, centre=Centre.INITIAL).project_([torch.zeros(4)], [])
    with pytest.raises(ValueError, match="nowhere"):
        Ball(radius=1.0, centre="nowhere")  # type: ignore[arg-type]
