"""Steps of last-iterate runs that tests bound directly, without an event: fields of `BoundedRun`."""

from __future__ import annotations

from typing import Any

from discreet.accounting import pld, rdp
from research.reproductions.dpsgd_dc.renyi import fixed_size_rdp

_LOG_TAIL = -50.0


def gaussian_step(*, noise: float) -> dict[str, Any]:
    """Full batch: one Gaussian."""
    return {
        "noise": noise,
        "pld": lambda z, grid: pld.gaussian(z, grid, _LOG_TAIL),
        "rdp": rdp.gaussian,
        "highest": lambda z: pld.highest_loss(1.0, z, _LOG_TAIL),
    }


def poisson_step(*, rate: float, noise: float) -> dict[str, Any]:
    """Poisson sampling, add/remove."""
    return {
        "noise": noise,
        "pld": lambda z, grid: pld.sampled_gaussian(rate, z, grid, _LOG_TAIL),
        "rdp": lambda z: rdp.sampled_gaussian(rate, z),
        "highest": lambda z: pld.highest_loss(rate, z, _LOG_TAIL),
    }


def fixed_size_step(*, rate: float, noise: float) -> dict[str, Any]:
    """A fixed size without replacement, replace-one: noise = sigma b / (2 C)."""
    return {
        "noise": noise,
        "pld": lambda z, grid: pld.without_replacement(rate, z, grid, _LOG_TAIL),
        "rdp": lambda z: fixed_size_rdp(rate=rate, noise=z),
        "highest": lambda z: pld.highest_loss(rate, z, _LOG_TAIL),
    }
