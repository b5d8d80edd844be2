"""One private step, with its stages in order. Read this module first.

Sampling draws a logical batch and cuts it into micro-batches. Selection chooses the active coordinates.
If the bounder needs public records, it learns from them first                (learn)
For each micro-batch:
    engine       per-record losses -> gradient norms of records or users   (add)
    clipping     norms -> weights that bound each contribution             (add)
    aggregation  weights -> bounded sums, and counts of touched rows       (add)
Once, when the logical batch is complete:
    accounting   write the charge to the ledger on disk                    (release)
    selection    if the plan counts rows: noisy counts -> active rows      (release)
    mechanism    bounded sums -> noisy sums, which are safe to publish     (release)
    combination  noisy sums -> one gradient                                (release)
    update       optimizer step on gradient / public batch size            (update)
    domain       project the parameters to the domain                      (update)
    acceptance   if the plan tests updates: a noisy test on a fresh batch  (test)
    average      if requested: update the average of the parameters        (keep)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from discreet.accounting.events import Event
from discreet.core.streams import Indices, Streams
from discreet.core.world import World
from discreet.engine.contributions import Contributions
from discreet.engine.engine import Engine
from discreet.engine.factors.groups import UnitRows
from discreet.engine.layout import Mask
from discreet.engine.model.state import ModelBetweenBatches
from discreet.engine.shards.local import share
from discreet.stages.aggregation import Aggregation, RowCounts, sum_of_numbers
from discreet.stages.clipping import Query
from discreet.stages.noise import Mechanism
from discreet.stages.plan import Plan
from discreet.stages.update import update
from discreet.stages.values import BoundedSum, PrivateState, Released, StepContext
from discreet.training.agreement import Replica, Ways
from discreet.training.averaging import Average
from discreet.training.candidate import CandidateUpdate
from discreet.training.handover import Handover

INITIAL = "domain.initial"  # key of the initial parameters in the run's memory

Pay = Callable[[Event, int], None]
"""Writes the charge of a step to the ledger. It is called before the corresponding release."""


@final
@dataclass
class RunState:
    """The state of a run. Everything except `secrets` is public.

    step     the next step
    scale    the bounder's state
    memory   tensors that stages keep between steps; released values only
    secrets  hidden state of the mechanism; it is never saved
    """

    step: int = 0
    scale: float = 1.0
    memory: dict[str, Tensor] = field(default_factory=dict)
    secrets: dict[str, PrivateState] = field(default_factory=dict, repr=False)


@final
class PrivateStep:
    """One step of a plan, from the first micro-batch to the updated parameters.

    Guarantee: information about the records is released by `_add_noise` only, after `_pay` has recorded the charge.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Contributions,
        state: RunState,
        streams: Streams,
        pay: Pay,
        world: World,
        replica: Replica | None = None,
    ) -> None:
        self._plan, self._engine, self._state, self._pay, self._world = plan, engine, state, pay, world
        now = StepContext(
            step=state.step,
            steps_per_epoch=plan.horizon.steps_per_epoch,
            batch=plan.horizon.size.batch,
            layout=engine.held,
            streams=streams,
            device=engine.device,
            memory=state.memory,
            secrets=state.secrets,
            world=engine.holders(world),
        )
        self._context = dataclasses.replace(now, mask=plan.selection.mask(now))
        # One mask for the whole logical batch: all micro-batches are summed, and the noise is drawn, on it.
        mask, order = self._context.mask, plan.selection.order
        self._sums = Aggregation(plan.bounder, state.scale, engine, mask, order, state.memory)
        counting = plan.selection.counting
        self._rows = (
            None if counting is None or not counting.tables(engine.layout) else RowCounts(counting, self._model)
        )
        if counting is None:  # else the counts decide how much noise is drawn
            plan.mechanism.prepare(self._context)
        self._learning = plan.bounder.learning(self._context)
        self._candidate: CandidateUpdate | None = None
        self._ways = Ways(world, engine.holders(world), replica)

    @property
    def is_testing(self) -> bool:
        """Whether the gradient has been released and its update is being tested on a fresh batch."""
        return self._candidate is not None

    @property
    def is_learning(self) -> bool:
        """Whether the bounder still has to learn from public records before the first micro-batch."""
        return self._learning is not None

    @property
    def mask(self) -> Mask | None:
        """The active coordinates, which are public; None if all are active."""
        return self._context.mask

    @property
    def _model(self) -> Engine:
        """The engine of the model, for what starts with losses."""
        assert isinstance(self._engine, Engine)
        return self._engine

    def draw_public(self, size: int) -> Indices:
        """Which of `size` public records the bounder learns from, by public randomness."""
        count = min(self._plan.bounder.public_records, size)
        return self._context.streams.projection.at(self._context.step).at(1).choice(count, of=size)

    def learn(self, losses: Tensor) -> None:
        """Let the bounder learn from a micro-batch of public records. Nothing is charged."""
        assert self._learning is not None
        self._model.backward(losses)
        chunk = self._plan.bounder.records_at_once(self._engine.layout.size)
        for gradients in self._model.rows(self._context.mask, chunk=chunk):
            self._learning.add(gradients)
        self._engine.discard()

    def end_learning(self) -> None:
        """All public records have been given. All processes use what the first one learned."""
        assert self._learning is not None
        for value in self._learning.finish():
            self._world.broadcast_(value)
        self._learning = None

    def add(self, losses: Tensor, vacant: Tensor | None = None) -> bool:
        """Add the bounded contributions of a micro-batch to the sums. Nothing is released.

        Returns False, and adds nothing, for a rehearsal, and for losses that have to be rehearsed first.
        vacant  which rows hold no record, in a run with fixed rows: they add nothing
        """
        self._model.backward(losses)
        if not self._model.watch.is_rehearsed:
            self._sums.add_nothing()
            return False
        self._ways.note(self._model.watch)
        if self._rows is not None:
            self._rows.add(vacant)
        self._sums.add(vacant)
        return True

    def add_given(self) -> None:
        """Add contributions that others computed and the engine holds (federated/rounds.py), likewise."""
        self._sums.add()

    def add_to_test(
        self, losses: Tensor, records: int, views: int, units: UnitRows | None, vacant: Tensor | None = None
    ) -> bool:
        """Add a micro-batch of the batch that tests the update, likewise."""
        assert self._candidate is not None
        self._model.check(losses)
        if not self._model.watch.is_rehearsed:
            return False
        self._ways.note(self._model.watch, has_gradients=False)
        self._candidate.add(losses, records, views, units, vacant)
        return True

    def end_sample(self, parameters: Parameters) -> bool | None:
        """Finish the current batch.

        Returns True if the parameters changed, False if the update was rejected, and None if the step needs another
        pass over a batch.
        """
        if self._candidate is None:
            released = self.release()
            if self._plan.has_tests:
                self._candidate = CandidateUpdate(parameters, released)
                return None
            parameters.take(released)
            return True
        if self._candidate.needs_another_pass():
            return None
        kept = self._test(self._candidate)
        if kept:
            parameters.keep()
        else:
            self._candidate.undo()
        return kept

    def release(self) -> Released:
        """Record the charge, add noise to the sums of the logical batch, and return the released gradient."""
        with self._engine.full_precision():
            return self._release()

    def _release(self) -> Released:
        plan, state = self._plan, self._state
        # Rows that are selected below divide the active coordinates into other parts: then all processes need all sums.
        in_parts = plan.mechanism.in_parts and plan.selection.counting is None
        sums = self._sums.sums(self._world, in_parts=in_parts)
        context = dataclasses.replace(self._context, raw=sums.hidden)
        queries, event = plan.queries(state.scale), plan.event_at(state.step)
        self._charge(event, context.step)
        context, left = self._select_rows(queries, context)
        noisy = self._add_noise(plan.mechanism, [*sums.vectors, *sums.scalars], left, context)
        vectors, numbers = noisy[: len(sums.vectors)], [float(one) for one in noisy[len(sums.vectors) :]]
        gradient = plan.combination.gradient(vectors, numbers, context)
        released = Released.on(context.mask, gradient, context.layout, context.batch)
        noise_std = queries[0].std(plan.noise_at(state.step)) / context.batch
        state.scale = plan.bounder.advance(state.scale, numbers, context.batch)
        state.step += 1
        plan.selection.observe(released, noise_std, context)
        return released

    def _select_rows(self, queries: Sequence[Query], now: StepContext) -> tuple[StepContext, Sequence[Query]]:
        """If the plan counts rows: release the noisy counts, and mask the rows that they do not select.

        Returns the queries that are still to be released.
        """
        counting = self._plan.selection.counting
        if counting is None:
            return now, queries
        *others, query = queries
        if self._rows is None:  # a model without such tables: nothing to count
            return now, others
        (counts,) = self._add_noise(self._plan.mechanism, [self._rows.sum(self._world)], [query], now)
        mask = counting.select(counts, query.std(self._plan.noise_at(now.step)), now.layout)
        return dataclasses.replace(now, mask=mask), others

    def _test(self, candidate: CandidateUpdate) -> bool:
        """Whether to keep the candidate, by a noisy test of the change of loss on a fresh batch."""
        plan = self._plan
        context = dataclasses.replace(self._context, mask=None)  # a scalar has no coordinates to mask
        queries, event = plan.acceptance.queries(), plan.test_at(context.step)
        change = sum_of_numbers(candidate.changes(), queries[0].sensitivity, self._world)
        self._charge(event, context.step)
        (noisy,) = self._add_noise(plan.mechanism.of_numbers, [change], queries, context)
        return plan.acceptance.accepts(float(noisy) / context.batch)

    def _charge(self, event: Event, step: int) -> None:
        """Record the charge. The first process has the ledger on disk: no other adds noise before it has paid."""
        self._ways.check(self._state.scale)
        self._pay(event, step)
        self._world.wait_for_first()

    def _add_noise(
        self, mechanism: Mechanism, sums: Sequence[BoundedSum], queries: Sequence[Query], now: StepContext
    ) -> list[Tensor]:
        """Add noise to sums whose charge is recorded; each process draws its own part of it."""
        noisy = mechanism.release(sums, queries, self._plan.noise_at(now.step), now)
        if not mechanism.in_parts:  # computed from the same numbers in all processes, but machines may round apart
            for value in noisy:
                self._world.broadcast_(value)
        return noisy


