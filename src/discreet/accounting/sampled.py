"""Bounds of one step: a Gaussian or projected release, on all records or on a sample.

Only this file divides a multiplier by `units(relation)`, the number of clips by which neighbours differ.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from discreet.accounting import gdp, pld, projected, rdp, special
from discreet.accounting.events import (
    BallsInBinsEpoch,
    Event,
    Gaussian,
    LastIterateRun,
    PoissonSampled,
    ProjectedGaussian,
    TruncatedPoissonSampled,
    Unamplified,
    WithoutReplacement,
    units,
)
from discreet.accounting.pld import Floats, Parts, Pld, Resolution
from discreet.accounting.rdp import Orders
from discreet.core.relation import Neighbouring

_SAMPLED = (PoissonSampled, TruncatedPoissonSampled, WithoutReplacement)


def noise_of(event: Event) -> float | None:
    """The multiplier of a sampled Gaussian step; None for other events."""
    if not isinstance(event, _SAMPLED) or isinstance(event.event, ProjectedGaussian):
        return None
    return event.event.whitened.noise


def multiplier_of(event: Event) -> float | None:
    """The multiplier of a step, projected or not, that a schedule may change; None for other events."""
    release = event.event if isinstance(event, PoissonSampled) else event
    return release.noise if isinstance(release, ProjectedGaussian) else noise_of(event)


def furthest_move(event: Event, relation: Neighbouring) -> float:
    """By how many clips a sampled step changes at most: a record that enters a full batch displaces another."""
    return 2 * units(relation) if isinstance(event, TruncatedPoissonSampled) else units(relation)


def highest_loss(event: Event, relation: Neighbouring, log_tail: float) -> float:
    """The highest finite loss of one step.

    0 for a run of clipped feedback: `feedback` limits its own grid.
    """
    if isinstance(event, LastIterateRun):
        return highest_loss(event.step, relation, log_tail)
    noise = noise_of(event)
    if noise is not None:
        return pld.highest_loss(sampling_rate(event), noise / furthest_move(event, relation), log_tail)
    release = event.event if isinstance(event, PoissonSampled) else event
    if not isinstance(release, ProjectedGaussian):
        return 0.0
    noise, tail = release.noise / units(relation), _projected_tail(log_tail)
    return projected.highest_loss(rate=sampling_rate(event), noise=noise, dims=release.dims, tail=tail)


def is_projected(event: Event) -> bool:
    """Whether the loss distribution of a step is a mixture over projections, which takes much more work."""
    return multiplier_of(event) is not None and noise_of(event) is None


def unsampled_mu(event: Event, relation: Neighbouring) -> float:
    """The Gaussian that bounds a sampled step without its sampling; infinite for other events."""
    if isinstance(event, LastIterateRun):
        return math.sqrt(event.steps) * unsampled_mu(event.step, relation)
    noise = noise_of(event)
    return math.inf if not noise else furthest_move(event, relation) / noise


def total_variation(event: Event, relation: Neighbouring) -> float:
    """delta(0) of a sampled Gaussian step, q (2 Phi(mu / 2) - 1); infinite if no closed form is known."""
    if isinstance(event, LastIterateRun):
        return event.steps * total_variation(event.step, relation)
    noise = noise_of(event)
    if not noise:
        return math.inf
    near, far = (gdp.delta(units(relation) / noise, 0.0), gdp.delta(furthest_move(event, relation) / noise, 0.0))
    full = overflow(event) if isinstance(event, TruncatedPoissonSampled) else 0.0
    return sampling_rate(event) * ((1 - full) * near + full * far)


def with_noise(event: Event, noise: float) -> Event:
    if isinstance(event, ProjectedGaussian):
        return replace(event, noise=noise)
    assert isinstance(event, _SAMPLED)
    if isinstance(event.event, ProjectedGaussian):
        return replace(event, event=replace(event.event, noise=noise))
    return replace(event, event=Gaussian(noise=noise))


def sampling_rate(event: Event) -> float:
    """The fraction of the records in the batch of a step."""
    if isinstance(event, ProjectedGaussian):
        return 1.0
    assert isinstance(event, _SAMPLED)
    return event.batch / event.records if isinstance(event, WithoutReplacement) else event.rate


def whitened_mu(event: Any, relation: Neighbouring) -> float:
    """units / z of the equivalent single Gaussian."""
    noise = event.whitened.noise
    return math.inf if noise == 0 else units(relation) / noise


def nested_mu(event: Any, relation: Neighbouring) -> float:
    """The same for an event without amplification by its sampling."""
    return whitened_mu(event.event, relation)


def loader_mu(event: Unamplified, relation: Neighbouring) -> float:
    """2 / z under either relation: an extra record shifts the later ones, so every batch changes by one exchange."""
    noise = event.event.whitened.noise
    return math.inf if noise == 0 else 2.0 / noise


def balls_mu(event: BallsInBinsEpoch, relation: Neighbouring) -> float:
    """One step of each epoch contains the record: E Gaussians."""
    return math.sqrt(event.epochs) * nested_mu(event, relation)


def _against(event: Any, relation: Neighbouring) -> float:
    """The multiplier relative to the change that one record causes."""
    noise: float = event.whitened.noise / units(relation)
    return noise


def poisson_mu(event: PoissonSampled, relation: Neighbouring) -> float | None:
    """A Gaussian only if everything is sampled, or if there is no noise."""
    if isinstance(event.event, ProjectedGaussian):
        return math.inf if event.event.noise == 0 else None
    mu = nested_mu(event, relation)
    return mu if event.rate == 1 or math.isinf(mu) else None


@functools.lru_cache(maxsize=32)
def poisson_pld(event: PoissonSampled, relation: Neighbouring, resolution: Resolution) -> Parts:
    """(1-q) N(0) + q N(1) against N(0), and back."""
    if isinstance(event.event, ProjectedGaussian):
        noise, tail = event.event.noise / units(relation), _projected_tail(resolution.log_tail)
        step = projected.pld_step(rate=event.rate, noise=noise, dims=event.event.dims, grid=resolution.grid, tail=tail)
        return [(step, 1)]
    noise = _against(event.event, relation)
    return [(pld.sampled_gaussian(event.rate, noise, resolution.grid, resolution.gaussian_log_tail), 1)]


def poisson_rdp(event: PoissonSampled, relation: Neighbouring, orders: Orders) -> Floats:
    """The larger direction of the same pair."""
    if isinstance(event.event, ProjectedGaussian):
        noise = event.event.noise / units(relation)
        return projected.rdp(rate=event.rate, noise=noise, dims=event.event.dims, orders=orders)
    return rdp.sampled_gaussian(event.rate, _against(event.event, relation), orders)


def overflow(event: TruncatedPoissonSampled) -> float:
    """P(Bin(records - 1, rate) >= cap): an upper bound on how often the batch is full without the record."""
    return special.binomial_above(event.cap - 1, event.records - 1, event.rate)


@functools.lru_cache(maxsize=64)
def truncated_pld(event: TruncatedPoissonSampled, relation: Neighbouring, resolution: Resolution) -> Parts:
    """A public draw with probability `overflow`: the pair at distance 2, else the pair at distance 1."""
    noise = _against(event.event, relation)
    free = pld.sampled_gaussian(event.rate, noise, resolution.grid, resolution.gaussian_log_tail)
    full_share = overflow(event)
    if full_share == 0:
        return [(free, 1)]
    # A record that enters a full batch displaces another: twice the distance, at most the same rate.
    full = pld.sampled_gaussian(event.rate, noise / 2, resolution.grid, resolution.gaussian_log_tail)
    mixed = Pld(
        pld.mix([(full_share, full.with_without), (1 - full_share, free.with_without)]),
        pld.mix([(full_share, full.without_with), (1 - full_share, free.without_with)]),
    )
    return [(mixed, 1)]


def truncated_rdp(event: TruncatedPoissonSampled, relation: Neighbouring, orders: Orders) -> Floats:
    """The mixture of the moments of the same two pairs."""
    noise, full_share, a = _against(event.event, relation), overflow(event), np.array(orders) - 1
    free = rdp.sampled_gaussian(event.rate, noise, orders)
    full = rdp.sampled_gaussian(event.rate, noise / 2, orders)
    if full_share in (0.0, 1.0):
        return full if full_share else free
    moments = np.logaddexp(math.log(full_share) + a * full, math.log1p(-full_share) + a * free)
    return np.asarray(moments / a)


def truncated_mu(event: TruncatedPoissonSampled, relation: Neighbouring) -> float | None:
    """A Gaussian only if there is no noise."""
    return math.inf if event.event.whitened.noise == 0 else None


def without_mu(event: WithoutReplacement, relation: Neighbouring) -> float | None:
    """A Gaussian only if every record is in the batch, or if there is no noise."""
    mu = nested_mu(event, relation)
    return mu if event.batch == event.records or math.isinf(mu) else None


@functools.lru_cache(maxsize=64)
def without_pld(event: WithoutReplacement, relation: Neighbouring, resolution: Resolution) -> Parts:
    """The curve q delta(eps) at log(1 + q (e^eps - 1)), and its mirror image."""
    rate, noise = sampling_rate(event), _against(event.event, relation)
    return [(pld.without_replacement(rate, noise, resolution.grid, resolution.gaussian_log_tail), 1)]


def without_rdp(event: WithoutReplacement, relation: Neighbouring, orders: Orders) -> Floats:
    """The bound of a batch of fixed size; infinite at orders that it does not cover."""
    return rdp.without_replacement(sampling_rate(event), _against(event.event, relation), orders)


def _projected_tail(log_tail: float) -> float:
    return min(1e-13, math.exp(max(-700.0, log_tail)))


def full_projected_pld(event: ProjectedGaussian, relation: Neighbouring, resolution: Resolution) -> Parts:
    return poisson_pld(PoissonSampled(1.0, event), relation, resolution)


def full_projected_rdp(event: ProjectedGaussian, relation: Neighbouring, orders: Orders) -> Floats:
    return poisson_rdp(PoissonSampled(1.0, event), relation, orders)


def projected_mu(event: ProjectedGaussian, relation: Neighbouring) -> float | None:
    return math.inf if event.noise == 0 else None
