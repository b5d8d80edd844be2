"""Flat clipping is the projection on one ball, to the last digit: no two gradients end further apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from discreet.core.check import Refused
from discreet.methods.dicesgd.stages import FeedbackClip, TwoLevel
from discreet.stages.clipping import ROUND_DOWN, FlatClip

NEAR = torch.tensor([1 + sign * 2.0**-k for k in range(12, 50) for sign in (-1, 1)], dtype=torch.float64)
NORMS = torch.cat([NEAR, NEAR * ROUND_DOWN, torch.logspace(-3, 3, 50, dtype=torch.float64)]).sort().values


def lengths(bounder: FlatClip) -> Tensor:
    """What is left of collinear gradients of these lengths."""
    return bounder.weights(NORMS.unsqueeze(0), 1.0)[0, 0] * NORMS


def torn(kept: Tensor) -> float:
    """The most by which two neighbours end further apart than they began, over what rounding explains."""
    return float((kept.diff().abs() - NORMS.diff()).max() / (4 * torch.finfo(torch.float64).eps * NORMS.max()))


def test_nearby_gradients_stay_near() -> None:
    assert torn(lengths(FlatClip(1.0))) <= 1
    # Negative control: two radii, one inside and one outside, tear neighbours apart.
    two_radii = NORMS.where(NORMS <= 1, torch.full_like(NORMS, ROUND_DOWN))
    assert torn(two_radii) > 1000


def test_inside_the_ball_nothing_changes_and_outside_nothing_exceeds_it() -> None:
    kept = lengths(FlatClip(1.0))
    inside = NORMS <= ROUND_DOWN
    assert torch.equal(kept[inside], NORMS[inside])
    assert float(kept.max()) <= 1.0
    assert float(kept[~inside].min()) >= ROUND_DOWN * (1 - 1e-15)


@pytest.mark.parametrize("residual", [0.5, 9.0])
def test_what_is_cut_off_is_the_rest_up_to_its_own_bound(residual: float) -> None:
    first, second = (TwoLevel(1.0, residual).weights(NORMS.unsqueeze(0), 1.0)[:, 0] * NORMS).unbind(0)
    hidden = FeedbackClip(1.0, preclip=1.0 + residual).hidden(NORMS.unsqueeze(0), 1.0)[0, 0] * NORMS
    assert torch.equal(hidden, second)
    assert torch.equal(first, lengths(FlatClip(1.0)))
    whole = residual >= NORMS
    torch.testing.assert_close((first + second)[whole], NORMS[whole], rtol=1e-14, atol=0)
    assert float(second.max()) <= residual
    assert torn(second) <= 1


def test_a_residual_that_drowns_in_rounding_is_refused() -> None:
    with pytest.raises(Refused, match="residual >= 1e-9"):
        TwoLevel(1.0, 1e-11)
