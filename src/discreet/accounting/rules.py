"""Which bound is proven for which event: one row per event, no ladder.

A rule turns an event into bounds for ONE occurrence; composition happens in `accountants`, once. This is also the
only place where a multiplier meets a relation: `units(relation)` clips are moved, so z against them is
noise / units(relation). dp-accounting would read the same z differently in its PLD (against C) and in its RDP
(against 2C), so nothing of ours ever passes it a relation to interpret.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from discreet.accounting import pld, rdp
from discreet.accounting.events import (
    BallsInBins,
    CountQuery,
    Event,
    Gaussian,
    PoissonSampled,
    ProjectedGaussian,
    Queries,
    SelectionQuery,
    ShuffledEpoch,
    TruncatedPoisson,
    Unamplified,
    WithoutReplacement,
    units,
)
from discreet.accounting.pld import Floats, Pld
from discreet.core import check
from discreet.core.relation import Neighbouring

_ADD_REMOVE = frozenset({Neighbouring.ADD_REMOVE})
_REPLACE_ONE = frozenset({Neighbouring.REPLACE_ONE})
_BOTH = _ADD_REMOVE | _REPLACE_ONE
Orders = tuple[float, ...]
_SAMPLED = (PoissonSampled, TruncatedPoisson, WithoutReplacement)


@final
@dataclass(frozen=True)
class Resolution:
    """How finely losses are resolved: the grid, and the logarithm of the mass a step may lose to infinity."""

    grid: float
    log_tail: float = -50.0

    @property
    def gaussian_log_tail(self) -> float:
        """Gaussian tails are cheap: never cut more than e^-50."""
        return max(-700.0, min(-50.0, self.log_tail))


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """The proven bounds of one kind of event.

    relations  where the proof holds; anything else is refused
    mu         the event IS a Gaussian release at this distance (None: it is not)
    pld, rdp   dominating loss distribution and Rényi divergence of one occurrence
    whole      a bound on epsilon at one delta for a run that is this event alone: (epsilon, name)
    assumes    what must be true outside of the mathematics, in words
    """

    relations: frozenset[Neighbouring]
    mu: Callable[[Any, Neighbouring], float | None] | None = None
    pld: Callable[[Any, Neighbouring, Resolution], Pld] | None = None
    rdp: Callable[[Any, Neighbouring, Orders], Floats] | None = None
    whole: Callable[[Any, Neighbouring, float], tuple[float, str]] | None = None
    assumes: tuple[str, ...] = ()


def rule_for(event: Event, relation: Neighbouring) -> Rule:
    """The rule of this event; refused where nothing is proven."""
    rule = RULES.get(type(event))
    if rule is None:
        check.refuse("an event with a proven bound", f"{event!r}", "add its rule and its proof, or charge NonPrivate()")
    if relation not in rule.relations:
        proven = " or ".join(sorted(str(r) for r in rule.relations))
        remedy = "choose that relation, or a sampler that is proven for yours"
        check.refuse(f"{event.kind} under {proven}", f"relation={relation}", remedy)
    return rule


def noise_of(event: Event) -> float | None:
    """The multiplier of a sampled Gaussian step; None for everything else."""
    if isinstance(event, PoissonSampled) and isinstance(event.event, ProjectedGaussian):
        return None
    return event.event.whitened.noise if isinstance(event, _SAMPLED) else None


def with_noise(event: Event, noise: float) -> Event:
    """The same sampled step with another multiplier."""
    assert isinstance(event, _SAMPLED)
    return replace(event, event=Gaussian(noise=noise))


def sampling_rate(event: Event) -> float:
    """The share of the records in a batch of a sampled step."""
    assert isinstance(event, _SAMPLED)
    return event.batch / event.records if isinstance(event, WithoutReplacement) else event.rate


# Gaussian releases -----------------------------------------------------------------------------------------


def _whitened_mu(event: Any, relation: Neighbouring) -> float:
    """units / z of the equivalent single Gaussian."""
    noise = event.whitened.noise
    return math.inf if noise == 0 else units(relation) / noise


def _nested_mu(event: Any, relation: Neighbouring) -> float:
    return _whitened_mu(event.event, relation)


def _balls_mu(event: BallsInBins, relation: Neighbouring) -> float:
    """One step an epoch holds the record: E Gaussians."""
    return math.sqrt(event.epochs) * _nested_mu(event, relation)


# Sampled releases -------------------------------------------------------------------------------------------


def _against(event: Any, relation: Neighbouring) -> float:
    """The multiplier against what one change of a record moves: the conversion, done once."""
    noise: float = event.whitened.noise / units(relation)
    return noise


def _poisson_mu(event: PoissonSampled, relation: Neighbouring) -> float | None:
    if isinstance(event.event, ProjectedGaussian):
        return math.inf if event.event.noise == 0 else None
    mu = _nested_mu(event, relation)
    return mu if event.rate == 1 or math.isinf(mu) else None


@functools.lru_cache(maxsize=256)
def _poisson_pld(event: PoissonSampled, relation: Neighbouring, resolution: Resolution) -> Pld:
    if isinstance(event.event, ProjectedGaussian):
        return _projected_pld(event.rate, event.event, relation, resolution)
    noise = _against(event.event, relation)
    return pld.sampled_gaussian(event.rate, noise, resolution.grid, resolution.gaussian_log_tail)


def _poisson_rdp(event: PoissonSampled, relation: Neighbouring, orders: Orders) -> Floats:
    if isinstance(event.event, ProjectedGaussian):
        return _projected_rdp(event.rate, event.event, relation, orders)
    return rdp.sampled_gaussian(event.rate, _against(event.event, relation), orders)


def overflow(event: TruncatedPoisson) -> float:
    """P(Bin(records - 1, rate) >= cap): how often the batch is full without the record, at most."""
    from scipy import stats

    return float(stats.binom.sf(event.cap - 1, event.records - 1, event.rate))


@functools.lru_cache(maxsize=256)
def _truncated_pld(event: TruncatedPoisson, relation: Neighbouring, resolution: Resolution) -> Pld:
    noise = _against(event.event, relation)
    free = pld.sampled_gaussian(event.rate, noise, resolution.grid, resolution.gaussian_log_tail)
    full_share = overflow(event)
    if full_share == 0:
        return free
    # A record that enters a full batch displaces another: twice the distance, at most the same rate.
    full = pld.sampled_gaussian(event.rate, noise / 2, resolution.grid, resolution.gaussian_log_tail)
    return Pld(
        pld.mix([(full_share, full.with_without), (1 - full_share, free.with_without)]),
        pld.mix([(full_share, full.without_with), (1 - full_share, free.without_with)]),
    )


def _truncated_rdp(event: TruncatedPoisson, relation: Neighbouring, orders: Orders) -> Floats:
    noise, full_share, a = _against(event.event, relation), overflow(event), np.array(orders) - 1
    free = rdp.sampled_gaussian(event.rate, noise, orders)
    if full_share == 0:
        return free
    full = rdp.sampled_gaussian(event.rate, noise / 2, orders)
    moments = np.logaddexp(math.log(full_share) + a * full, math.log1p(-full_share) + a * free)
    return np.asarray(moments / a)


def _truncated_mu(event: TruncatedPoisson, relation: Neighbouring) -> float | None:
    return math.inf if event.event.whitened.noise == 0 else None


def _without_mu(event: WithoutReplacement, relation: Neighbouring) -> float | None:
    mu = _nested_mu(event, relation)
    return mu if event.batch == event.records or math.isinf(mu) else None


@functools.lru_cache(maxsize=256)
def _without_pld(event: WithoutReplacement, relation: Neighbouring, resolution: Resolution) -> Pld:
    rate = event.batch / event.records
    noise = _against(event.event, relation)
    return pld.without_replacement(rate, noise, resolution.grid, resolution.gaussian_log_tail)


@functools.lru_cache(maxsize=256)
def _without_rdp_values(rate: float, noise: float, orders: Orders) -> tuple[float, ...]:
    """dp-accounting's bound [Wang et al. 2019, Theorem 27] at small integer orders; its noise is against 2C."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    whole = [order for order in orders if order.is_integer() and order <= 64]
    accountant = RdpAccountant(whole, dp_accounting.NeighboringRelation.REPLACE_ONE)
    size = 10**9
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(
        size, round(rate * size), dp_accounting.GaussianDpEvent(noise)
    )
    accountant.compose(sampled)
    found = dict(zip(whole, accountant._rdp, strict=True))
    return tuple(float(found.get(order, math.inf)) for order in orders)


