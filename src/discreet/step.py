"""Read first: one private step, the stages in order.

sampling gives a logical batch in micro-batches; for each of them
    engine       per-sample losses -> norms                      (add)
    bounding     norms -> weights, one record's influence <= C   (add)
    aggregation  weights -> bounded sums                         (add)
and then once, when the batch is complete,
    accounting   the charge goes to the ledger, on disk          (release)
    mechanism    bounded sums -> noisy sums, safe to publish     (release)
    update       noisy sum / public batch -> the optimizer       (private.py)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from discreet.accounting.events import Event
from discreet.core.streams import Stream
from discreet.core.world import World
from discreet.plan import Plan
from discreet.stages.aggregation import Aggregation
from discreet.stages.engine import Engine
from discreet.stages.values import Released


@final
@dataclass
class Progress:
    """The public state of a run: the next step and the bounder's scale."""

    step: int = 0
    scale: float = 1.0


@final
class LogicalBatch:
    """One step of a plan, from its first micro-batch to its release."""

    def __init__(self, plan: Plan, engine: Engine, progress: Progress) -> None:
        self._plan, self._engine, self._progress = plan, engine, progress
        self._sums = Aggregation(plan.bounder, progress.scale, engine, mask=None)

    def add(self, losses: Tensor) -> None:
        """A micro-batch: its records enter the sums, each bounded; nothing leaves yet."""
        self._engine.backward(losses)
        self._sums.add()

    def release(self, charge: Callable[[Event, int], None], noise: Stream, world: World) -> Released:
        """Pay, then publish: the charge is on disk before the noise is drawn."""
        plan, progress = self._plan, self._progress
        batch = plan.known_horizon.known_batch
        vectors, scalars = self._sums.sums(world)
        charge(plan.event_at(progress.step), progress.step)
        queries, multiplier = plan.queries(progress.scale), plan.noise_at(progress.step)
        noisy = plan.mechanism.release([*vectors, *scalars], queries, multiplier, noise)
        for value in noisy:
            world.broadcast_(value)  # one draw of noise for all processes
        gradient, counts = noisy[0], [float(count) for count in noisy[len(vectors) :]]
        progress.scale = plan.bounder.advance(progress.scale, counts, batch)
        progress.step += 1
        return Released(gradient.div_(batch), self._engine.layout)
