"""Read first: one private step, the stages in order.

sampling gives a logical batch in micro-batches, selection its active coordinates; for each micro-batch
    engine       per-sample losses -> norms                      (add)
    bounding     norms -> weights, one record's influence <= C   (add)
    aggregation  weights -> bounded sums                         (add)
and then once, when the batch is complete,
    accounting   the charge goes to the ledger, on disk          (release)
    mechanism    bounded sums -> noisy sums, safe to publish     (release)
    combination  noisy sums -> one gradient                      (release)
    update       gradient / public batch -> the optimizer        (private.py)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from discreet.accounting.events import Event
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.stages.aggregation import Aggregation
from discreet.stages.context import StepContext
from discreet.stages.plan import Plan
from discreet.stages.values import PrivateState, Released


@final
@dataclass
class RunState:
    """The state of a run: the next step, the bounder's scale, what stages remember of releases; all public.

    secrets  the one exception: what the mechanism keeps to itself, never written down
    """

    step: int = 0
    scale: float = 1.0
    memory: dict[str, Tensor] = field(default_factory=dict)
    secrets: dict[str, PrivateState] = field(default_factory=dict, repr=False)


@final
class LogicalBatch:
    """One step of a plan, from its first micro-batch to its release."""

    def __init__(self, plan: Plan, engine: Engine, progress: RunState, streams: Streams) -> None:
        self._plan, self._engine, self._progress = plan, engine, progress
        now = StepContext(
            step=progress.step,
            steps_per_epoch=plan.known_horizon.steps_per_epoch,
            batch=plan.known_horizon.known_batch,
            layout=engine.layout,
            streams=streams,
            device=engine.device,
            memory=progress.memory,
            secrets=progress.secrets,
        )
        self._context = dataclasses.replace(now, mask=plan.selection.mask(now))
        # The one mask of the batch: every micro-batch is summed on it, and noise is drawn on it.
        mask, order = self._context.mask, plan.selection.order
        self._sums = Aggregation(plan.bounder, progress.scale, engine, mask, order, progress.memory)

    def add(self, losses: Tensor) -> None:
        """A micro-batch: its records enter the sums, each bounded; nothing leaves yet."""
        self._engine.backward(losses)
        self._sums.add()

    def release(self, charge: Callable[[Event, int], None], world: World) -> Released:
        """Pay, then publish: the charge is on disk before the noise is drawn."""
        plan, progress = self._plan, self._progress
        sums = self._sums.sums(world)
        context = dataclasses.replace(self._context, raw=sums.hidden)
        charge(plan.event_at(progress.step), progress.step)
        queries, multiplier = plan.queries(progress.scale), plan.noise_at(progress.step)
        noisy = plan.mechanism.release([*sums.vectors, *sums.scalars], queries, multiplier, context)
        for value in noisy:
            world.broadcast_(value)  # one draw of noise for all processes
        vectors, numbers = noisy[: len(sums.vectors)], [float(one) for one in noisy[len(sums.vectors) :]]
        gradient = plan.combination.gradient(vectors, numbers, context)
        progress.scale = plan.bounder.advance(progress.scale, numbers, context.batch)
        progress.step += 1
        released = Released.on(context.mask, gradient, context.layout, context.batch)
        plan.selection.observe(released, queries[0].std(multiplier) / context.batch, context)
        return released
