"""Bounds of one step: a Gaussian or projected release, on all records or on a sample.

Only this file divides a multiplier by `units(relation)`, the number of clips by which neighbours differ.
"""

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from discreet.accounting import events, gdp, group_sampled, pld, projected, rdp, special
from discreet.accounting.events import Event, ProjectedGaussian, units
from discreet.accounting.pld import Floats, Parts, Pld, Resolution
from discreet.accounting.rdp import Orders
from discreet.core.relation import Neighbouring

_POISSON = (events.PoissonSampled, events.GroupPoissonSampled, events.TruncatedPoissonSampled)
_SAMPLED = (*_POISSON, events.WithoutReplacement)


def _release(event: Event) -> Event:
    """The release of a step, without its sampling."""
    return event.event if isinstance(event, _SAMPLED) else event


def is_projected(event: Event) -> bool:
    """Whether the loss distribution of a step is a mixture over projections, which takes much more work."""
    return isinstance(_release(event), ProjectedGaussian)


def noise_of(event: Event) -> float | None:
    """The multiplier of a sampled Gaussian step; None for other events."""
    if not isinstance(event, _SAMPLED) or isinstance(event.event, ProjectedGaussian):
        return None
    return event.event.whitened.noise


def multiplier_of(event: Event) -> float | None:
    """The multiplier of a step, projected or not, that a schedule may change; None for other events."""
    release = _release(event)
    return release.noise if isinstance(release, ProjectedGaussian) else noise_of(event)


def furthest_move(event: Event, relation: Neighbouring) -> float:
    """By how many clips a sampled step changes at most: a record that enters a full batch displaces another."""
    if isinstance(event, events.GroupPoissonSampled):
        return event.most * units(relation)
    return 2 * units(relation) if isinstance(event, events.TruncatedPoissonSampled) else units(relation)


def highest_loss(event: Event, relation: Neighbouring, log_tail: float) -> float:
    """The highest finite loss of one step; 0 for a run of clipped feedback: `feedback` limits its own grid."""
    if isinstance(event, events.LastIterateRun):
        return highest_loss(event.step, relation, log_tail)
    if isinstance(event, events.GroupPoissonSampled):
        return group_sampled.highest_loss(event, relation, log_tail)
    noise = noise_of(event)
    if noise is not None:
        return pld.highest_loss(sampling_rate(event), noise / furthest_move(event, relation), log_tail)
    release = _release(event)
    if not isinstance(release, ProjectedGaussian):
        return 0.0
    noise, tail = release.noise / units(relation), _projected_tail(log_tail)
    return projected.highest_loss(rate=sampling_rate(event), noise=noise, dims=release.dims, tail=tail)


def unsampled_mu(event: Event, relation: Neighbouring) -> float:
    """The Gaussian that bounds a sampled step without its sampling; infinite for other events."""
    if isinstance(event, events.LastIterateRun):
        return math.sqrt(event.steps) * unsampled_mu(event.step, relation)
    noise = noise_of(event)
    return math.inf if not noise else furthest_move(event, relation) / noise


def total_variation(event: Event, relation: Neighbouring) -> float:
    """delta(0) of a sampled Gaussian step, q (2 Phi(mu / 2) - 1); infinite if no closed form is known."""
    if isinstance(event, events.LastIterateRun):
        return event.steps * total_variation(event.step, relation)
    if isinstance(event, events.GroupPoissonSampled):
        return group_sampled.total_variation(event, relation)
    noise = noise_of(event)
    if not noise:
        return math.inf
    near, far = (gdp.delta(units(relation) / noise, 0.0), gdp.delta(furthest_move(event, relation) / noise, 0.0))
    full = overflow(event) if isinstance(event, events.TruncatedPoissonSampled) else 0.0
    return sampling_rate(event) * ((1 - full) * near + full * far)


def with_noise(event: Any, noise: float) -> Any:
    """A step with another multiplier."""
    if isinstance(event, ProjectedGaussian):
        return replace(event, noise=noise)
    assert isinstance(event, _SAMPLED)
    release = with_noise(event.event, noise) if is_projected(event) else events.Gaussian(noise)
    return replace(event, event=release)


def sampling_rate(event: Event) -> float:
    """The fraction of the records in the batch of a step."""
    if isinstance(event, ProjectedGaussian):
        return 1.0
    assert isinstance(event, _SAMPLED)
    return event.batch / event.records if isinstance(event, events.WithoutReplacement) else event.rate


def whitened_mu(event: Any, relation: Neighbouring) -> float:
    """units / z of the equivalent single Gaussian."""
    noise = event.whitened.noise
    return math.inf if noise == 0 else units(relation) / noise


