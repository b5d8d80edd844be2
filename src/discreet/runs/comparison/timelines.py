"""Noise, mask density and domain of a plan over its steps, from public settings only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from discreet.runs.comparison.values import PlanTimeline
from discreet.stages.plan import Plan

MOST = 400  # the most changes that are kept of a schedule


def timeline_of(plan: Plan) -> PlanTimeline:
    """The noise, the share of active coordinates and the domain of a bound plan.

    >>> from discreet import methods
    >>> plan = methods.random_freeze(final_rate=0.5, cooling_epochs=2)
    >>> plan = plan.for_budget(epsilon=3.0, delta=1e-5, records=1000, batch=100, epochs=3)
    >>> [(step, round(share, 3)) for step, share in timeline_of(plan).density]
    [(0, 1.0), (10, 0.5)]
    """
    steps = plan.horizon.steps
    every = max(1, math.ceil(steps / MOST))
    diameter = plan.domain.diameter
    return PlanTimeline(
        noise=tuple(_changes((step, plan.noise_at(step)) for step in range(0, steps, every))),
        density=tuple(_changes(_densities(plan))),
        diameter=diameter if math.isfinite(diameter) else None,
        visible=plan.analysis.visible,
    )


def _densities(plan: Plan) -> Iterator[tuple[int, float]]:
    """The density of each epoch. A selection gives the mean over a run, so this takes differences."""
    horizon, before = plan.horizon, 0.0
    for start in range(0, horizon.steps, horizon.steps_per_epoch):
        stop = min(start + horizon.steps_per_epoch, horizon.steps)
        active = plan.selection.density(dataclasses.replace(horizon, steps=stop)) * stop
        yield start, (active - before) / (stop - start)
        before = active


def _changes(values: Iterable[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    last: float | None = None
    for step, value in values:
        if last is None or not math.isclose(value, last, rel_tol=1e-9):
            yield step, value
            last = value
