"""Steps of last-iterate runs that tests bound directly, without an event."""

from __future__ import annotations

from discreet.accounting import last_iterate as last
from discreet.accounting import pld, rdp
from research.reproductions.dpsgd_dc.renyi import fixed_size_rdp

_LOG_TAIL = -50.0


def gaussian_step(*, noise: float) -> last.StepBound:
    """Full batch: one Gaussian."""
    return last.StepBound(
        noise=noise,
        pld=lambda z, grid: pld.gaussian(z, grid, _LOG_TAIL),
        rdp=rdp.gaussian,
        highest=lambda z: pld.highest_loss(1.0, z, _LOG_TAIL),
    )


def poisson_step(*, rate: float, noise: float) -> last.StepBound:
    """Poisson sampling, add/remove."""
    return last.StepBound(
        noise=noise,
        pld=lambda z, grid: pld.sampled_gaussian(rate, z, grid, _LOG_TAIL),
        rdp=lambda z: rdp.sampled_gaussian(rate, z),
        highest=lambda z: pld.highest_loss(rate, z, _LOG_TAIL),
    )


def fixed_size_step(*, rate: float, noise: float) -> last.StepBound:
    """A fixed size without replacement, replace-one: noise = sigma b / (2 C)."""
    return last.StepBound(
        noise=noise,
        pld=lambda z, grid: pld.without_replacement(rate, z, grid, _LOG_TAIL),
        rdp=lambda z: fixed_size_rdp(rate=rate, noise=z),
        highest=lambda z: pld.highest_loss(rate, z, _LOG_TAIL),
    )
