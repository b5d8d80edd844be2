"""What a watched call made: the lineage of its results, by the proof of the call, and who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from discreet.engine.proof.blame import BY_PLACE, UNINITIALISED, UNKNOWN, blame_for, here, is_uninitialised
from discreet.engine.proof.draws.read_draws import draws_used
from discreet.engine.proof.forms.call_forms import Reading
from discreet.engine.proof.forms.provable_call import ALL_FOLLOW, Numbers, Place
from discreet.engine.proof.lineage import (
    MIXED,
    PUBLIC,
    SOLE,
    Blame,
    Origin,
    PublicRows,
    has_memory,
    storage_of,
    versions_of,
)
from discreet.engine.proof.public_rows import is_rows, public_rows, rows_of_memory
from discreet.engine.proof.verdicts import (
    READS_MEMORY,
    SIZED,
    Form,
    form_of,
    is_of_torch,
    mixed,
    reads_memory,
    unprovable,
    verdict_on,
)
from discreet.engine.proof.watched_functions import (
    FILLS,
    hidden_by,
    is_constant,
    is_given_sizes,
    is_given_values,
    leaves_memory,
    writes_in_place,
)
from discreet.engine.trace.capture import RecordAxis


class Judged(NamedTuple):
    """What a call made: the lineage of each tensor, what mixed records, which numbers followed the number of records,
    and how public tensors follow it."""

    places: Sequence[Place]
    blame: Blame | None = None
    numbers: Numbers = ALL_FOLLOW
    rows: Sequence[PublicRows | None] | None = None

    def origins(
        self, digest: int, made_by: tuple[Any, Any, tuple[Origin, ...]], where: Any, rows: Sequence[PublicRows | None]
    ) -> list[Origin]:
        """The origins of what the call made, given function, settings and parents, and its line."""
        return [
            Origin(place, digest + i, *made_by, self.blame if place is MIXED else None, where, row, output=i)
            for i, (place, row) in enumerate(zip(self.places, rows, strict=True))
        ]


@final
class WatchedCall:
    """One watched call, as it was read.

    key       the call with origins in the places of tensors, and the modes in which it is made
    versions  how often its tensors had been written to before
    """

    __slots__ = ("_form", "args", "description", "func", "key", "kwargs", "reading", "versions")

    def __init__(
        self, func: Any, args: Any, kwargs: Any, reading: Reading, key: Any, versions: list[int] | None = None
    ) -> None:
        """`versions`: None before the call is made; they are looked at then."""
        self.func, self.args, self.kwargs, self.reading, self.key = func, args, kwargs, reading, key
        self._form: Form | None = None
        self.description: Any = None  # once the form was asked for
        self.versions = versions_of(reading.tensors) if versions is None else versions

    @property
    def form(self) -> Form:
        if self._form is None:
            _, read, modes = self.key
            described = self.reading.described(read)
            self.description = described if modes is None else (*described, *modes)
            self._form = form_of(self.func, self.description, self.reading.declared)
        return self._form

    @property
    def mixed(self) -> Origin | None:
        """A mixed origin among the tensors."""
        return self.reading.mixed_and_private()[0]

    @property
    def comes_again(self) -> bool:
        """Whether `key` says all about the call, and other batches can make one with the same."""
        return self.reading.is_plain and all(origin.is_kept for origin in self.reading.origins)

    def written(self, made: list[Tensor]) -> list[int]:
        """The places of tensors that the call has written to; these tensors are added to what it made.

        Views of one memory count writes together. A call in place writes to its first argument alone, so that others in
        the same memory are not written to: what changed in them is found by the address (`LineageTable`).
        """
        tensors, versions = self.reading.tensors, self.versions
        now = versions_of(tensors)
        if now == versions:
            return []
        written = [i for i, version in enumerate(versions) if now[i] != version]
        is_first = len(written) > 1 and written[0] == 0 and self.args and self.args[0] is tensors[0]
        if is_first and writes_in_place(self.func) and is_of_torch(self.func):
            memory = storage_of(tensors[0])
            written = [0, *(i for i in written[1:] if tensors[i] is tensors[0] or storage_of(tensors[i]) != memory)]
        made += [tensors[i] for i in written if not any(tensors[i] is one for one in made)]
        return written

    def forget_what_is_filled(self) -> None:
        """A tensor that is overwritten, every entry, holds nothing of before."""
        reading = self.reading
        if self.func in FILLS and reading.origins and is_uninitialised(reading.origins[0]):
            empty, rows = reading.origins[0], rows_of_memory(reading.tensors[0], reading.records)
            made_by = empty.digest, empty.func, empty.settings, empty.parents  # which part of the memory
            reading.origins[0] = Origin(PUBLIC, *made_by, rows=rows)


def judged(call: WatchedCall, made: list[Tensor]) -> Judged:
    """The lineage of what a call made."""
    mixed_one, on_records = call.reading.mixed_and_private()
    if mixed_one is not None:
        return Judged([MIXED] * len(made), mixed_one.blame)
    form, func, reading = call.form, call.func, call.reading
    hidden = UNINITIALISED if leaves_memory(func) else hidden_by(func)
    if func is Tensor.new and not is_given_sizes(call.args):
        hidden = UNKNOWN  # in the memory of another tensor
    if hidden is not None and not is_given_values(func, call.args):
        return Judged([MIXED] * len(made), here(hidden))
    if func is Tensor.__deepcopy__:
        is_copy = type(call.args[-1]) is dict and _is_copy(reading.tensors[0], made[0])
        return Judged([reading.origins[0].lineage]) if is_copy else Judged([MIXED], here(UNKNOWN))
    has_rows = any(origin.rows is not None for origin in reading.origins)
    if not on_records or (is_constant(func, call.args) and len(reading.tensors) == 1 and reading.records > 1):
        if reading.opaque is not None:
            verdict = mixed(made, f"it takes {reading.opaque.value}, which was not watched")
            return Judged(verdict.outputs, blame_for(func, verdict))
        if not is_of_torch(func):
            verdict = mixed(made, "it is a function of your own, inside of which no call is watched")
            return Judged(verdict.outputs, blame_for(func, verdict))
        if reads_memory(func) and any(origin.func is not None for origin in reading.origins):
            verdict = mixed(made, READS_MEMORY)  # records may lie beside a public part of it
            return Judged(verdict.outputs, blame_for(func, verdict))
        follows = form.follows or has_rows
        rows = public_rows(form, func, call.args, call.kwargs, reading, made) if follows else None
        return Judged([PUBLIC] * len(made), rows=rows)
    if reading.records == 1:
        reason = unprovable(func, reading)  # an array or a function may bring what an earlier batch held
        if reason is None:
            return Judged([SOLE] * len(made))
        verdict = mixed(made, reason)
        return Judged(verdict.outputs, blame_for(func, verdict))
    verdict = verdict_on(form, func, call.args, call.kwargs, reading, made)
    read = None
    if has_rows or verdict.shares_draws:
        drawn = (made[0], verdict.outputs[0]) if form.draws and made else None
        used = draws_used(reading.origins, reading.tensors, verdict.rows, drawn)
        proven = frozenset([(verdict.followed, frozenset[int]())])
        axes = [[place] if isinstance(place, RecordAxis) and verdict.shares_draws else [] for place in verdict.outputs]
        read = [PublicRows(proven=proven, used=used, shared=frozenset(own)) for own in axes]
    if verdict.rows and not all(is_rows(reading.origins[i], axis) for i, axis in verdict.rows):
        verdict = mixed(made, BY_PLACE)
    blame = blame_for(func, verdict) if MIXED in verdict.outputs else None
    return Judged(verdict.outputs, blame, verdict.numbers, read)


def slice_written(args: Any, find: Callable[[Tensor], Origin], records: int, modes: Any) -> tuple[Tensor, Origin]:
    """`target[index] = value` as a copy into a view, which shows the entries that were written; and what was.

    modes  those around the call: without gradients the copy stops them
    """
    target, index, value = args
    with torch._C.DisableTorchFunction():
        view = target[index]
    is_tensor = isinstance(value, Tensor)
    func: Any = Tensor.copy_ if is_tensor else Tensor.fill_
    came = find(value) if is_tensor else Origin(PUBLIC, 0)
    reading = Reading(records, values=func not in SIZED)
    empty = Origin(PUBLIC, 1, rows=rows_of_memory(view, records))
    read = reading.read_call((view, value), {}, lambda tensor: empty if tensor is view else came)
    call = WatchedCall(func, (view, value), {}, reading, (func, read, modes))
    digest = hash((call.form.digest, repr(index), came.digest))
    found = judged(call, [view])
    rows = found.rows[0] if found.rows else None
    made_by = func, (call.description, repr(index)), (came,)
    return view, Origin(found.places[0], digest, *made_by, found.blame, rows=rows)


def is_new_to_memo(tensor: Tensor, memo: Any) -> bool:
    """Whether a deep copy will get memory of its own: then what else the memo holds does not matter.

    A memo that has a copy already gives back whatever it holds, which others may write to.
    """
    if type(memo) is not dict or id(tensor) in memo or not has_memory(tensor):
        return False
    storages = memo.get("torch", {})
    return type(storages) is dict and tensor.untyped_storage()._cdata not in storages


def _is_copy(tensor: Tensor, made: Tensor) -> bool:
    """Whether a tensor holds what another does, bit by bit, with no graph of its own: a memo can give back anything."""
    with torch._C.DisableTorchFunction():
        if made.shape != tensor.shape or made.dtype != tensor.dtype or made.grad_fn is not None:
            return False
        bits = [one.detach().reshape(-1).contiguous().view(torch.uint8) for one in (made, tensor)]
        return torch.equal(*bits)
