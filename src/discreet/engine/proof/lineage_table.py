"""Which tensor of a step has which lineage, also behind views and writes in place.

A tensor is looked up as an object, with its version. A view that was written to, or that nobody has seen, is placed by
its memory: entries that lie at one address belong to one record.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from discreet.core.check import require
from discreet.engine.model.support import modules_in, tensors_of
from discreet.engine.proof.axes import (
    Write,
    are_all,
    geometry_of,
    overlaps,
    place_in_memory,
    place_of_writes,
    tells_places,
)
from discreet.engine.proof.blame import (
    CHANGED,
    OF_THE_DATASET,
    UNKNOWN,
    WRITTEN,
    here,
    is_uninitialised,
    refuse_trained,
    refuse_writing,
)
from discreet.engine.proof.declared import DECLARED
from discreet.engine.proof.draws.shared_draws import drawn_in
from discreet.engine.proof.forms.call_forms import Reading
from discreet.engine.proof.lineage import (
    MIXED,
    PUBLIC,
    SOLE,
    UNPROVEN_ROWS,
    ExistingTensors,
    ExportedMemory,
    HeldTensor,
    Lineage,
    Origin,
    SeenTensor,
    has_memory,
    is_of_records,
    shares_memory,
    storage_of,
    values_of,
    version_of,
)
from discreet.engine.proof.watched_functions import NEW_MEMORY, changes_graph
from discreet.engine.trace.capture import RecordAxis

_MOST_LEAVES: Final = 10_000
NoteBackward = Callable[[Tensor, Origin, Callable[[Tensor], Origin]], Origin]


class LineageTable:
    """The lineage of every tensor in one step."""

    def __init__(self, model: nn.Module, with_backward: NoteBackward, wholes: Sequence[Tensor] = ()) -> None:
        self.model, self._with_backward = model, with_backward
        self._wholes = wholes  # the gathered parameters of a sharded model
        self._existing: ExistingTensors | None = None
        self.held: dict[int, HeldTensor] = {}  # parameters and buffers
        self._in_order: list[HeldTensor] = []  # the same; one that is shared comes again
        self._held_storages: set[int] | None = None  # their memories, once a write asks for them
        self._leaves: dict[Any, Origin] = {}
        self._after: dict[Any, Origin] = {}  # origins of tensors of which a part was written
        self.entries: dict[int, SeenTensor] = {}
        self.writes: dict[int, list[Write]] = {}
        self.empties: dict[int, tuple[int, int]] = {}  # memories of torch.empty: when they were made, their version
        self.exported: dict[int, ExportedMemory] = {}  # memories that something outside torch got hold of
        self._used: list[Tensor] = []  # tensors of old that this step has used
        self._withheld: list[weakref.ref[Tensor]] = []
        self._records, self.clock = 0, 0
        self.is_in_backward = False  # whether a custom backward pass is under way

    # -- steps -----------------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        return self._existing is not None

    def begin(self, live: Iterable[Tensor], private: Iterable[Tensor]) -> None:
        """Take stock before the first batch."""
        held = set(map(id, self._of_the_model()))
        withheld = [tensor for tensor in (found() for found in self._withheld) if tensor is not None]
        self._existing = ExistingTensors([one for one in live if id(one) not in held], [*private, *withheld])

    def _of_the_model(self) -> list[Tensor]:
        return [*tensors_of(modules_in(self.model)), *self._wholes]

    def withhold(self, tensor: Tensor) -> None:
        """This tensor may hold records, although it exists before the first batch."""
        self._withheld.append(weakref.ref(tensor))
        if self._existing is not None:
            self._existing.forget(tensor)

    def new_step(self, records: int) -> None:
        self.forget()
        self._records, self._held_storages = records, None
        tensors = self._of_the_model()
        if len(tensors) == len(self._in_order) and all(map(HeldTensor.is_as_it_was, self._in_order, tensors)):
            return
        self._in_order = [self._newly_held(number, tensor) for number, tensor in enumerate(tensors)]
        self.held = {id(one.tensor): one for one in self._in_order}  # what the model holds no longer may hold records

    def _newly_held(self, number: int, tensor: Tensor) -> HeldTensor:
        known = self.held.get(id(tensor))
        return known if known is not None and known.is_as_it_was(tensor) else HeldTensor.of(tensor, number)

    def leaf(self, tensor: Tensor, lineage: Lineage | RecordAxis, digest: int, name: Any = None) -> Origin:
        """The origin of a tensor that no call made: one for all tensors of its kind that stand in its place.

        name  what other processes have in its place, if they make their losses alike (program_digest.py)

        Sizes, strides, type and the number of records tell origins apart, too.
        """
        if not has_memory(tensor):
            return Origin(lineage, digest, settings=name)
        key = lineage, digest, self._records, tensor.shape, tensor.stride(), tensor.dtype
        known = self._leaves.get(key)
        if known is None:
            if len(self._leaves) >= _MOST_LEAVES:
                self._leaves.clear()  # calls on them are judged anew
            known = self._leaves[key] = Origin(lineage, digest, settings=name)
            known.is_kept = True
        return known

    def forget(self) -> None:
        """Forget the tensors of a step: what is left of them is mixed in the next."""
        self.entries, self.writes, self.exported, self._used, self.empties = {}, {}, {}, [], {}

    # -- finding ---------------------------------------------------------------------------------------

    def find(self, tensor: Tensor) -> Origin:
        """Where a tensor comes from."""
        entry = self.entries.get(id(tensor))
        if entry is not None and entry.tensor() is tensor:
            try:
                is_as_seen = entry.version == tensor._version and entry.node is type(tensor.grad_fn)
            except RuntimeError:  # tensors of inference mode do not count writes
                return Origin(MIXED, 0, blame=here(UNKNOWN))
            if not is_as_seen or ((self.exported or self.writes) and not self._is_quiet(tensor, entry.clock)):
                return self._after_writes(tensor, entry)
            if self.empties and entry.origin.lineage is MIXED:
                return self._filled(tensor, entry.origin)
            return entry.origin
        held = self.held.get(id(tensor))
        if held is not None and held.tensor is tensor:
            exported = self.exported.get(storage_of(tensor)) if self.exported else None
            is_as_seen = exported is None or exported.is_unchanged()
            own = held.trained if tensor.requires_grad else held.frozen
            return own if is_as_seen else Origin(MIXED, 0, blame=here(UNKNOWN))
        return self._unseen(tensor)

    def _is_quiet(self, tensor: Tensor, clock: int) -> bool:
        """Whether nothing was written to a memory since then, also through tensors whose writes torch counts apart."""
        storage = storage_of(tensor) if has_memory(tensor) else 0
        writes = self.writes.get(storage)
        return storage not in self.exported and (writes is None or writes[-1].clock <= clock)

    def find_saved(self, tensor: Tensor) -> Origin:
        """Where a tensor comes from that autograd saved: a new one in the memory of one that was seen."""
        before, self.is_in_backward = self.is_in_backward, True
        try:
            return self.find(tensor)
        finally:
            self.is_in_backward = before

    def _unseen(self, tensor: Tensor) -> Origin:
        assert self._existing is not None
        declared = DECLARED.number_of(tensor)
        if declared is not None:
            return self.put(tensor, self.leaf(tensor, PUBLIC, declared), 0)
        if not has_memory(tensor):
            return self.put(tensor, Origin(MIXED, 0, blame=here(UNKNOWN)))
        if self._existing.has(tensor):
            if tensor.requires_grad and torch.is_grad_enabled():
                refuse_trained(tensor)
            self._used.append(tensor)
            digest, name = hash(("existing", id(tensor))), self._existing.name_of(tensor)
            return self.put(tensor, self.leaf(tensor, PUBLIC, digest, name), 0)
        if self._existing.existed(tensor):
            return self.put(tensor, Origin(MIXED, 0, blame=here(CHANGED)))
        if not tensor.untyped_storage().resizable():  # memory that torch did not take by itself
            self._export_shared(tensor)
        return self.put(tensor, self._with_backward(tensor, self._alias(tensor), self.find_saved))

    def _alias(self, tensor: Tensor) -> Origin:
        """The origin of a tensor that no watched call made: unknown, although its memory may be known.

        Values do not tell which graph leads to it: `nn.Parameter(h)` has those of `h`, and stops its gradient. A custom
        backward pass has no graph, and gets what autograd saved for it as new tensors in the same memory.
        """
        for entry in self.entries.values() if self.is_in_backward else ():
            other = entry.tensor()
            if other is None or not has_memory(other) or storage_of(other) != storage_of(tensor):
                continue
            if geometry_of(tensor) == geometry_of(other) and tensor.dtype == other.dtype:
                return values_of(self.find(other))
        is_private = self._existing is not None and self._existing.is_private(tensor)
        return Origin(MIXED, 0, blame=here(OF_THE_DATASET if is_private else UNKNOWN))

    def _after_writes(self, tensor: Tensor, entry: SeenTensor) -> Origin:
        """The lineage of a tensor whose memory, or whose graph, changed since it was seen."""
        origin = entry.origin
        if self.empties and is_uninitialised(origin):
            return self._filled(tensor, origin)
        if tensor.grad_fn is None and entry.node is not type(None):
            return self.put(tensor, Origin(MIXED, 0, blame=here(UNKNOWN)))  # taken out of the graph, unseen
        if type(tensor.grad_fn) is not entry.node:
            origin = self._with_backward(tensor, origin, self.find_saved)
        storage = storage_of(tensor)
        if storage in self.exported and not self.exported[storage].is_unchanged():
            return self.put(tensor, Origin(MIXED, 0, blame=here(UNKNOWN)))
        writes = self.writes.get(storage, [])
        since = [write for write in writes if write.clock > entry.clock]
        if not are_all(since, entry.version, tensor):
            return self.put(tensor, Origin(MIXED, 0, blame=here(UNKNOWN)))
        for write in since:
            origin = self._merged(tensor, origin, write)
        return self.put(tensor, origin, since[-1].clock if since else entry.clock)

    def _merged(self, tensor: Tensor, origin: Origin, write: Write) -> Origin:
        """The origin of a tensor of which another call wrote a part: one for all that were made and written alike.

        `_written` reads nothing else, so that it gives the same; sizes and type of the tensor are those of the origin.
        """
        here_and_there = geometry_of(tensor), tensor.dtype, write.geometry, write.dtype
        key = origin, write.origin, write.before, self._records, *here_and_there
        known = self._after.get(key)
        if known is None:
            known = self._written(tensor, origin, write)
            if origin.is_kept and write.origin.is_kept and known.lineage is not MIXED:
                if len(self._after) >= _MOST_LEAVES:
                    self._after.clear()
                known.is_kept, self._after[key] = True, known
        return known

    def _written(self, tensor: Tensor, origin: Origin, write: Write) -> Origin:
        new, records = write.origin, self._records
        digest, parents = hash((origin.digest, new.digest)), (origin, new)
        if MIXED in (origin.lineage, new.lineage):
            return Origin(MIXED, digest, new.func, new.settings, parents, origin.blame or new.blame)
        place: Lineage | RecordAxis
        if SOLE in (origin.lineage, new.lineage):
            place = SOLE
        elif new.lineage is PUBLIC or (write.before == new.lineage and origin.lineage is not PUBLIC):
            place = origin.lineage  # every address keeps its record
            if (
                new.lineage is PUBLIC
                and isinstance(place, RecordAxis)
                and tells_places(tensor, place, write, self._records)
            ):
                place = MIXED
        else:
            place = place_in_memory(tensor, new.lineage, write.geometry, records, write.dtype)
            is_whole = geometry_of(tensor) == write.geometry
            equal = (origin.rows or UNPROVEN_ROWS).equal
            if origin.lineage is PUBLIC and not is_whole and place not in (PUBLIC, MIXED, *equal):
                place = MIXED  # what is left of the public rows may go by the places of records
            if isinstance(origin.lineage, RecordAxis) and place != origin.lineage:
                place = MIXED if place is not PUBLIC else origin.lineage
        blame = here(WRITTEN) if place is MIXED else None
        rows = None
        if place is PUBLIC and geometry_of(tensor) == write.geometry:
            rows = new.rows
        elif place is PUBLIC and (origin.rows, new.rows) != (None, None):
            rows = UNPROVEN_ROWS
        return Origin(place, digest, new.func, new.settings, parents, blame, rows=rows)

    def _filled(self, tensor: Tensor, origin: Origin) -> Origin:
        """The lineage of a tensor of torch.empty: as it was, or that of what was written, if all of it was."""
        storage = storage_of(tensor) if has_memory(tensor) else 0
        if not is_uninitialised(origin) or storage not in self.empties or storage in self.exported:
            return origin
        made, version = self.empties[storage]
        writes = [write for write in self.writes.get(storage, []) if write.clock > made]
        is_odd = any(write.dtype != tensor.dtype or write.origin.lineage is MIXED for write in writes)
        if not writes or is_odd or not are_all(writes, version, tensor):
            return origin
        place = place_of_writes(tensor, writes, self._records)
        if place is None:
            return origin
        last, parents = writes[-1].origin, tuple(write.origin for write in writes)
        digest = hash((origin.digest, last.func, *[parent.digest for parent in parents]))
        rows = last.rows if writes[-1].geometry == geometry_of(tensor) else UNPROVEN_ROWS
        rows = rows if place is PUBLIC else None
        filled = Origin(place, digest, last.func, last.settings, parents, rows=rows)
        return self.put(tensor, filled, writes[-1].clock)

    # -- noting ----------------------------------------------------------------------------------------

    def put(self, tensor: Tensor, origin: Origin, clock: int | None = None) -> Origin:
        """Note where a tensor comes from, with all writes up to then: now, unless `clock` says otherwise."""
        self.entries[id(tensor)] = SeenTensor.of(tensor, origin, self.clock if clock is None else clock)
        return origin

    def put_again(self, made: Tensor, origin: Origin, given: Sequence[Tensor]) -> None:
        """What a known call made of what was given to it, unless it gave that back; it changes no graph in place."""
        self.clock += 1
        for one in given:
            if one is made and not changes_graph(origin.func, of_model=id(one) in self.held):
                return
        seen = weakref.ref(made), version_of(made), type(made.grad_fn), origin, self.clock
        self.entries[id(made)] = tuple.__new__(SeenTensor, seen)  # much faster than SeenTensor.of

    def put_all(
        self,
        made: Sequence[Tensor],
        origins: Sequence[Origin],
        reading: Reading,
        written: Sequence[int],
        versions: Sequence[int],
    ) -> None:
        """What a call made, and what it wrote to; `versions` are those of its arguments before."""
        self.clock += 1
        entries, given = self.entries, reading.tensors
        handed = () if written else list(map(id, given))
        for tensor, origin in zip(made, origins, strict=False):
            if tensor.layout is not torch.strided:
                for one in given:
                    self.export(one)  # a sparse tensor writes to its values without a count
            if id(tensor) in handed and not changes_graph(origin.func, of_model=id(tensor) in self.held):
                continue  # the call gave back what it got
            entries[id(tensor)] = SeenTensor.of(tensor, origin, self.clock)
            if origin.func in NEW_MEMORY and has_memory(tensor):
                self.empties[storage_of(tensor)] = self.clock, version_of(tensor)
        for index in written:
            tensor = given[index]
            origin = origins[[one is tensor for one in made].index(True)]
            storage = storage_of(tensor)
            if origin.lineage is not PUBLIC and overlaps(tensor):
                origin = Origin(MIXED, origin.digest, blame=here(WRITTEN))
                entries[id(tensor)] = SeenTensor.of(tensor, origin, self.clock)
            if origin.lineage is not PUBLIC and (self._is_held(storage) or DECLARED.owns_memory(storage)):
                refuse_writing(origin)
            self._note_write(tensor, versions[index], reading.origins[index].lineage, origin)
            if storage in self.exported:
                self.exported[storage] = self.exported[storage].after(tensor)

    def _is_held(self, storage: int) -> bool:
        if self._held_storages is None:
            self._held_storages = {storage_of(held.tensor) for held in self.held.values()}
        return storage in self._held_storages

    def note_slice(self, view: Tensor, origin: Origin, version: int) -> None:
        """A part of a memory of torch.empty was written, which had that version before."""
        self.clock += 1
        self._note_write(view, version, PUBLIC, origin)

    def _note_write(self, view: Tensor, version: int, before: Lineage | RecordAxis, origin: Origin) -> None:
        versions = version, version_of(view)
        write = Write(self.clock, versions, geometry_of(view), before, origin, view.dtype)
        self.writes.setdefault(storage_of(view), []).append(write)

    def declare(self, tensor: Tensor) -> None:
        """The user says that a tensor is public; what watched calls made of the records is not."""
        entry = self.entries.get(id(tensor))
        if entry is not None and entry.tensor() is tensor:
            require(
                not is_of_records(entry.origin),
                "discreet.public on a tensor that does not come from the records",
                "a tensor that calls in this step made from the batch",
                "declare tensors that come from parameters, constants or random numbers only",
            )
            if drawn_in(self.find(tensor)):
                return  # a draw of this batch, which records may share
        self.put(tensor, self.leaf(tensor, PUBLIC, DECLARED.number_of(tensor) or 0), 0)

    def export(self, tensor: Tensor) -> None:
        """Something outside torch got hold of the memory, and may write to it unseen."""
        if has_memory(tensor) and not tensor.is_meta:
            self.exported.setdefault(storage_of(tensor), ExportedMemory.of(tensor))

    def _export_shared(self, stranger: Tensor) -> None:
        """Export the tensors whose memory a tensor from outside (DLPack) shares: it would write to them unseen."""
        for entry in list(self.entries.values()):
            own = entry.tensor()
            if own is not None and shares_memory(own, stranger):
                self.export(own)

    def is_memory_unchanged(self) -> bool:
        """Whether memory that others can write to holds what it held, unless watched calls changed it."""
        return all(one.is_unchanged() for one in self.exported.values())

    def unchanged(self) -> bool:
        """Whether the tensors of old that this step used hold what they held, unless watched calls changed them."""
        assert self._existing is not None
        return all(self._existing.has(t) or storage_of(t) in self.writes for t in self._used)