@final
class Parameters:
    """The trainable parameters, with everything that may change them: optimizer, domain and average.

    Guarantee: these see released values only.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        engine: Contributions,
        average: Average | None,
        between: ModelBetweenBatches,
    ) -> None:
        self.model, self.optimizer, self.average, self.updates = model, optimizer, average, 0
        self._plan, self._engine, self._between = plan, engine, between
        self.handover = Handover(between, self.keep)
        self._initial: list[Tensor] = []

    @property
    def trained(self) -> list[Tensor]:
        """The trainable parameters, in the order of the layout."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def begin(self, memory: dict[str, Tensor], world: World) -> None:
        """Give all processes the parameters of the first, and store the initial ones if the domain needs them.

        A resumed run already has them in `memory`.
        """
        share(self.model, world, self._engine.holders(world))
        if self._plan.domain.needs_initial:
            if INITIAL not in memory:
                memory[INITIAL] = torch.cat([parameter.detach().flatten() for parameter in self.trained])
            self._initial = self._engine.layout.views(memory[INITIAL])

    def take(self, released: Released) -> None:
        """Update the parameters with the release, or leave it on `.grad` for the caller's optimizer."""
        if self.handover.is_on:
            self.handover.give(self.trained, released)
            return
        self.update(released)
        self.keep()

    def update(self, released: Released) -> None:
        """Run the optimizer on the release, then project the parameters to the domain."""
        parameters = self.trained
        with self.handover.own_step(), self._plan.analysis.updating(parameters, released):
            update(self.optimizer, parameters, released, self._plan.selection.frozen)
        self._between.check_frozen()
        with torch.no_grad():
            self._plan.domain.project_(parameters, self._initial)

    def keep(self) -> None:
        """Count the update, and update the average."""
        self.updates += 1
        if self.average is not None:
            self.average.update(self.model)
