"""Conversion of vectors to hyperspherical coordinates and back, in O(d).

    r = |g|,  t_k = |(g_k, ..., g_d)|                      norms of tails
    theta_k = atan2(t_{k+1}, g_k) in [0, pi],  k <= d - 2,  theta_{d-1} = atan2(g_d, g_{d-1}) in (-pi, pi]
    g_k = r sin(theta_1) ... sin(theta_{k-1}) cos(theta_k),  g_d = r sin(theta_1) ... sin(theta_{d-1})

Everything is float64, and the last axis holds the coordinates. Tails are suffix sums of squares after division by the
largest entry. Products of sines are computed as sums of logarithms. Neither overflows, and values that underflow are
below 1e-150 of the norm. Where a tail is zero, its angle is 0 (or pi after a negative coordinate), so the zero vector
has r = 0 and angles 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor

_REMEDY = "use a model with at least two trainable parameters"


def to_spherical(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Norms [...] and angles [..., d - 1] of vectors [..., d]; entries must be finite."""
    size = vectors.shape[-1] if vectors.dim() else 0
    check.require(size >= 2, "vectors of at least 2 coordinates", f"{size}", _REMEDY)
    exact = vectors.double()
    largest = exact.abs().amax(-1, keepdim=True)
    scaled = exact / largest.masked_fill(largest == 0, 1)
    scaled += 0.0  # turn -0 into 0: atan2 distinguishes them
    # Sum from the end: all terms are non-negative, so every tail is accurate to rounding.
    tails = scaled.square().flip(-1).cumsum(-1).flip(-1).sqrt_()
    norms = tails[..., 0] * largest[..., 0]
    ends = tails[..., 1:]
    ends[..., -1] = scaled[..., -1]  # the last angle keeps the sign
    return norms, ends.atan2(scaled[..., :-1])


def from_spherical(norms: Tensor, angles: Tensor) -> Tensor:
    """Vectors [..., d] from norms [...] and angles [..., d - 1]. Norms may be negative, angles outside their range."""
    check.require(angles.dim() > 0 and angles.shape[-1] >= 1, "at least 1 angle", "none", _REMEDY)
    angles, norms = angles.double(), norms.double().unsqueeze(-1)
    sines = angles.sin()
    signs = sines.sign().cumprod(-1)
    lengths = (sines.abs_().log_().cumsum(-1) + norms.abs().log()).exp_().mul_(signs).mul_(norms.sign())
    vectors = angles.new_empty(*angles.shape[:-1], angles.shape[-1] + 1)
    vectors[..., :1] = norms
    vectors[..., 1:] = lengths
    vectors[..., :-1] *= angles.cos()
    return vectors


def middle(size: int, like: Tensor) -> Tensor:
    """The middle of every angle's range: pi/2, and 0 for the last. It serves as the initial public direction."""
    check.require(size >= 2, "vectors of at least 2 coordinates", f"{size}", _REMEDY)
    angles = like.new_full((size - 1,), math.pi / 2).double()
    angles.fill_(math.pi / 2)  # exact, if `like` has a narrower dtype
    angles[-1] = 0
    return angles


def canonical_(angles: Tensor) -> Tensor:
    """Bring angles back to their ranges, in place: wrap the last one and clamp the others to [0, pi]."""
    angles[..., :-1].clamp_(0, math.pi)
    angles[..., -1] = wrapped(angles[..., -1])
    return angles


def wrapped(angles: Tensor) -> Tensor:
    """Wrap angles to [-pi, pi)."""
    return (angles + math.pi).remainder(2 * math.pi) - math.pi
