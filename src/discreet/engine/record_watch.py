"""The watch over one step: every torch call between the batch that is given and the losses that come back.

    watch.open(batch, records); augment(batch); ...the user's loop...; watch.finish(losses)
    with watch.backward_pass(): losses.sum().backward()

Guarantee: losses that `finish` accepts have one entry per record, and no call that made them moved an entry of one
record by another record, whatever the values of the records and of the parameters are; each call was proven by itself
(proof/call_proof.py). A value that reaches Python, in whatever way, changes neither the losses nor their gradients:

    which calls make the losses, with which numbers, on which tensors   proof/program.py, as in the rehearsals
    tensors from elsewhere                                              proof/lineage.py
    code that runs in the backward pass                                 custom_backward.py, regions.py (hooks: refused)
    memory that autograd reads again                                    proof/lineage_table.py (versions, exports)
    modes, and seeds of generators                                      surroundings.py
    functions inside which no call is seen                              trace/unscripted.py
    parameters and buffers                                              model/state.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from discreet.core.check import require
from discreet.engine.custom_backward import CustomBackwards, check_caller, unwatch_nodes, watch_nodes
from discreet.engine.dataset.stock import Stock
from discreet.engine.proof import blame
from discreet.engine.proof.calls.expected import ExpectedCalls
from discreet.engine.proof.calls.judgement import WatchedCall, is_new_to_memo, judged, slice_written
from discreet.engine.proof.calls.known_calls import Draws, KnownCall, KnownCalls
from discreet.engine.proof.declared import DECLARED
from discreet.engine.proof.forbidden import refuse_out_of_sight, refuse_scripted, refuse_unchecked
from discreet.engine.proof.forms.call_forms import Reading
from discreet.engine.proof.forms.provable_call import ALL_FOLLOW, tensors_of_result
from discreet.engine.proof.lineage import MIXED, PUBLIC, SOLE, Lineage, Origin, versions_of
from discreet.engine.proof.lineage_table import LineageTable
from discreet.engine.proof.program import BatchKind, KnownPrograms
from discreet.engine.proof.verdicts import SIZED, settings_for
from discreet.engine.proof.watched_functions import RECURRENT, SPECIAL, TO_MEMORY, is_quiet, is_slice
from discreet.engine.recorder import Recorder
from discreet.engine.regions import Regions
from discreet.engine.spread_rows import with_gradients
from discreet.engine.surroundings import Generators, Surroundings
from discreet.engine.trace.capture import SAME, RecordAxis, tensors_in
from discreet.engine.trace.mode_stack import push_mode, remove_mode
from discreet.engine.trace.unscripted import unwatch_scripts, watch_scripts


class RecordWatch(ExpectedCalls, TorchFunctionMode):
    """Follows records through a step; `InterpretedCalls` says what its flags mean."""

    def __init__(self, model: nn.Module, wholes: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.backwards = CustomBackwards()
        self.table = LineageTable(model, self.backwards.note, wholes)
        self.programs, self.backward_programs = KnownPrograms(), KnownPrograms()
        self._surroundings, self.generators = Surroundings(RecordWatch), Generators()
        self._regions, self.calls = Regions(self.table, self._resumed), KnownCalls()
        self._records, self.kind, self.stock = 0, BatchKind.FREE, Stock(self.table)
        self.declared_choices, self.declared_numbers = list[Any](), list[Any]()  # the latter in the calls of the batch
        self.declarations: dict[str, None] = {}  # lines that call `public` in steps

    # -- one batch -------------------------------------------------------------------------------------

    def open(
        self,
        places: list[tuple[Tensor, RecordAxis | Lineage]],
        records: int,
        private: Any = None,
        kind: BatchKind = BatchKind.FREE,
    ) -> None:
        """Watch from here on; `places` says where the records lie in the tensors of the batch.

        private  what holds records before the first batch, such as the data
        """
        self.close()
        self.usual, self.flushes = self._surroundings.open()
        self.generators.open(looks_for_shared=kind is not BatchKind.REHEARSED and records > 1)
        self._records, self.kind, self.declared_choices, self.declared_numbers = records, kind, [], []
        self.take_stock([private, *(tensor for tensor, _ in places)])
        self.table.new_step(records)
        DECLARED.new_batch()
        for index, (tensor, place) in enumerate(places):
            name, where = ("batch", index), place if records > 1 or place in (PUBLIC, MIXED) else SOLE
            is_mixed, origin = place is MIXED, Origin(MIXED, hash(name), blame=blame.UNKNOWN)
            self.table.put(tensor, origin if is_mixed else self.table.leaf(tensor, where, hash(name), name))
        self.calls.begin(records)
        self._push()

    def take_stock(self, private: Any) -> None:
        """Tensors that exist now are public from here on, except those that `private` holds. The first time counts."""
        self._surroundings.check_alone()
        self.stock.take(private)

    def close(self) -> None:
        """Stop watching, and forget the tensors of the batch."""
        self._pop()
        self.forward = None
        self._regions.forget()
        self.backwards.forget()
        self.table.forget()

    def _push(self) -> None:
        self.is_open = True
        push_mode(self)
        watch_scripts(self._check_scripted)
        watch_nodes(self)

    def _pop(self) -> None:
        """Remove this mode, and no other, from wherever it is on the stack. If Ctrl-C interrupts it, once more."""
        if not self.is_open:
            return
        unwatch_scripts(self._check_scripted)
        unwatch_nodes(self)
        remove_mode(self)
        self.is_open = False

    @property
    def declared_at(self) -> list[str]:
        """The lines that declare values public, in order."""
        return list(DECLARED.outside_of_steps | self.declarations)

    @property
    def declared_values(self) -> tuple[Any, ...]:
        """The choices and the numbers of this batch that were declared public."""
        return *self.declared_choices, *self.declared_numbers

    def rehearse(self, sizes: Sequence[int]) -> None:
        """Losses have to be made for rehearsals of these numbers of records first."""
        self.programs.sizes, self.programs.needs_rehearsal = frozenset(sizes), True

    @property
    def needs_rehearsal(self) -> bool:
        """Whether the newest way to make losses was not rehearsed yet."""
        return self.programs.needs_rehearsal

    @property
    def is_rehearsed(self) -> bool:
        """Whether the losses of the batch that came last may be used."""
        return self.kind is BatchKind.FREE or (self.kind is BatchKind.REHEARSED and not self.needs_rehearsal)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside the block are the engine's own."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    @contextmanager
    def running(self, handle: Callable[[Any, Any, Any], Any], recorder: Recorder) -> Iterator[None]:
        """Calls inside the block are run by `handle`; known ones by the recorder, which may leave them to it."""
        before, self.forward, self.recorder = (self.forward, self.recorder), handle, recorder
        try:
            yield
        finally:
            self.forward, self.recorder = before

    def declare(self, value: Any) -> None:
        """A choice of this step, or a tensor or module, that does not come from the records."""
        if isinstance(value, Tensor):
            self.table.declare(value)
        elif not isinstance(value, nn.Module):
            self.declared_choices.append(value)

    def check_inputs(self, tensors: Sequence[Tensor]) -> None:
        """Refuse tensors with a row for each record, that the model is given, whose rows come in another order."""
        blame.check_inputs([(self.table.find(one), one) for one in tensors if self.is_open], self._records)

    def finish(self, losses: Tensor) -> None:
        """Refuse losses that are not kept apart, and stop watching if they are."""
        self._surroundings.check_thread()
        with torch._C.DisableTorchFunction():  # these are no calls to watch
            origin = self.table.find(losses)
            if not self.table.unchanged():
                origin = Origin(MIXED, 0, blame=blame.CHANGED)
            blame.check_losses(origin)
            require(self.table.is_memory_unchanged(), *blame.TAMPERED)
            self._surroundings.check_end()
            self.generators.check(origin)
            self.programs.check(origin, self._records, tuple(self.declared_choices), self.kind)
        self._pop()

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """The block runs the backward pass of the losses: code of the user's in it is watched, too."""
        self.backwards.begin(self._resumed, self.table)
        self.is_backward = self.backwards.has_any
        if self.is_backward:
            self._push()
        try:
            yield
        finally:
            self.is_backward = False
            self.backwards.end()
            self._pop()
        with self.paused():
            require(self.table.is_memory_unchanged(), *blame.TAMPERED)
            made = self.backwards.made()
            if made.parents:
                self.generators.check(made)
            self.backward_programs.check(made, self._records, tuple(self.declared_choices), self.kind)

    @contextmanager
    def _resumed(self, forward: Callable[[Any, Any, Any], Any] | None = None) -> Iterator[None]:
        """Calls inside the block are watched again."""
        before, was_open = (self.forward, self.is_paused, self.is_resumed), self.is_open
        self.forward, self.is_paused, self.is_resumed = forward, False, True
        if not was_open:
            self._push()
        try:
            yield
        finally:
            if not was_open:
                self._pop()
            self.forward, self.is_paused, self.is_resumed = before

    def repeating(
        self, frame: Any, inputs: Any, forward: Callable[[Any, Any, Any], Any]
    ) -> AbstractContextManager[None]:
        """Inside the block a checkpointed region runs again: it must make the same calls on the same tensors."""
        return self._regions.repeating(frame, inputs, self._resumed(forward))

    def applied(self, function: type, args: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """What an autograd.Function gives; its backward pass will be watched."""
        is_unwatched = self.is_paused or (self.is_backward and not self.is_resumed)
        return run() if is_unwatched else self.backwards.applied(function, args, run, self.table.find)

    # -- one call --------------------------------------------------------------------------------------

    def watched(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call; `ExpectedCalls` gives those here that it does not make itself."""
        kwargs, is_between = kwargs or {}, self.is_backward and not self.is_resumed
        if self.is_paused or not self.is_open or is_between or is_quiet(func, args):
            if is_between:
                check_caller()
            return func(*args, **kwargs)
        if self.is_inside and self.forward is not None:
            return self.forward(func, args, kwargs)
        known = self.calls.last.next
        if known is not None and known.func is func and self._surroundings.are_usual() and not self.is_resumed:
            tensors = known.is_called(args, kwargs, self.table.find)
            if tensors is not None:
                return self._expected(known, func, args, kwargs, tensors)
        return self._read(func, args, kwargs)

    def _expected(self, known: KnownCall, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """A call that was judged before, on tensors that were made alike (known_calls.py says why that is enough)."""
        table = self.table
        versions, started = versions_of(tensors), table.clock
        states = None if known.after is None else self.states()
        self.calls.last = known
        try:
            if self.forward is None or self.recorder is None:
                result = func(*args, **kwargs) if self.forward is None else self.forward(func, args, kwargs)
            else:
                result = self.recorder.run_again(known, self.forward, func, args, kwargs, tensors)
        except Exception as error:
            self.explain(error)
            raise
        if table.clock != started:
            return result  # taken apart into calls that were watched
        if known.gave(result) and versions_of(tensors) == versions:
            table.put_again(result, known.origins[0], tensors)
        else:
            self.note(known, args, kwargs, tensors, versions, states, result)
        return result

    def states(self) -> Any:
        """The states of the generators before a call that may draw."""
        return self.generators.before(())

    def note(
        self, known: KnownCall, args: Any, kwargs: Any, tensors: list[Tensor], versions: Any, states: Any, result: Any
    ) -> None:
        """An expected call drew, made several tensors, wrote to one, or made something else than before."""
        call = known.called_again(args, kwargs, self._records, tensors, versions)
        self._note_or_judge(call, known, result, states)

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Any other call."""
        self._surroundings.check()
        self.usual = self._surroundings.usual
        func = SAME.get(func, func)
        reading = Reading(self._records, values=func not in SIZED)
        shown = args[:1] if func is Tensor.__deepcopy__ and is_new_to_memo(*args) else args
        read = reading.read_call(shown, kwargs, self.table.find)
        call = WatchedCall(func, args, kwargs, reading, (func, read, self._surroundings.modes))
        known = self.calls.find(call) if self._regions.is_outside() else None
        self.calls.came(known)
        return self._first(call) if known is None else self._again(call, known)

    def _again(self, call: WatchedCall, known: KnownCall) -> Any:
        """The same for a call that was not expected, or that draws or writes."""
        states, started = None if known.after is None else self.states(), self.table.clock
        result = self._run(call.func, call.args, call.kwargs)
        if self.table.clock == started:
            self._note_or_judge(call, known, result, states)
        return result

    def _note_or_judge(self, call: WatchedCall, known: KnownCall, result: Any, states: Any = None) -> None:
        """Note what a known call made and wrote to; judge it again if that is not what was judged."""
        draws = () if states is None else self.generators.read(states, call)
        found, tensors = known.after_draws(draws), call.reading.tensors
        if found is not None and found.gave(result) and versions_of(tensors) == call.versions:
            self.generators.note(draws, found.origins)
            self.table.put_again(result, found.origins[0], tensors)
            return
        made = [result] if type(result) is Tensor else tensors_of_result(result)
        written = call.written(made)
        if found is None or not found.made(made, written):
            call.form.draws = call.form.draws or bool(draws)
            self._judge(call, made, written, draws)
        else:
            self.generators.note(draws, found.origins)
            self.table.put_all(made, found.origins, call.reading, written, call.versions)

    def _first(self, call: WatchedCall) -> Any:
        """A call that is not known, or that has to be looked at each time."""
        func, reading, form, table = call.func, call.reading, call.form, self.table
        self.declared_numbers += reading.declared
        refuse_unchecked(func, call.args, call.kwargs, lambda tensor: table.find(tensor).lineage is not PUBLIC)
        if func in SPECIAL:
            refuse_out_of_sight(func, reading.tensors)
            call.forget_what_is_filled()
        region = self._regions.calls_at(func) if call.mixed is None else None
        states = None if form.draws is False else self.generators.before(reading.generators)
        started = table.clock
        result = self._run(func, call.args, call.kwargs)
        if table.clock != started:
            self.calls.keep_apart(call)
            return result  # taken apart into calls that were watched
        draws = () if states is None else self.generators.read(states, call)
        form.draws = form.draws or bool(draws)
        if func is Tensor.__setitem__ and blame.is_uninitialised(reading.origins[0]) and is_slice(call.args[1]):
            written = slice_written(call.args, table.find, self._records, call.key[2])
            table.note_slice(*written, call.versions[0])
            return result
        if func in TO_MEMORY and reading.tensors:
            table.export(reading.tensors[0])
        made = [result] if type(result) is Tensor else tensors_of_result(result)
        self._judge(call, made, call.written(made), draws, region)
        return result

    def _judge(
        self, call: WatchedCall, made: list[Tensor], written: list[int], draws: Draws = (), region: Any = None
    ) -> None:
        """Note what a call made, and the arguments that it wrote to, by their places.

        draws, region  the random numbers that it drew; the calls of the checkpointed region that it is in
        """
        form, reading = call.form, call.reading
        if not made:
            return
        parents = tuple(reading.origins) + draws
        digest = hash((form.digest, *[origin.digest for origin in parents]))
        if region is not None:
            region.append(digest)
        found = judged(call, made)
        settings = call.description
        if found.numbers is not ALL_FOLLOW:
            settings = settings_for(form, settings, found.numbers, self._records)
        rows = self.generators.rows_of(draws, found.rows) or [None] * len(made)
        origins = found.origins(digest, (call.func, settings, parents), blame.line_of_the_call(), rows)
        self.generators.note(draws, origins)
        origins = with_gradients(made, origins, self._records)
        self.table.put_all(made, origins, reading, written, call.versions)
        self.calls.keep(call, made, origins, written, draws)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            self.is_inside = func in RECURRENT
            return func(*args, **kwargs) if self.forward is None else self.forward(func, args, kwargs)
        except Exception as error:
            self.explain(error)
            raise
        finally:
            self.is_inside = False

    def explain(self, error: Exception) -> None:
        if self.kind is BatchKind.REHEARSAL:
            error.add_note(blame.REHEARSAL_FAILED)

    def _check_scripted(self, args: Any) -> None:
        if not self.is_paused and self.is_open:
            with self.paused():
                origins = [self.table.find(tensor) for tensor in tensors_in(args)]
            if any(origin.lineage is not PUBLIC for origin in origins):
                refuse_scripted()
