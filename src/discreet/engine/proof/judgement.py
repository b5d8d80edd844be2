"""What a watched call made: the lineage of its results, by the proof of the call, and who is to blame.

A call that comes again needs no second judgement. Guarantee: `KnownCalls` answers only for calls whose judgement is a
function of what it compares, so that the answer is what `judged` would give.

- Judgement reads the function, the arguments that are no tensors, the modes, the number of records, and of each tensor
  its origin, its type and its sizes. All but the last two are compared; origins are compared as objects, and an origin
  fixes type and sizes: of a leaf by its key (`LineageTable.leaf`), of a result because those that come out are compared
  with those that were judged. By induction over the calls of a batch, each tensor has the form of its origin.
- Where judgement also reads the values of public whole numbers (`contents`), these are compared as well. How rows of
  public tensors follow the number of records is part of an origin.
- Where more is read, calls are judged each time: declared numbers, generators and draws, objects, copies, writes in
  place, checkpointed regions, and all that is mixed.
- Nothing about tensors is taken from memory: whether a tensor is the one that was seen, has its version and its graph,
  and whether the call wrote to it, is looked at in every call (`LineageTable.find`, `RecordWatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

from discreet.engine.proof.blame import BY_PLACE, UNINITIALISED, blame_for, here
from discreet.engine.proof.call_forms import Reading
from discreet.engine.proof.draws.read_draws import draws_used
from discreet.engine.proof.lineage import MIXED, PUBLIC, SOLE, Blame, Origin, PublicRows
from discreet.engine.proof.provable_call import ALL_FOLLOW, Numbers, Place
from discreet.engine.proof.public_rows import is_rows, public_rows, rows_of_memory
from discreet.engine.proof.verdicts import SIZED, Form, contents, fits, form_of, is_of_torch, mixed, verdict_on
from discreet.engine.proof.watched_functions import HIDDEN, SPECIAL, changes_graph, leaves_memory


class Judged(NamedTuple):
    """What a call made: the lineage of each tensor, what mixed records, which numbers followed the number of records,
    and how public tensors follow it."""

    places: Sequence[Place]
    blame: Blame | None = None
    numbers: Numbers = ALL_FOLLOW
    rows: Sequence[PublicRows | None] | None = None


@final
class WatchedCall:
    """One watched call, as it was read.

    key  the call with origins in the places of tensors, and the modes in which it is made
    """

    __slots__ = ("_form", "args", "description", "func", "key", "kwargs", "reading")

    def __init__(self, func: Any, args: Any, kwargs: Any, reading: Reading, key: Any) -> None:
        self.func, self.args, self.kwargs, self.reading, self.key = func, args, kwargs, reading, key
        self._form: Form | None = None
        self.description: Any = None  # once the form was asked for

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


def judged(call: WatchedCall, made: list[Tensor]) -> Judged:
    """The lineage of what a call made."""
    mixed_one, on_records = call.reading.mixed_and_private()
    if mixed_one is not None:
        return Judged([MIXED] * len(made), mixed_one.blame)
    form, func, reading = call.form, call.func, call.reading
    hidden = UNINITIALISED if leaves_memory(func) else HIDDEN.get(func)
    if hidden is not None:
        return Judged([MIXED] * len(made), here(hidden))
    if func is Tensor.__deepcopy__ and _is_copy(reading.tensors[0], made[0]):
        return Judged([reading.origins[0].lineage])
    has_rows = any(origin.rows is not None for origin in reading.origins)
    if not on_records:
        if reading.opaque is not None:
            verdict = mixed(made, f"it takes {reading.opaque.value}, which was not watched")
            return Judged(verdict.outputs, blame_for(func, verdict))
        if not is_of_torch(func):
            verdict = mixed(made, "it is a function of your own, inside of which no call is watched")
            return Judged(verdict.outputs, blame_for(func, verdict))
        follows = form.follows or has_rows
        rows = public_rows(form, func, call.args, call.kwargs, reading, made) if follows else None
        return Judged([PUBLIC] * len(made), rows=rows)
    if reading.records == 1:
        return Judged([SOLE] * len(made))
    verdict = verdict_on(form, func, call.args, call.kwargs, reading, made)
    read = None
    if has_rows:
        drawn = (made[0], verdict.outputs[0]) if form.draws and made else None
        used = draws_used(reading.origins, reading.tensors, verdict.rows, drawn)
        read = [PublicRows(proven=frozenset([(verdict.followed, frozenset())]), used=used)] * len(made)
    if verdict.rows and not all(is_rows(reading.origins[i], axis) for i, axis in verdict.rows):
        verdict = mixed(made, BY_PLACE)
    blame = blame_for(func, verdict) if MIXED in verdict.outputs else None
    return Judged(verdict.outputs, blame, verdict.numbers, read)


def slice_written(args: Any, find: Callable[[Tensor], Origin], records: int) -> tuple[Tensor, Origin]:
    """`target[index] = value` as a copy into a view, which shows the entries that were written; and what was."""
    target, index, value = args
    with torch._C.DisableTorchFunction():
        view = target[index]
    is_tensor = isinstance(value, Tensor)
    func: Any = Tensor.copy_ if is_tensor else Tensor.fill_
    came = find(value) if is_tensor else Origin(PUBLIC, 0)
    reading = Reading(records, values=func not in SIZED)
    empty = Origin(PUBLIC, 1, rows=rows_of_memory(view, records))
    read = reading.read_call((view, value), {}, lambda tensor: empty if tensor is view else came)
    call = WatchedCall(func, (view, value), {}, reading, (func, read, None))
    digest = hash((call.form.digest, repr(index), came.digest))
    found = judged(call, [view])
    rows = found.rows[0] if found.rows else None
    made_by = func, (call.description, repr(index)), (came,)
    return view, Origin(found.places[0], digest, *made_by, found.blame, rows=rows)


def _is_copy(tensor: Tensor, made: Tensor) -> bool:
    """Whether a tensor holds what another does, with no graph of its own: a memo can give back anything."""
    with torch._C.DisableTorchFunction():
        same = made.shape == tensor.shape and made.dtype == tensor.dtype and made.grad_fn is None
        return same and torch.allclose(made, tensor, rtol=0.0, atol=0.0, equal_nan=True)


_MOST_CALLS: Final = 10_000  # that are remembered, for all numbers of records


@final
class KnownCall:
    """What a call made: the origins, sizes and types of its results."""

    __slots__ = ("dtypes", "origins", "sizes")

    def __init__(self, made: list[Tensor], origins: list[Origin]) -> None:
        self.origins, self.sizes, self.dtypes = origins, [one.shape for one in made], [one.dtype for one in made]

    def made(self, results: list[Tensor]) -> bool:
        """Whether results are of the kind that was judged."""
        is_same = [one.shape for one in results] == self.sizes and [one.dtype for one in results] == self.dtypes
        return is_same and set(map(type, results)) == {Tensor}


@final
class KnownCalls:
    """Calls that were judged, by all that their judgement depends on; see above."""

    def __init__(self) -> None:
        self._by_records: dict[int, dict[Any, KnownCall]] = {}
        self._known: dict[Any, KnownCall] = {}
        self._count = 0

    def begin(self, records: int) -> None:
        """Calls of a batch of so many records follow."""
        if self._count > _MOST_CALLS:  # judged anew
            self._by_records, self._count = {}, 0
        self._known = self._by_records.setdefault(records, {})

    def find(self, call: WatchedCall) -> KnownCall | None:
        """What a call makes, if it was made before."""
        known = self._known.get(call.key)
        return self._known.get((call.key, contents(call.reading))) if known is _BY_CONTENTS else known

    def keep(self, call: WatchedCall, made: list[Tensor], origins: list[Origin]) -> None:
        """Remember a call that wrote to no tensor and drew no numbers, if it can be known again."""
        func, reading = call.func, call.reading
        has_more = func in SPECIAL or func is Tensor.__deepcopy__ or changes_graph(func) or not reading.is_plain
        comes_again = all(origin.is_kept for origin in reading.origins)
        if has_more or not comes_again or any(origin.lineage is MIXED for origin in origins):
            return
        for origin in origins:
            origin.is_kept = True
        key = call.key
        if _goes_by_contents(call, made, origins):
            self._known[key] = _BY_CONTENTS
            key = key, contents(reading)
        self._known[key] = KnownCall(made, origins)
        self._count += 1


_BY_CONTENTS: Final = KnownCall([], [])  # stands for one call for each content of the public whole numbers


def _goes_by_contents(call: WatchedCall, made: list[Tensor], origins: list[Origin]) -> bool:
    """Whether the judgement of a call may depend on the values of public whole numbers."""
    form, reading = call.form, call.reading
    if all(origin.lineage is PUBLIC for origin in reading.origins):
        return any(origin.rows is not None for origin in origins) and contents(reading) != ()
    is_general = form.verdict is not None and fits(form.verdict, made, reading.records)
    return reading.records > 1 and not is_general and contents(reading) != ()
