"""Time several steps in turns, so that other work on the machine slows all of them equally."""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from research.benchmarks.models import MODELS, Task
from research.benchmarks.rows import AbsentError, Row, Step, own_copy

WARM_UP = 2
LEAST = 3  # repeats of a peer that would use its patience up


@final
@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one row: the median, the quartiles, and the median ratio to the first row of the same round."""

    seconds: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    repeats: int


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def interleave(
    steps: Mapping[str, Step], *, repeats: int, patience: float, hurried: Collection[str] = ()
) -> dict[str, Timing]:
    """Time all steps in turns, after warm-up.

    A row takes two steps when its turn comes, and the second one counts: the first pays for what the row before it
    left in caches and busy threads. A row of `hurried` that would take longer than `patience` seconds rests after
    fewer repeats, at least three.
    """
    rounds = dict.fromkeys(steps, repeats)
    for name, step in steps.items():
        once = _seconds(step)
        if name in hurried:
            rounds[name] = min(repeats, max(LEAST, int(patience / max(2 * once, 1e-9))))
        for _ in range(WARM_UP - 1 if rounds[name] > LEAST else 0):
            _seconds(step)
    first = next(iter(steps))
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    for turn in range(repeats):
        for name, step in steps.items():
            if turn < rounds[name]:
                step()
                times[name].append(_seconds(step))
    return {name: _timing(own, times[first]) for name, own in times.items()}


def _seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _timing(own: Sequence[float], first: Sequence[float]) -> Timing:
    low, middle, high = quartiles(own)
    ratio_low, ratio, ratio_high = quartiles([a / b for a, b in zip(own, first, strict=False)])
    return Timing(
        seconds=middle, low=low, high=high, ratio=ratio, ratio_low=ratio_low, ratio_high=ratio_high, repeats=len(own)
    )


@final
@dataclass(frozen=True, kw_only=True)
class Measured:
    """Timings of all rows of one model, and why some are absent."""

    batch: int
    parameters: int
    timings: dict[str, Timing]
    absent: dict[str, str]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and output of peers; standard output is for results."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def prepare(row: Row, task: Task) -> Step:
    """The row's step, which ran once."""
    with quiet():
        step = row.make(own_copy(task))
        step()
    return step


def measure(model: str, rows: Sequence[Row], *, repeats: int, patience: float) -> Measured:
    """Time all rows of one model that can run."""
    torch.manual_seed(0)
    task = MODELS[model].make()
    steps: dict[str, Step] = {}
    absent: dict[str, str] = {}
    for row in rows:
        try:
            steps[row.name] = prepare(row, task)
        except AbsentError as reason:
            absent[row.name] = str(reason)
        except Exception as error:
            if not row.is_peer:
                raise
            absent[row.name] = f"fails: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
    with quiet():
        peers = {row.name for row in rows if row.is_peer}
        timings = interleave(steps, repeats=repeats, patience=patience, hurried=peers)
    count = sum(parameter.numel() for parameter in task.model.parameters())
    return Measured(batch=task.batch, parameters=count, timings=timings, absent=absent)
