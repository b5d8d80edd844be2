"""A charge in normal form: all Gaussian releases as one, other events counted; and its rounding."""

import functools
import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from discreet.accounting import gdp, sampled
from discreet.accounting.charges import Counted, canonical
from discreet.accounting.events import (
    BestOfRuns,
    Event,
    GroupPoissonSampled,
    LastIterateRun,
    NonPrivate,
    PoissonSampled,
    TruncatedPoissonSampled,
)
from discreet.accounting.rules import rule_for
from discreet.core.relation import Neighbouring

_MOST_NOISE, _LEAST_RATE = 1e6, 1e-9  # beyond these a step's losses leave the range of floats
_LEAST_NOISE = 1e-20  # less hides nothing: epsilon, of the order of 1/noise^2, counts as infinite


@final
@dataclass(frozen=True)
class NormalForm:
    """One Gaussian release at distance `mu`, and the other events. `lost`: a part of the run has no bound.

    total_variation   an upper bound of delta(0) of the run: the sum over its events; infinite if unknown
    """

    mu: float
    others: Counted
    relation: Neighbouring
    assumptions: tuple[str, ...]
    total_variation: float = math.inf

    @property
    def lost(self) -> bool:
        return math.isinf(self.mu)

    @property
    def count(self) -> int:
        """The number of losses in the sum."""
        return sum(count for _, count in self.others) + (1 if self.mu > 0 else 0)


@functools.lru_cache(maxsize=256)
def normal(certified: Counted, relation: Neighbouring) -> NormalForm:
    """The normal form. Refuses events that are unknown or not proven under the relation."""
    square, others, assumptions, distance = 0.0, [], set(), 0.0
    for event, count in certified:
        if isinstance(event, NonPrivate):
            square = math.inf
            assumptions.add("no bound is proven for a part of the run")
            continue
        rule = rule_for(event, relation)
        assumptions.update(rule.assumes)
        if rule.blocks is not None:
            event, blocks = rule.blocks(event)
            rule, count = rule_for(event, relation), count * blocks
        if isinstance(event, PoissonSampled):
            assumptions.update(rule_for(event.event, relation).assumes)
        if isinstance(event, BestOfRuns):
            within = [normal(canonical(candidate), relation) for candidate in event.candidates]
            assumptions.update(text for run in within for text in run.assumptions)
        mu = rule.mu(event, relation) if rule.mu is not None else None
        noise = sampled.multiplier_of(event.step if isinstance(event, LastIterateRun) else event)
        if noise is not None and noise < _LEAST_NOISE:
            square = math.inf
        elif mu is None:
            others.append((within_range(event), count))
            distance += count * sampled.total_variation(event, relation)
        else:
            square += count * mu * mu
    mu = math.sqrt(square) if square >= 0 else math.inf  # NaN is no bound
    distance = (distance + gdp.delta(mu, 0.0)) * (1 + 1e-9)  # above the rounding of the sum
    return NormalForm(mu, tuple(others), relation, tuple(sorted(assumptions)), distance)


def within_range(event: Event) -> Event:
    """Replace a step that costs almost nothing by one that costs slightly more and whose losses floats can represent.

    Less noise and a higher rate both cost more: more noise is post-processing, and sampling at q is sampling at q' > q
    followed by a draw with probability q/q'.

    >>> from discreet.accounting.events import Gaussian, PoissonSampled
    >>> within_range(PoissonSampled(1e-300, Gaussian(1e20)))
    PoissonSampled(rate=1e-09, event=Gaussian(noise=1000000.0))
    """
    noise = sampled.noise_of(event)
    if noise is not None and noise > _MOST_NOISE:
        event = sampled.with_noise(event, _MOST_NOISE)
    if isinstance(event, PoissonSampled | GroupPoissonSampled | TruncatedPoissonSampled) and event.rate < _LEAST_RATE:
        event = replace(event, rate=_LEAST_RATE)
    return event


def bucketed(run: NormalForm, most: int) -> NormalForm:
    """The run with at most `most` noise multipliers per sampler, each rounded DOWN, which costs more.

    Valid because adding noise is post-processing.
    """
    samplers: dict[Event, list[tuple[float, Event, int]]] = {}
    kept: list[tuple[Event, int]] = []
    for event, count in run.others:
        noise = sampled.multiplier_of(event)
        if noise is None:
            kept.append((event, count))
        else:
            samplers.setdefault(sampled.with_noise(event, 1.0), []).append((noise, event, count))
    for event, members in samplers.items():
        members.sort(key=lambda member: member[0])
        kept.extend(_rounded_down(members, most // 3 if sampled.is_projected(event) else most))
    return replace(run, others=canonical(kept))


def _rounded_down(members: list[tuple[float, Event, int]], most: int) -> list[tuple[Event, int]]:
    """Groups of neighbouring noise multipliers, each counted at its smallest.

    The borders are evenly spaced in the sum of sqrt(count * step of r), where r is the Rényi divergence of order 2.
    That almost minimises what rounding adds to r: about 1/most of it.
    """
    if len(members) <= most:
        return [(event, count) for _, event, count in members]
    noises = np.array([noise for noise, _, _ in members])
    counts = np.array([count for _, _, count in members], dtype=np.float64)
    rate = sampled.sampling_rate(members[0][1])
    cost = np.log1p(rate**2 * np.expm1(np.minimum(1 / noises**2, 600.0)))
    steps = np.sqrt(counts[1:] * np.maximum(-np.diff(cost), 0.0))
    place = np.append(0.0, np.cumsum(steps))
    bucket = np.floor(place / max(float(place[-1]), 1e-300) * most * (1 - 1e-12)).astype(int)
    groups: dict[int, list[int]] = {}
    for index, group in enumerate(bucket):
        groups.setdefault(int(group), []).append(index)
    return [(members[group[0]][1], sum(members[i][2] for i in group)) for group in groups.values()]
