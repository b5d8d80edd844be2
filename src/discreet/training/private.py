"""`Private`: binds a plan to a model, an optimizer and data, and provides the training loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.secret_draws import SecretDraws
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.model.state import ModelBetweenBatches, Snapshot
from discreet.engine.proof.lineage import version_of
from discreet.engine.proof.program import BatchKind
from discreet.engine.trace.capture import tensors_in
from discreet.stages.plan import Plan
from discreet.stages.update import unpack
from discreet.training import binding, checkpoint
from discreet.training.agreement import Replica, check_agreement, check_shards
from discreet.training.averaging import Average
from discreet.training.collate import kept
from discreet.training.draws import Cuts, Draw, Sampler, slots_of
from discreet.training.handover import check_handover
from discreet.training.loader import Loader, MicroBatch, settled, to_device, with_tensors
from discreet.training.loop_guard import LoopGuard
from discreet.training.noise_keys import recalled
from discreet.training.owners import OwnerOf
from discreet.training.passes import Passes, check_is_own
from discreet.training.payment import Payment
from discreet.training.rehearsal import VacantRows, rehearsal_sizes
from discreet.training.sharded.checkpoint import load, save
from discreet.training.sharded.turns import Turns, check_sharded
from discreet.training.spending import Spent
from discreet.training.step import Parameters, PrivateStep, RunState

_MOST_ROUNDS: Final = 30  # how often a batch is rehearsed whose declared choices change every time


@final
class Private:
    """Trains one model with differential privacy.

        for x, y in private:
            private.step(F.cross_entropy(model(x), y, reduction="none"))

    The iterator draws the plan's batches and yields them as micro-batches; an empty batch is a step with noise only.
    `step` returns True if the parameters changed, which happens on the last micro-batch of a logical batch.

    model, optimizer  as usual; the optimizer must hold exactly the trainable parameters
    plan              from `recipe.for_budget(...)`
    data              a map-style dataset or `(X, y)`, whose size is private; None with your own loader (see `over`)
    micro_batch       the most records in memory at once; it does not change the result. None: as many as fit in about
                      the memory of plain SGD, but at most 512 unless they are small; 512 with a collate_fn
    inputs            function from a batch to the arguments of the model; default: the batch, or its first element
    views, augment    `augment` is applied to `views` copies of each record; their losses are averaged
    average           decay of an exponential moving average of the parameters; None: no average
    ledger            file to which charges are written before each release; None keeps them in memory only
    streams           the random streams; default: a cryptographic generator seeded by the operating system
    schedulers        learning-rate schedulers to include in checkpoints; the training loop steps them
    resume            a checkpoint of `save`: continue after the last step in `ledger`, with new keys
    public            public records for methods that learn from them (gep); the loop yields batches of them, too
    rehearsal         a batch of public records for rehearsals (see `is_rehearsal`); None: their records are made up
    unit              for a plan that protects users: a function from a record to its owner's name, or all names
    fixed_rows        rows of every forward pass, in place of micro_batch: a record's gradient is then rounded without
                      regard to other records, so the certificate covers it (draws.py). None: it is not covered
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        data: Dataset[Any] | None,
        *,
        micro_batch: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        device: torch.device | str | None = None,
        inputs: Callable[[Any], Any] | None = None,
        views: int = 1,
        augment: Callable[[Any], Any] | None = None,
        average: float | None = None,
        ledger: str | Path | None = None,
        streams: Streams | None = None,
        schedulers: Sequence[LRScheduler] = (),
        resume: str | Path | None = None,
        public: Dataset[Any] | None = None,
        rehearsal: Any = None,
        unit: OwnerOf | None = None,
        fixed_rows: int | None = None,
    ) -> None:
        data = binding.check_arguments(plan, data, micro_batch=micro_batch, views=views)
        binding.check_public(plan, data, public)
        wrapped, model, optimizer = model, binding.bare_model(model), binding.bare_optimizer(optimizer)
        self.model, self.optimizer, self.plan = model, optimizer, plan
        self.streams = Streams.from_os() if streams is None else streams
        self.streams.check_unused()
        self.world, self.progress, self._loop = World.current(), RunState(), LoopGuard()
        self._device = binding.device_of(model) if device is None else torch.device(device)
        self._data, self._views, self._augment, self._schedulers = data, views, augment, tuple(schedulers)
        self._step: PrivateStep | None = None
        self._between, self._fixed_rows = ModelBetweenBatches(model), fixed_rows
        settings = {"views": views, "average": average, "resume": resume is not None, "fixed_rows": fixed_rows}
        check_agreement(self.world, plan, model, optimizer, self._schedulers, self.streams, settings)
        binding.check_optimizer(optimizer, model)
        check_shards(self.world, data)
        self._sampler = Sampler(plan, self.world, self.streams)
        self._used = checkpoint.keys_of(self.streams, self.world)
        self._draws = SecretDraws(self.streams.draws)
        with ExitStack() as opened:  # if a step fails, the ones before it are undone
            opened.enter_context(binding.not_called(wrapped))
            self._engine = opened.enter_context(closing(Engine(model, in_double=fixed_rows is not None)))
            self._sampler.slots = slots_of(plan, fixed_rows, micro_batch, data, self.streams, self._engine.sharding)
            check_sharded(plan, data, self._engine.sharding)
            plan.mechanism.check(self._engine.layout)
            mean = None if average is None else Average(model, average)
            self._parameters = Parameters(model, optimizer, plan, self._engine, mean, self._between)
            self.micro_batch = self._fitting(fixed_rows or micro_batch, collate_fn, inputs)
            self._cuts = Cuts(plan, self.micro_batch, self.world, self._sampler.slots)
            with self._engine.watch.stock.reading():
                self._sampler.take(data, unit)
            self._make_loaders(public, rehearsal, collate_fn, num_workers)
            self._guard = opened.enter_context(closing(plan.analysis.guard(plan, model, optimizer)))
            self._guard.begin(average, self._schedulers, views, self.world)
            self._handover = opened.enter_context(self._parameters.handover.attached_to(optimizer))
            opened.callback(unpack, optimizer)
            self._open_ledger(opened, ledger, resume)
            if self.progress.step:
                self._guard.updated()
            self.streams.take()
            self._opened = opened.pop_all()  # `close` undoes them

    def _fitting(self, given: int | None, collate_fn: Any, inputs: Any) -> int:
        """The size of micro-batches: as given, or as many records as fit. The model is tried out first."""
        with self._draws.keyed():
            example = binding.dry_run(self._engine, self._data, collate_fn, inputs, self._device)
        alike = example if collate_fn is None else None
        return binding.micro_batch_of(self.plan, given, self._engine, alike, self.world.size, self._views)

    def _make_loaders(self, public: Any, rehearsal: Any, collate_fn: Any, num_workers: int) -> None:
        """What loads the records, those of other processes' turns, and public ones; and the rehearsals before them."""
        size, device, sharding = self.micro_batch, self._device, self._engine.sharding
        sizes = rehearsal_sizes(size, is_fixed=self._fixed_rows is not None)
        self._rehearsals = binding.rehearsals(self._engine.watch, sizes, rehearsal, device)

        def loader(data: Any, workers: int) -> Loader:
            note = None if data is public else self._engine.watch.stock.note
            given = data, self._draws, VacantRows(self._rehearsals), note
            return Loader(*given, micro_batch=size, collate_fn=collate_fn, num_workers=workers, device=device)

        self._loader = None if self._data is None else loader(self._data, num_workers)
        data: Any = self._data
        own_loader = loader(data, 0) if data is not None and len(data) else None
        self._turns = Turns(sharding, self._rehearsals, own_loader, device)
        self._public, self._public_loader = public, loader(public, 0)

    def _open_ledger(self, opened: ExitStack, ledger: str | Path | None, resume: str | Path | None) -> None:
        """Begin or resume the run. This comes last, so that no file stays behind if anything fails."""
        own = ledger if self.world.is_first else None
        opened.enter_context(checkpoint.UnusedRemoved(own if resume is None else None))
        if resume is None:
            self._parameters.begin(self.progress.memory, self.world)
            begun = checkpoint.new_ledger(own, self.plan, self.streams, fixed_rows=self._fixed_rows)
        elif ledger is None:
            check.refuse("the ledger of the resumed run", "none", "pass ledger=, the file of the original run")
        else:
            saved = load(resume, self._parameters, self.world, self._engine.sharding)
            run = self.plan, self._parameters, self._schedulers, self._used, self.world, self._fixed_rows
            begun, self.progress = checkpoint.resumed(saved, Path(ledger), *run)
        self._ledger = opened.enter_context(begun)
        self._pay = Payment(self.plan, begun, self.streams, self._used, lambda: self._engine.watch.declared_at)
        self._keys = recalled(self.plan, ledger, begun, self.progress, self.streams, self._engine.layout.size)
        if self._keys is not None:
            self._sampler.stream = self._keys.sampling
        self._passes = Passes(self.plan, self.progress, begun, self._keys, self._draws, self._turns.learn_given)

    def __iter__(self) -> Iterator[Any]:
        """Yield the micro-batches of all remaining steps, on the device. Rehearsals come first (`is_rehearsal`)."""
        yield from (batch for batch in self._batches() if batch is not None)

    def _batches(self) -> Generator[Any, None, None]:
        """The micro-batches of all remaining steps; None after a step of a process that has no records at all."""
        self._engine.watch.take_stock(self._data)  # before a record is read
        loader = self._sampled()
        loop = self._loop.new_loop(between_steps=self._step is None)
        for micro in loader.load(self._sampler.batches(self.progress.step)):
            if self._step is None:
                self._step = self._new_step()
                yield from self._public_batches(loop)
            if micro.records:
                yield from self._given(micro, loop)
            elif not self._turns.are_shared:
                yield from self._stood_in(loop)
            while self._turns.are_shared and micro.is_last and self._step is not None:
                yield from self._offered(self._turns.stand_in(), BatchKind.REHEARSAL, loop)
        self._between.check()  # after the last batch, too

    def __len__(self) -> int:
        return self.plan.horizon.steps  # with micro-batches the loop body runs more often

    def __reduce_ex__(self, protocol: object) -> NoReturn:  # what copy, deepcopy and pickle call
        remedy = "use one object for a run; to continue a run later, `save` a checkpoint and pass resume="
        check.refuse("one object that takes the steps of a run", "a copy of it", remedy)

    def __repr__(self) -> str:
        return f"Private({self.plan.method}, {self.progress.step} of {len(self)} steps, {self.plan.outline})"

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the user's own batches, one step each, for a plan whose sampling is `OwnLoader` or says more.

        A call is one pass over the records: call it once an epoch. How `OwnLoader` counts its steps: see there.
        """
        check_is_own(self.plan)
        self._engine.watch.take_stock(batches)  # before a record is read
        loop = self._loop.new_loop(between_steps=self._step is None)
        for batch in self._passes.of(batches):
            if self.progress.step >= self.plan.horizon.steps:
                break
            records = 0 if batch is None else binding.records_in(batch)
            self._step = self._new_step()
            yield from self._public_batches(loop)
            if records == 0:
                yield from (made for made in self._stood_in(loop) if made is not None)
                continue
            self._engine.watch.stock.note(batch)
            own = to_device(kept(batch), self._device)  # what the loop writes must not come back in the next epoch
            self._turns.learn_given(batch)
            yield from self._given(MicroBatch(own, records, is_last=True), loop)
        self._between.check()

    def _given(self, micro: MicroBatch, loop: object) -> Iterator[Any]:
        """Yield a micro-batch; if its losses are made in a way that is new, after rehearsals."""
        watch = self._engine.watch
        for _ in range(_MOST_ROUNDS):
            if watch.needs_rehearsal:
                for rehearsal, size in self._rehearsals.like(micro.batch, micro.records):
                    yield from self._offered(MicroBatch(rehearsal, size, is_last=False), BatchKind.REHEARSAL, loop)
            # What the loop writes to a batch must not come back where it is given again, after a choice.
            given = replace(micro, batch=kept(micro.batch)) if watch.declarations else micro
            before = [version_of(tensor) for tensor in tensors_in(given.batch)]
            yield from self._offered(given, BatchKind.REHEARSED, loop)
            if watch.is_rehearsed:
                return
            is_kept = given is not micro or before == [version_of(tensor) for tensor in tensors_in(micro.batch)]
            binding.check_given_again(is_kept)
        binding.refuse_new_choices(watch.declared_choices)

    def _stood_in(self, loop: object) -> Iterator[Any]:
        """Yield made-up records for a step without records: the body of the loop runs in every step."""
        if self._turns.can_stand_in:
            yield from self._offered(self._turns.stand_in(), BatchKind.REHEARSAL, loop)
            return
        self._between.check()
        self._end_sample()
        self._between.remember()
        yield None
        self._loop.go_on(loop)  # another loop may have begun meanwhile

    def _offered(self, micro: MicroBatch, kind: BatchKind, loop: object) -> Iterator[Any]:
        try:
            yield self._offer(micro, kind)
        finally:  # also if the user leaves the loop
            self._engine.watch.close()
            self._draws.close()
        self._loop.go_on(loop)

    def _public_batches(self, loop: object) -> Iterator[Any]:
        """The public records that the bounder learns from before this step, if it needs any, as batches of the loop."""
        if self._public is None or self._step is None or not self._step.is_learning:
            return
        drawn = self._step.draw_public(len(self._public))
        for micro in self._public_loader.load(iter([Draw(drawn)])):
            yield from self._offered(MicroBatch(micro.batch, micro.records, is_last=False), BatchKind.FREE, loop)
        self._step.end_learning()

    def step(self, losses: Tensor) -> bool:
        """Process the per-record losses of the current batch. Returns True if the parameters changed."""
        with self._loop.taking():
            assert self._step is not None
            if self._public is not None and self._step.is_learning:
                self._step.learn(losses)
            elif not self._add(losses, self._micro) and not self._micro.stands_in:
                self._loop.postpone()
        self._draws.close()
        moved = self._loop.has_ended(self._turns.have_ended) and self._end_sample()
        self._between.remember()
        return moved

    def _add(self, losses: Tensor, micro: MicroBatch) -> bool:
        """Add the losses of a micro-batch to the sums, or to the test of an update; False if they are rehearsed."""
        assert self._step is not None
        with self._cuts.adding(self._engine.watch, is_last=micro.is_last):
            if not self._step.is_testing:
                self._guard.losses(losses)
                return self._step.add(losses, micro.vacant)
            is_added = self._step.add_to_test(losses, micro.records, self._views, micro.units, micro.vacant)
            self._untested.compare(self.model)
            return is_added

    def release(self, losses_of: Callable[[Any], Tensor]) -> bool:
        """Draw a batch and write its released gradient to `.grad`, for trainers that step the optimizer themselves.

        Returns False after the plan's last step.
        losses_of  function from a micro-batch to its per-record losses; called for each micro-batch, if there is any
        """
        check_handover(self.plan)
        self._handover.check_done()
        step = self.progress.step
        with self._handover.turned_on(self._batches) as batches:
            for batch in batches:
                if batch is not None:
                    self.step(losses_of(batch))
                if self.progress.step > step:
                    return True
        self._loop.check_ended(self.progress.step == self.plan.horizon.steps)
        return False

    @property
    def is_rehearsal(self) -> bool:
        """Whether the current batch holds made-up or public records, on which the loop shows how it makes its losses.

        Such batches come before the first batch, before losses that a choice of `discreet.public` makes in a new way,
        and in steps that drew no record. They add nothing to a sum. `step` returns True only in a step without records.
        """
        return self._engine.watch.kind is BatchKind.REHEARSAL

    def _offer(self, micro: MicroBatch, kind: BatchKind) -> Any:
        self._handover.check_done()
        self._between.check()
        batch, records, self._micro = with_tensors(micro.batch, settled), micro.records, micro
        if self._views > 1:
            batch = with_tensors(batch, lambda tensor: tensor.repeat_interleave(self._views, 0))
        if self._step is not None and self._step.is_testing:
            self._untested = Snapshot(self.model)
        else:
            self._engine.begin(records, self._views, micro.units)
        self._draws.open()  # the watch notes where generators stand
        self._engine.follow(batch, records, self._views, private=self._data, kind=kind)
        if self._step is not None and self._step.is_testing:
            self._engine.watch.declare("a test")  # a pass that keeps no factors makes calls of its own
        if self._augment is not None:
            with self._draws.others_keyed():
                batch = self._augment(batch)
        self._loop.give(is_last=micro.is_last)
        return batch

    def _new_step(self) -> PrivateStep:
        run = self.plan, self._engine, self.progress, self.streams, self._pay, self.world
        return PrivateStep(*run, Replica(self.model, self.optimizer))

    def _end_sample(self) -> bool:
        """Finish the batch of a step or of the test of its update. Returns whether the parameters changed."""
        with self._loop.ending():
            assert self._step is not None
            if not self._step.is_testing:
                self._guard.release()
            moved = self._step.end_sample(self._parameters)
            if moved is not None:
                self._step = None
                self._guard.updated()
            return bool(moved)

    @property
    def updates(self) -> int:
        """The number of updates kept so far."""
        return self._parameters.updates

    @property
    def settled(self) -> bool:
        """Whether every update is kept or rejected: none is tested, waits for the optimizer, or was cut off."""
        is_testing = self._step is not None and self._step.is_testing
        return not (self._handover.is_due or self._loop.is_cut_off or is_testing)

    def spent(self) -> Spent:
        """The privacy spent so far: certified, and for a finished run also claimed."""
        return Spent.of(self.plan, self.progress.step, self._ledger.charge(), self.streams, self._fixed_rows)

    @property
    def ledger(self) -> Ledger:
        """The ledger with every charge so far."""
        return self._ledger

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the averaged weights of the model inside the `with` block, which may not write to the model."""
        if self._parameters.average is None:
            check.refuse("an average", "none", "pass average=0.99 to Private")
        with self._between.swapped(self._parameters.average.applied_to(self.model)):
            yield

    @property
    def average(self) -> Average | None:
        """The moving average of the parameters, if requested."""
        return self._parameters.average

    def save(self, path: str | Path, *, with_model: bool = True) -> None:
        """Write a checkpoint; keep it private if the certificate covers the final parameters only.

        with_model  False leaves out model, optimizer and schedulers, for a trainer that saves and restores them itself
        """
        got, remedy = "one while an update is tested, waits or was cut off", "save when `private.settled` is true"
        check.require(self.settled, "a checkpoint between updates", got, remedy)
        self._between.check()
        state = checkpoint.Checkpoint.of(self.plan, self._ledger, self.progress, self._parameters, self._schedulers)
        save(state if with_model else state.without_model(), path, self.world, self._engine.sharding)

    def close(self) -> None:
        """Remove all hooks from model and optimizer, which can then be used as usual, and close the ledger."""
        if self._keys is not None and self.progress.step >= self.plan.horizon.steps:
            self._keys.discard()  # the run has ended: its noise is not needed again
        self._loop.is_closed = True
        self._draws.close()
        self._opened.close()

    def _sampled(self) -> Loader:
        if self._loader is None or self._data is None or self.plan.sampling.is_own_loader:
            check.refuse("data to draw batches from", "a plan for your own loader", "iterate private.over(loader)")
        self._guard.data(self._sampler.size)
        return self._loader
