"""The watch over one step: every torch call between the batch that is given and the losses that come back.

    watch.open(batch, records, views); augment(batch); ...the user's loop...; watch.finish(losses)

Guarantee: losses that `finish` accepts have one entry per record, and no call that made them moved an entry of one
record by another record, whatever the values of the records and of the parameters are; each call was proven by itself
(proof/call_proof.py). Values that come from elsewhere do not reach them (proof/lineage.py), nor do values that were
read out of the tensors (proof/program.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from discreet.core.check import refuse, require
from discreet.engine.checkpointed import checkpoint_frame
from discreet.engine.proof.blame import (
    BY_PLACE,
    CHANGED,
    READS,
    UNKNOWN,
    blame_for,
    here,
    is_uninitialised,
    line_of_the_call,
    refuse_losses,
    user_line,
)
from discreet.engine.proof.call_forms import Reading
from discreet.engine.proof.custom_backward import backward_of
from discreet.engine.proof.lineage import (
    DECLARED,
    MIXED,
    PUBLIC,
    SOLE,
    Blame,
    Lineage,
    Origin,
    PublicRows,
    live_tensors,
    version_of,
    versions_of,
)
from discreet.engine.proof.lineage_table import LineageTable
from discreet.engine.proof.program import KnownPrograms
from discreet.engine.proof.provable_call import ALL_FOLLOW, Numbers, Place, tensors_of_result
from discreet.engine.proof.public_rows import is_rows, public_rows, rows_of_memory
from discreet.engine.proof.verdicts import SIZED, Form, form_of, mixed, settings_for, verdict_on
from discreet.engine.proof.watched_functions import (
    DATA_GET,
    DATA_SET,
    FILLS,
    HIDDEN,
    HOOKS,
    QUIET,
    SPECIAL,
    TO_MEMORY,
    is_slice,
    saved_tensors_hooks,
)
from discreet.engine.records_held import tensors_held_by
from discreet.engine.trace.capture import RecordAxis, name_of
from discreet.engine.trace.library_questions import public_answer


class _Judged(NamedTuple):
    """What a call made: the lineage of each tensor, what mixed records, which numbers followed the number of records,
    and how public tensors follow it."""

    places: Sequence[Place]
    blame: Blame | None = None
    numbers: Numbers = ALL_FOLLOW
    rows: Sequence[PublicRows | None] | None = None


def _autocast() -> str:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return ", ".join(f"{kind} {torch.get_autocast_dtype(kind)}" for kind in kinds)


class RecordWatch(TorchFunctionMode):
    """Follows records through a step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.table = LineageTable(model, self._with_backward)
        self.forward: Callable[[Any, Any, Any], Any] | None = None  # how the engine runs calls inside the model
        self._programs = KnownPrograms()
        self._records, self._opened = 0, 0
        self.is_open = self._is_paused = False
        self._read: tuple[int, str] | None = None  # the first value that was read
        self._read_now: tuple[int, str] | None = None  # the first of this batch
        self._declared: list[Any] = []
        self.declarations: dict[str, None] = {}  # lines that call `public` in steps

    # -- one batch -------------------------------------------------------------------------------------

    def open(self, places: list[tuple[Tensor, RecordAxis | Lineage]], records: int, private: Any = None) -> None:
        """Watch from here on; `places` says where the records lie in the tensors of the batch.

        private  what holds records before the first batch, such as the data
        """
        self.close()
        self._records = records
        self.take_stock([private, *(tensor for tensor, _ in places)])
        self.table.new_step(records)
        self._opened = self.table.clock
        for index, (tensor, place) in enumerate(places):
            where = place if records > 1 or place in (PUBLIC, MIXED) else SOLE
            blame = UNKNOWN if place is MIXED else None
            self.table.put(tensor, Origin(where, hash(("batch", index)), blame=blame))
        self._declared, self.is_open, self._read_now = [], True, None
        _push_mode(self)

    def take_stock(self, private: Any) -> None:
        """Tensors that exist now are public from here on, except those that `private` holds. The first time counts."""
        if not self.table.has_begun:
            live = live_tensors()
            self.table.begin(live, tensors_held_by(private, live))

    @contextmanager
    def reading_records(self) -> Iterator[None]:
        """Tensors that are made or written to inside the block do not count as public: they may hold records."""
        if self.table.has_begun:
            yield
            return
        before = {id(tensor): (tensor, version_of(tensor)) for tensor in live_tensors()}
        try:
            yield
        finally:
            for tensor in live_tensors():
                known = before.get(id(tensor))
                if known is None or known[1] != version_of(tensor):
                    self.table.withhold(tensor)

    def close(self) -> None:
        """Stop watching: remove this mode, and no other, from wherever it is on the stack."""
        if not self.is_open:
            return
        self.is_open, self.forward = False, None
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)
        self.table.forget()

    @property
    def declared_at(self) -> list[str]:
        """The lines that declare values public, in order."""
        return list(DECLARED.outside_of_steps | self.declarations)

    @property
    def wants_another_size(self) -> bool:
        """Whether losses were not compared for two numbers of records yet."""
        return self._programs.wants_another_size

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside the block are the engine's own."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def running(self, handle: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
        """Calls inside the block are run by `handle`."""
        before, self.forward = self.forward, handle
        try:
            yield
        finally:
            self.forward = before

    def declare(self, value: Any) -> None:
        """A choice of this step, or a tensor or module, that does not come from the records."""
        if isinstance(value, Tensor):
            self.table.declare(value)
        elif not isinstance(value, nn.Module):
            self._declared.append(value)

    def finish(self, losses: Tensor) -> None:
        """Refuse losses that are not kept apart, and stop watching if they are."""
        if not self.is_open:
            return
        with self.paused():
            origin = self.table.find(losses)
            if not self.table.unchanged():
                origin = Origin(MIXED, 0, blame=CHANGED)
            if origin.lineage is MIXED:
                refuse_losses(origin)
            place = origin.lineage
            require(
                place is not PUBLIC,
                "losses that are computed from the tensors of the batch",
                "losses that depend on none of them",
                "give the values of the records as tensors: encode strings and lists in the dataset or in collate_fn",
            )
            if isinstance(place, RecordAxis) and (place.axis != 0 or place.minor):
                refuse(
                    "losses with one entry for each record, in the order of the batch",
                    "losses in another order",
                    "keep the record as the first axis",
                )
            read = self._read_now if self._declared and self._programs.has_any else self._read
            self._programs.check(origin, self._records, read, tuple(self._declared))

    # -- one call --------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_paused or not self.is_open:
            return func(*args, **kwargs)
        table = self.table
        if func in QUIET and not table.has_sizes_by_values:
            return func(*args, **kwargs)
        reading = Reading(self._records, values=func not in SIZED)
        description = reading.describe_call(args, kwargs, table.find)
        if not torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
            description = (*description, f"gradients {torch.is_grad_enabled()}", _autocast())
        tensors, is_special = reading.tensors, func in SPECIAL
        if is_special:
            self._prepare(func, reading)
        blamed, on_records = reading.mixed_and_private()
        if on_records and (is_special or saved_tensors_hooks(False) is not None):
            self._refuse_hooks(func)
        versions = versions_of(tensors)
        started = table.clock
        try:
            result = func(*args, **kwargs) if self.forward is None else self.forward(func, args, kwargs)
        except Exception:
            self._note_error(on_records)
            raise
        if table.clock != started:
            return result  # taken apart into calls that were watched
        if func is Tensor.__setitem__ and is_uninitialised(reading.origins[0]) and is_slice(args[1]):
            self._write_slice(args)
            return result
        if is_special and func in TO_MEMORY:
            self._special(func, args, reading)
        made = [result] if type(result) is Tensor else tensors_of_result(result)
        now = versions_of(tensors)
        written = [] if now == versions else [i for i, version in enumerate(versions) if now[i] != version]
        if written:
            made = made + [tensors[i] for i in written if not any(tensors[i] is one for one in made)]
        elif not made:
            if on_records or blamed is not None:
                self._note_reading(func, blamed)
            return result
        form = form_of(func, description, tuple(reading.declared))
        clock, where = table.tick(), line_of_the_call()
        parents = tuple(reading.origins)
        digest = hash((form.digest, *[origin.digest for origin in parents]))
        if blamed is not None:
            places, blame, numbers, rows = _Judged([MIXED] * len(made), blamed.blame)
        else:
            places, blame, numbers, rows = self._judged(form, func, args, kwargs, reading, made, on_records=on_records)
        if numbers is not ALL_FOLLOW:
            description = settings_for(form, description, numbers, self._records)
        if blame is None and rows is None and made[0] is result and not written:  # nearly always: one new tensor
            table.put_made(result, Origin(places[0], digest, clock, func, description, parents, None, where), tensors)
            return result
        origins = []
        for i, (place, row) in enumerate(zip(places, rows or [None] * len(made), strict=True)):
            own = blame if place is MIXED else None
            origins.append(Origin(place, digest + i, clock, func, description, parents, own, where, row, output=i))
        table.put_all(made, origins, reading, written)
        return result

    def _write_slice(self, args: Any) -> None:
        """Note `target[index] = value` as a copy into a view: the view shows which entries were written."""
        target, index, value = args
        with torch._C.DisableTorchFunction():
            view = target[index]
        is_tensor = isinstance(value, Tensor)
        func: Any = Tensor.copy_ if is_tensor else Tensor.fill_
        came = self.table.find(value) if is_tensor else Origin(PUBLIC, 0)
        reading = Reading(self._records, values=func not in SIZED)
        empty = Origin(PUBLIC, 1, rows=rows_of_memory(view, self._records))
        description = reading.describe((view, value), lambda tensor: empty if tensor is view else came)
        form, clock = form_of(func, description, tuple(reading.declared)), self.table.tick()
        found = _Judged([MIXED], came.blame)
        if came.lineage is not MIXED:
            on_records = came.lineage is not PUBLIC
            found = self._judged(form, func, (view, value), {}, reading, [view], on_records=on_records)
        digest = hash((form.digest, came.digest))
        settings = (description, ()), repr(index)
        rows = found.rows[0] if found.rows else None
        origin = Origin(found.places[0], digest, clock, func, settings, (came,), found.blame, rows=rows)
        self.table.note_write(view, origin)

    def _prepare(self, func: Any, reading: Reading) -> None:
        """A tensor that is overwritten, every entry, holds nothing of before."""
        if func in FILLS and reading.origins and is_uninitialised(reading.origins[0]):
            reading.origins[0] = Origin(PUBLIC, 1, rows=rows_of_memory(reading.tensors[0], self._records))

    def _special(self, func: Any, args: Any, reading: Reading) -> None:
        """Ways to a tensor's memory that leave its version as it is."""
        if func == DATA_SET:
            self.table.replace_memory(args[0], self.table.find(args[1]))
        elif func == DATA_GET:
            self.table.share_memory(args[0])
        elif reading.tensors:
            self.table.export(reading.tensors[0])

    def _judged(
        self, form: Form, func: Any, args: Any, kwargs: Any, reading: Reading, made: list[Tensor], *, on_records: bool
    ) -> _Judged:
        """The lineage of what a call made, if nothing that it took was mixed."""
        if func in HIDDEN:
            return _Judged([MIXED] * len(made), here(HIDDEN[func]))
        if func is Tensor.__deepcopy__:
            return _Judged([reading.origins[0].lineage])
        has_rows = any(origin.rows is not None for origin in reading.origins)
        if not on_records:
            if reading.opaque is not None:
                verdict = mixed(made, f"it takes {reading.opaque.value}, which was not watched")
                return _Judged(verdict.outputs, blame_for(func, verdict))
            rows = public_rows(form, func, args, kwargs, reading, made) if form.follows or has_rows else None
            return _Judged([PUBLIC] * len(made), rows=rows)
        if self._records == 1:
            return _Judged([SOLE] * len(made))
        verdict = verdict_on(form, func, args, kwargs, reading, made)
        read = [PublicRows(proven=frozenset([(verdict.followed, frozenset())]))] * len(made) if has_rows else None
        if verdict.rows and not all(is_rows(reading.origins[i], axis) for i, axis in verdict.rows):
            verdict = mixed(made, BY_PLACE)
        blame = blame_for(func, verdict) if MIXED in verdict.outputs else None
        return _Judged(verdict.outputs, blame, verdict.numbers, read)

    def _note_error(self, on_records: bool) -> None:
        """An error tells something about the records, to whoever catches it."""
        if on_records:
            self._note(user_line() or "")

    def _note_reading(self, func: Any, blamed: Origin | None) -> None:
        if public_answer(func) is not None:
            return
        by_size = func in QUIET and blamed is not None and blamed.blame is not None and blamed.blame.sized_by_values
        if self._read_now is None and (by_size or (func not in QUIET and name_of(func) in READS)):
            where = user_line(but_not_torch=True)
            if where is not None:
                self._note(where)

    def _note(self, where: str) -> None:
        read = self.table.tick(), where
        self._read, self._read_now = self._read or read, self._read_now or read

    def _refuse_hooks(self, func: Any) -> None:
        if HOOKS.get(func):
            refuse(
                f"a step whose gradients autograd computes: {HOOKS[func]}",
                f"{name_of(func)} at {user_line()}",
                "remove the hook; private.step bounds every record's gradient",
            )
        if saved_tensors_hooks(False) is not None and checkpoint_frame() is None:
            refuse(
                "saved tensors that come back as they were",
                f"saved_tensors_hooks around {name_of(func)} at {user_line()}",
                "remove them, and use a smaller micro_batch, which saves memory too",
            )

    def _with_backward(self, tensor: Tensor, origin: Origin) -> Origin:
        return backward_of(tensor, origin, self)

    @contextmanager
    def watched(self, place: RecordAxis | Lineage, tensors: list[Tensor]) -> Iterator[Callable[[Tensor], Origin]]:
        """Calls inside the block are watched, with records along `place`; values of them may not be read."""
        with self.paused():
            for index, tensor in enumerate(tensors):
                self.table.put(tensor, Origin(place, hash(("gradient", index))))
        before, self._read, self._read_now = (self._read, self._read_now), None, None
        forward, self.forward = self.forward, None
        paused, self._is_paused = self._is_paused, False
        is_on = any(one is self for one in _get_current_function_mode_stack())
        try:
            with nullcontext() if is_on else self:
                yield self.table.find
            if self._read is not None:
                refuse(
                    "a backward pass that does not read values of the records",
                    f"a value that was read at {self._read[1]}",
                    "compute each record's gradient from that record's values alone, without a branch",
                )
        finally:
            (self._read, self._read_now), self.forward, self._is_paused = before, forward, paused
