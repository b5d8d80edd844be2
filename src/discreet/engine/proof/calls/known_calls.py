"""A call that comes again needs no second judgement.

Guarantee: `KnownCalls` answers only for calls whose judgement is a function of what it compares, so that the answer is
what `judged` would give.

- Judgement reads the function, the arguments that are no tensors, the modes, the number of records, and of each tensor
  its origin, its type and its sizes. All but the last two are compared; origins are compared as objects, and an origin
  fixes type and sizes: of a leaf by its key (`LineageTable.leaf`), of a result because those that come out are compared
  with those that were judged. By induction over the calls of a batch, each tensor has the form of its origin.
- Where judgement also reads the values of public whole numbers (`contents`), these are compared as well. How rows of
  public tensors follow the number of records is part of an origin.
- A draw is compared by the states that it left, which have origins too: that of the start of a batch, or what one call
  (its `key`, and the layouts of its tensors) left of another state. These are all that judgement reads of a draw. Which
  state a generator is in, before and after, is looked at in every call that can draw (`Generators.read`).
- A write is compared by the places of the arguments that were written to, of which versions tell. What it means for
  other views of the memory is a function of two origins and of the addresses (`LineageTable._merged`). Whether the
  target overlaps itself, or belongs to the model, is looked at every time (`LineageTable.put_all`).
- Where more is read, calls are judged each time: declared numbers, generators that are given, objects, copies, memory
  of torch.empty, checkpointed regions, whole numbers that are read by value in a call that draws or writes, and all
  that is mixed.
- Nothing about tensors is taken from memory: whether a tensor is the one that was seen, has its version and its graph,
  and whether the call wrote to it, is looked at in every call (`LineageTable.find`, `RecordWatch`).

Programs repeat themselves, so that a call is first compared with the one that followed the last call in an earlier
batch (`KnownCall.is_called`): the same function, and arguments that are read alike. This is a guess of the key and no
more: equal arguments of one type are read alike, once zeros are told apart by their sign, and NaN is left out. Draws
and writes are guessed likewise; the states that a draw left, and what was written to, are looked at afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.nn import Parameter

from discreet.engine.kernel_settings import reads_slow_settings
from discreet.engine.proof.calls.judgement import WatchedCall
from discreet.engine.proof.forms.call_forms import PLAIN, Reading
from discreet.engine.proof.lineage import MIXED, PUBLIC, Origin, has_memory
from discreet.engine.proof.verdicts import SIZED, contents, fits
from discreet.engine.proof.watched_functions import FILLS, RECURRENT, SPECIAL, UNCHECKED, changes_graph
from discreet.engine.trace.capture import ForwardTrace

Draws = tuple[Origin, ...]  # the states that a call left
_MOST_CALLS: Final = 10_000  # that are remembered, for all numbers of records
_HAVE_MORE: Final = (SPECIAL - FILLS) | UNCHECKED | {Tensor.__deepcopy__}
"""Functions that do more than their origins tell. To fill memory is a write, where it is not that of torch.empty."""


@final
class KnownCall:
    """What a call made: the origins, sizes and types of its results, and of the arguments that it wrote to.

    written  the places of these arguments
    after    of a call that draws, or that is taken apart: what it made, by the states that it left
    given    the origins of its tensors, in order
    key, multiples  as it was read; its numbers that are multiples of the number of records
    func, args, kwargs  the call, with origins in the places of tensors; `func` is None where these are not all
    next     the known call that followed the last time: a guess, which is compared
    one      origin, sizes and type of the result, if it is a tensor and all that there is
    followed, used  where the recorder met it last, without or with parameters (recorder.py)
    """

    __slots__ = (
        "after",
        "args",
        "dtypes",
        "followed",
        "func",
        "given",
        "key",
        "kwargs",
        "multiples",
        "next",
        "one",
        "origins",
        "sizes",
        "used",
        "written",
    )

    def __init__(self, made: list[Tensor], origins: list[Origin], written: list[int]) -> None:
        self.origins, self.sizes, self.dtypes = origins, [one.shape for one in made], [one.dtype for one in made]
        self.written = written
        self.one = (origins[0], self.sizes[0], self.dtypes[0]) if len(made) == 1 and not written else None
        self.after: dict[Draws, KnownCall] | None = None
        self.next: KnownCall | None = None
        self.func: Any = None
        self.args: tuple[Any, ...] = ()
        self.kwargs: tuple[tuple[str, Any], ...] = ()
        self.given: list[Origin] = []
        self.key: Any = None
        self.multiples: Sequence[int] = ()
        self.followed: tuple[ForwardTrace, int] | None = None
        self.used: tuple[ForwardTrace, int] | None = None

    def gave(self, result: Any) -> bool:
        """Whether the result is one tensor of the kind that was judged, where that is all that the call makes."""
        if self.one is None or type(result) is not Tensor:
            return False
        _, size, dtype = self.one
        return result.shape == size and result.dtype is dtype

    def made(self, results: list[Tensor], written: list[int]) -> bool:
        """Whether results are of the kind that was judged."""
        if written != self.written or len(results) != len(self.sizes):
            return False
        for i, one in enumerate(results):
            if one.shape != self.sizes[i] or one.dtype != self.dtypes[i] or type(one) is not Tensor:
                return False
        return True

    def after_draws(self, draws: Draws) -> KnownCall | None:
        """What it made after it left these states."""
        return self if self.after is None else self.after.get(draws)

    def is_called(self, args: Any, kwargs: Any, find: Callable[[Tensor], Origin]) -> list[Tensor] | None:
        """The tensors of these arguments, if they are those of the call: then they are read alike. Else None."""
        own, tensors = self.args, list[Tensor]()
        if len(args) != len(own) or len(kwargs) != len(self.kwargs):
            return None
        for part, arg in zip(own, args):  # noqa: B905, for speed
            kind = type(arg)
            if kind is Tensor or kind is Parameter:
                if find(arg) is not part:
                    return None
                tensors.append(arg)
            elif kind is int or (kind is float and arg):
                if kind is not type(part) or arg != part:
                    return None
            elif not _is_read_as(part, arg, find, tensors):
                return None
        if kwargs:
            for (name, value), (known, part) in zip(kwargs.items(), self.kwargs, strict=True):
                if name != known or not _is_read_as(part, value, find, tensors):
                    return None
        return tensors

    def called_again(
        self, args: Any, kwargs: Any, records: int, tensors: list[Tensor], versions: list[int]
    ) -> WatchedCall:
        """The call as it was before it was made, if `is_called` gave these tensors, which had these versions."""
        reading = Reading(records, values=self.func not in SIZED)
        reading.tensors, reading.origins, reading.multiples = tensors, [*self.given], self.multiples
        return WatchedCall(self.func, args, kwargs, reading, self.key, versions)

    def expect(self, call: WatchedCall) -> None:
        """Compare calls with this one before they are read."""
        origins = iter(call.reading.origins)
        try:
            self.args = tuple(_compared(arg, origins) for arg in call.args)
            self.kwargs = tuple((name, _compared(value, origins)) for name, value in call.kwargs.items())
        except _OtherError:
            return
        self.func, self.given = call.func, list(call.reading.origins)
        self.key, self.multiples = call.key, call.reading.multiples


_UNKNOWN: Final = KnownCall([], [], [])  # stands for a call that was judged
EXACT: Final = frozenset([*PLAIN, int, bool, torch.Size])  # equal values of one of these types are read alike


class _OtherError(Exception):
    """An argument that has to be read."""


def _compared(tree: Any, origins: Iterator[Origin]) -> Any:
    """An argument with origins in the places of tensors."""
    kind = type(tree)
    if kind is Tensor or kind is Parameter:
        return next(origins)
    if kind in EXACT or (kind is float and tree == tree):
        return tree
    if kind is tuple or kind is list:
        return kind([_compared(branch, origins) for branch in tree])
    if kind is slice and all(type(bound) in EXACT for bound in (tree.start, tree.stop, tree.step)):
        return tree
    raise _OtherError


def _is_read_as(known: Any, tree: Any, find: Callable[[Tensor], Origin], tensors: list[Tensor]) -> bool:
    """Whether an argument is read as one that `_compared` gave; its tensors are added."""
    kind = type(tree)
    if kind is Tensor or kind is Parameter:
        tensors.append(tree)
        return find(tree) is known
    if kind is not type(known):
        return False
    if kind in EXACT or (kind is float and tree):
        return bool(tree == known)
    if kind is float:
        return repr(tree) == repr(known)  # 0.0 equals -0.0
    if kind is tuple or kind is list:
        return len(tree) == len(known) and all(
            _is_read_as(own, branch, find, tensors) for own, branch in zip(known, tree, strict=True)
        )
    bounds = (tree.start, known.start), (tree.stop, known.stop), (tree.step, known.step)
    return all(type(one) is type(other) and one == other for one, other in bounds)


@final
class KnownCalls:
    """Calls that were judged, by all that their judgement depends on; see above."""

    def __init__(self) -> None:
        self._by_records: dict[int, dict[Any, KnownCall]] = {}
        self._known: dict[Any, KnownCall] = {}
        self.last = _UNKNOWN  # in this batch; its `next` is expected
        self._count = 0

    def begin(self, records: int) -> None:
        """Calls of a batch of so many records follow."""
        if self._count > _MOST_CALLS:  # judged anew
            self._by_records, self._count = {}, 0
        if records not in self._by_records:
            self._by_records[records] = {None: KnownCall([], [], [])}
        self._known = self._by_records[records]
        self.last = self._known[None]  # stands before the first call

    def came(self, known: KnownCall | None) -> None:
        """A known call was made that was not expected, or one that is not known."""
        if known is not None and self.last is not _UNKNOWN:  # which stands for calls of other batches, too
            self.last.next = known
        self.last = known or _UNKNOWN

    def find(self, call: WatchedCall) -> KnownCall | None:
        """What a call makes, if it was made before."""
        known = self._known.get(call.key)
        return self._known.get((call.key, contents(call.reading))) if known is _BY_CONTENTS else known

    def keep_apart(self, call: WatchedCall) -> None:
        """Remember a call that was taken apart into watched ones. If it is not the next time, it is judged."""
        if call.comes_again and call.func not in _HAVE_MORE:
            self._keep_drawing(call)

    def keep(
        self, call: WatchedCall, made: list[Tensor], origins: list[Origin], written: list[int], draws: Draws
    ) -> None:
        """Remember a call, if it can be known again."""
        func, key = call.func, call.key
        has_more = func in _HAVE_MORE or (changes_graph(func) and not written and func is not Tensor.requires_grad_)
        comes_again = call.comes_again and all(state.is_kept for state in draws) and all(map(has_memory, made))
        if has_more or not comes_again or any(origin.lineage is MIXED for origin in origins):
            return
        by_contents = _goes_by_contents(call, made, origins)
        if by_contents and (written or call.form.draws):
            return  # a write may have changed them
        for origin in origins:
            origin.is_kept = True
        known = KnownCall(made, origins, written)
        self._count += 1
        if call.form.draws:
            self._keep_drawing(call)[draws] = known
        elif by_contents:
            self._known[key] = _BY_CONTENTS
            self._known[key, contents(call.reading)] = known
        else:
            self._known[key] = known
            _expect(known, call)

    def _keep_drawing(self, call: WatchedCall) -> dict[Draws, KnownCall]:
        known = self._known.get(call.key)
        if known is None or known.after is None:
            known = self._known[call.key] = KnownCall([], [], [])
            known.after = {}
            _expect(known, call)
        assert known.after is not None
        return known.after


_READ_FIRST: Final = RECURRENT | {Tensor.__setitem__, Tensor.requires_grad_}


def _expect(known: KnownCall, call: WatchedCall) -> None:
    """Have a call compared before it is read, in the usual modes. `x[i] = value` gives no result for the recorder, and
    `requires_grad_` changes what it gives back."""
    is_read = call.func in _READ_FIRST or reads_slow_settings(call.func, len(call.reading.tensors))
    if call.key[2] is None and not is_read:
        known.expect(call)


_BY_CONTENTS: Final = KnownCall([], [], [])  # stands for one call for each content of the public whole numbers


def _goes_by_contents(call: WatchedCall, made: list[Tensor], origins: list[Origin]) -> bool:
    """Whether the judgement of a call may depend on the values of public whole numbers."""
    form, reading = call.form, call.reading
    if all(origin.lineage is PUBLIC for origin in reading.origins):
        return any(origin.rows is not None for origin in origins) and contents(reading) != ()
    is_general = form.verdict is not None and fits(form.verdict, made, reading.records)
    return reading.records > 1 and not is_general and contents(reading) != ()
