"""What the steps of a run cost: from a sampling, a noise schedule and one release to events with counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from discreet.accounting import events
from discreet.stages.sampling import Horizon, Sampling
from discreet.stages.schedule import Schedule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]


Bill = tuple[tuple[events.Event, int], ...]


def bill_run(
    sampling: Sampling,
    schedule: Schedule,
    release: Callable[[float], Any],
    horizon: Horizon,
    start: int,
    stop: int,
) -> Bill:
    """What steps start..stop cost, where `release(factor)` is one release before sampling."""
    per_epoch = horizon.steps_per_epoch
    if not sampling.per_epoch:
        pieces = schedule.pieces(start, stop, per_epoch)
        return tuple((_billed(sampling, release(factor), horizon), count) for factor, count in pieces)
    first = -(-start // per_epoch) * per_epoch
    return tuple(
        (event_at(sampling, schedule, release, horizon, step), 1) for step in range(first, stop, per_epoch)
    )


def event_at(
    sampling: Sampling, schedule: Schedule, release: Callable[[float], Any], horizon: Horizon, step: int
) -> events.Event:
    """The charge due at `step`: free inside a paid epoch; an epoch costs its least noisy step."""
    per_epoch = horizon.steps_per_epoch
    if not sampling.per_epoch:
        return _billed(sampling, release(schedule.factor(step, per_epoch)), horizon)
    if step % per_epoch:
        return events.Free()
    stop = min(step + per_epoch, horizon.steps)
    least = min(factor for factor, _ in schedule.pieces(step, stop, per_epoch))
    return _billed(sampling, release(least), horizon)


def _billed(sampling: Sampling, release: Any, horizon: Horizon) -> events.Event:
    """What is not private stays so, however few records it sees."""
    return release if isinstance(release, events.NonPrivate) else sampling.bill(release, horizon)