def _without_rdp(event: WithoutReplacement, relation: Neighbouring, orders: Orders) -> Floats:
    rate = event.batch / event.records
    return np.array(_without_rdp_values(rate, _against(event.event, relation), orders))


# Mixtures and whole runs, whose mathematics have files of their own -------------------------------------------


def _projected_pld(rate: float, event: ProjectedGaussian, relation: Neighbouring, resolution: Resolution) -> Pld:
    from discreet.accounting import projected

    noise, tail = event.noise / units(relation), min(1e-13, math.exp(max(-700.0, resolution.log_tail)))
    return projected.pld_step(rate=rate, noise=noise, dims=event.dims, grid=resolution.grid, tail=tail)


def _projected_rdp(rate: float, event: ProjectedGaussian, relation: Neighbouring, orders: Orders) -> Floats:
    from discreet.accounting import projected

    return projected.rdp(rate=rate, noise=event.noise / units(relation), dims=event.dims, orders=orders)


def _full_projected_pld(event: ProjectedGaussian, relation: Neighbouring, resolution: Resolution) -> Pld:
    return _projected_pld(1.0, event, relation, resolution)


def _full_projected_rdp(event: ProjectedGaussian, relation: Neighbouring, orders: Orders) -> Floats:
    return _projected_rdp(1.0, event, relation, orders)