def noiseless_mu(event: Any, relation: Neighbouring) -> float | None:
    """Infinite without noise; with noise the event is no Gaussian."""
    return math.inf if multiplier_of(event) == 0 else None


def loader_mu(event: events.Unamplified, relation: Neighbouring) -> float:
    """2 / z under either relation: an extra record shifts the later ones of its pass, each batch by one exchange."""
    return whitened_mu(event.event, Neighbouring.REPLACE_ONE)


def balls_mu(event: events.BallsInBinsEpoch, relation: Neighbouring) -> float:
    """One step of each epoch contains the record: E Gaussians."""
    return math.sqrt(event.epochs) * whitened_mu(event.event, relation)


def _against(event: Any, relation: Neighbouring) -> float:
    """The multiplier relative to the change that one record causes."""
    return float(event.whitened.noise / units(relation))


def poisson_mu(event: events.PoissonSampled, relation: Neighbouring) -> float | None:
    """A Gaussian only if everything is sampled, or if there is no noise."""
    if event.rate < 1 or isinstance(event.event, ProjectedGaussian):
        return noiseless_mu(event, relation)
    return whitened_mu(event.event, relation)


@functools.lru_cache(maxsize=32)
def poisson_pld(
    event: events.PoissonSampled | ProjectedGaussian, relation: Neighbouring, resolution: Resolution
) -> Parts:
    """(1-q) N(0) + q N(1) against N(0), and back."""
    rate, release, grid = sampling_rate(event), _release(event), resolution.grid
    if isinstance(release, ProjectedGaussian):
        noise, tail = release.noise / units(relation), _projected_tail(resolution.log_tail)
        return [(projected.pld_step(rate=rate, noise=noise, dims=release.dims, grid=grid, tail=tail), 1)]
    return [(pld.sampled_gaussian(rate, _against(release, relation), grid, resolution.gaussian_log_tail), 1)]


def poisson_rdp(event: events.PoissonSampled | ProjectedGaussian, relation: Neighbouring, orders: Orders) -> Floats:
    """The larger direction of the same pair."""
    rate, release = sampling_rate(event), _release(event)
    if isinstance(release, ProjectedGaussian):
        return projected.rdp(rate=rate, noise=release.noise / units(relation), dims=release.dims, orders=orders)
    return rdp.sampled_gaussian(rate, _against(release, relation), orders)


def overflow(event: events.TruncatedPoissonSampled) -> float:
    """P(Bin(records - 1, rate) >= cap): an upper bound on how often the batch is full without the record."""
    return special.binomial_above(event.cap - 1, event.records - 1, event.rate)


@functools.lru_cache(maxsize=64)
def truncated_pld(event: events.TruncatedPoissonSampled, relation: Neighbouring, resolution: Resolution) -> Parts:
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


def truncated_rdp(event: events.TruncatedPoissonSampled, relation: Neighbouring, orders: Orders) -> Floats:
    """The mixture of the moments of the same two pairs."""
    noise, full_share, a = _against(event.event, relation), overflow(event), np.array(orders) - 1
    free = rdp.sampled_gaussian(event.rate, noise, orders)
    full = rdp.sampled_gaussian(event.rate, noise / 2, orders)
    if full_share in (0.0, 1.0):
        return full if full_share else free
    moments = np.logaddexp(math.log(full_share) + a * full, math.log1p(-full_share) + a * free)
    return np.asarray(moments / a)


def without_mu(event: events.WithoutReplacement, relation: Neighbouring) -> float | None:
    """A Gaussian only if every record is in the batch, or if there is no noise."""
    return whitened_mu(event.event, relation) if event.batch == event.records else noiseless_mu(event, relation)


@functools.lru_cache(maxsize=64)
def without_pld(event: events.WithoutReplacement, relation: Neighbouring, resolution: Resolution) -> Parts:
    """The curve q delta(eps) at log(1 + q (e^eps - 1)), and its mirror image."""
    rate, noise = sampling_rate(event), _against(event.event, relation)
    return [(pld.without_replacement(rate, noise, resolution.grid, resolution.gaussian_log_tail), 1)]


def without_rdp(event: events.WithoutReplacement, relation: Neighbouring, orders: Orders) -> Floats:
    """The bound of a batch of fixed size; infinite at orders that it does not cover."""
    return rdp.without_replacement(sampling_rate(event), _against(event.event, relation), orders)


def _projected_tail(log_tail: float) -> float:
    return min(1e-13, math.exp(max(-700.0, log_tail)))
