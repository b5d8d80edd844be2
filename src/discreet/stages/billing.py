"""The privacy cost of a run's steps as events with counts, from its sampling, noise schedule and release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from discreet.accounting import events
from discreet.stages.sampling import Horizon, Sampling
from discreet.stages.schedule import Schedule

Bill = tuple[tuple[events.Event, int], ...]


def bill_run(
    sampling: Sampling, schedule: Schedule, release: Callable[[float], Any], horizon: Horizon, start: int, stop: int
) -> Bill:
    """The cost of the steps from `start` up to `stop`.

    `release(factor)` is the event of one release before sampling, with the noise multiplied by `factor`.
    """
    per_epoch = horizon.steps_per_epoch
    if not sampling.per_epoch:
        pieces = schedule.pieces(start, stop, per_epoch)
        return tuple((_billed(sampling, release(factor), horizon), count) for factor, count in pieces)
    first = -(-start // per_epoch) * per_epoch
    return tuple((event_at(sampling, schedule, release, horizon, step), 1) for step in range(first, stop, per_epoch))


def event_at(
    sampling: Sampling, schedule: Schedule, release: Callable[[float], Any], horizon: Horizon, step: int
) -> events.Event:
    """The charge due at `step`.

    If one charge covers an epoch, it is due at the first step and uses the smallest noise of the epoch; the other
    steps are free.
    """
    per_epoch = horizon.steps_per_epoch
    if not sampling.per_epoch:
        return _billed(sampling, release(schedule.factor(step, per_epoch)), horizon)
    if step % per_epoch:
        return events.Free()
    stop = min(step + per_epoch, horizon.steps)
    least = min(factor for factor, _ in schedule.pieces(step, stop, per_epoch))
    return _billed(sampling, release(least), horizon)


def _billed(sampling: Sampling, release: Any, horizon: Horizon) -> events.Event:
    """The event of a sampled release; sampling does not make a non-private release private."""
    return release if isinstance(release, events.NonPrivate) else sampling.bill(release, horizon)