def _projected_mu(event: ProjectedGaussian, relation: Neighbouring) -> float | None:
    return math.inf if event.noise == 0 else None


_FRESH_MATRIX = "the projection matrix is drawn after the data is fixed, independently of it, and afresh for each step"
_POISSON = "each record is sampled independently with the stated rate, and the sample itself stays hidden"
_LOADER = "which other records share a batch does not depend on the presence of any one record"

_GAUSSIAN = Rule(relations=_BOTH, mu=_whitened_mu)

RULES: dict[type[Event], Rule] = {
    Gaussian: _GAUSSIAN,
    CountQuery: _GAUSSIAN,
    SelectionQuery: _GAUSSIAN,
    Queries: _GAUSSIAN,
    ProjectedGaussian: Rule(
        relations=_BOTH,
        mu=_projected_mu,
        pld=_full_projected_pld,
        rdp=_full_projected_rdp,
        assumes=(_FRESH_MATRIX,),
    ),
    PoissonSampled: Rule(
        relations=_ADD_REMOVE, mu=_poisson_mu, pld=_poisson_pld, rdp=_poisson_rdp, assumes=(_POISSON,)
    ),
    TruncatedPoisson: Rule(
        relations=_ADD_REMOVE,
        mu=_truncated_mu,
        pld=_truncated_pld,
        rdp=_truncated_rdp,
        assumes=(_POISSON, "the data never holds more records than the stated public bound"),
    ),
    WithoutReplacement: Rule(
        relations=_REPLACE_ONE,
        mu=_without_mu,
        pld=_without_pld,
        rdp=_without_rdp,
        assumes=("every batch is a uniform subset of the stated size, and stays hidden",),
    ),
    BallsInBins: Rule(
        relations=_BOTH,
        mu=_balls_mu,
        assumes=("in every epoch each record joins one step, chosen independently of the other records",),
    ),
    ShuffledEpoch: Rule(
        relations=_REPLACE_ONE, mu=_nested_mu, assumes=("in every epoch each record joins exactly one step",)
    ),
    Unamplified: Rule(relations=_BOTH, mu=_nested_mu, assumes=(_LOADER,)),
}
