"""The loops that Figure 6 of GeoDP is timed against compute the same, and the errors of Figure 3 are the formula's."""

from __future__ import annotations

import math

import pytest
import torch

from discreet.methods.geodp.spherical import from_spherical, to_spherical
from research.reproductions.geodp.figure_6 import quadratic, quadratic_angles
from research.reproductions.geodp.figures_3_4 import CLIP, errors


@pytest.mark.parametrize("size", [2, 3, 40])
def test_equations_as_written_agree_with_linear_time(size: int) -> None:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    norm, angles = to_spherical(vector)
    assert torch.allclose(quadratic_angles(vector), angles, atol=1e-12)
    assert torch.allclose(quadratic(norm, angles), from_spherical(norm, angles), atol=1e-12)


def test_the_errors_that_are_drawn() -> None:
    """Means of 200 draws within 5 %: chi-square sums over 2000 coordinates, standard error 0.25 %."""
    generator = torch.Generator().manual_seed(0)
    d, batch, sigma, beta = 2000, 1000, 0.5, 0.01
    average = torch.randn(d, generator=generator, dtype=torch.float64) * 1e-3
    drawn = [errors(average, sigma=sigma, beta=beta, batch=batch, generator=generator) for _ in range(200)]
    _, gradient, direction, _ = (sum(one[i] for one in drawn) / len(drawn) for i in range(4))
    assert gradient == pytest.approx(d * (CLIP * sigma / batch) ** 2, rel=0.05)
    assert direction == pytest.approx((d - 1) * (d + 2) * (beta * math.pi * sigma / batch) ** 2, rel=0.05)
