"""One call by itself: does it keep records apart, in what it gives and in the gradients that go back?

    prove(call, records) -> Verdict

The call is run on values of its own (generic_values.py), again and again with half of the records replaced, by each
bit of their number: whatever moves must belong to a record that was replaced. It is run for 5 and for 67 records
where its sizes say how they follow the batch, else for the very number of records that it was made with.

Guarantee: where the verdict gives an axis to an output, an entry of one record did not move with any other record, on
any of the values; where it says PUBLIC, no entry moved at all; everything else is MIXED.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from discreet.engine.proof.generic_values import SEED, Pattern, Range, ValueSource, halves, ranges
from discreet.engine.proof.lineage import MIXED, PUBLIC, Lineage
from discreet.engine.proof.movement import changed, follows, only, put
from discreet.engine.proof.stand_ins import STAND_INS
from discreet.engine.trace.capture import RecordAxis

FEW, MANY = 5, 67
_SECOND_HALVES: Final = 2  # for patterns beside the first, on many records

Place = Lineage | RecordAxis


@dataclass(frozen=True)
class Leaf:
    """One tensor among the arguments: where the record lies, and how its sizes follow the number of records.

    sizes   per axis, a fixed size or (factor,) times the number of records
    values  what a public tensor of whole numbers holds, where that matters; `counts` if it holds 0, 1, 2, ...
    """

    like: Tensor
    place: Place
    sizes: tuple[Any, ...]
    needs_grad: bool = False
    values: Tensor | None = None
    counts: bool = False

    def shape(self, records: int) -> list[int]:
        return [size[0] * records if type(size) is tuple else size for size in self.sizes]


@dataclass(frozen=True)
class ProvableCall:
    """A call with its tensors taken out: `rebuild(tensors, records)` gives its arguments for any number of records."""

    func: Callable[..., Any]
    leaves: tuple[Leaf, ...]
    rebuild: Callable[[Sequence[Tensor], int], tuple[Any, Any]]
    special: tuple[int, ...] = ()  # whole numbers among the settings
    patterns: tuple[Pattern, ...] = tuple(Pattern)


@dataclass(frozen=True)
class Verdict:
    """What a call does to records.

    outputs  for each tensor of the result, then for each argument that was written to: its lineage
    factors  entries of one record along the record axis; the shape of a public output, None if it is free
    written  which arguments were written to, by their place among the tensors
    why      why an output is mixed
    """

    outputs: tuple[Place, ...]
    factors: tuple[Any, ...]
    written: tuple[int, ...] = ()
    why: str = ""
    sized_by_values: bool = False

    @property
    def keeps_apart(self) -> bool:
        return MIXED not in self.outputs


class UnprovableError(Exception):
    """The call does not run on values of our own."""


_SOURCE = ValueSource()


def prove(call: ProvableCall, sizes: Sequence[int] = (FEW, MANY)) -> Verdict:
    """The verdict on one call; raises `UnprovableError` if no generic values fit it."""
    whole = [size for leaf in call.leaves for size in leaf.sizes if type(size) is int]
    error: Exception | None = None
    for within in ranges(whole, call.special):
        try:
            with _apart_from_the_run():
                return _Proof(call, within).verdict(sizes)
        except UnprovableError as failed:
            error = failed
        if not _has_choice(call):
            break
    raise error or UnprovableError("it takes none of the values that were tried")


def _has_choice(call: ProvableCall) -> bool:
    return any(leaf.place is not PUBLIC or leaf.values is None for leaf in call.leaves)


@contextmanager
def _apart_from_the_run() -> Iterator[None]:
    """Neither the watch nor the generators of the run notice what happens inside."""
    state = torch.get_rng_state()
    try:
        with torch.inference_mode(False), torch._C.DisableTorchFunction(), torch.enable_grad(), _saved_as_they_are():
            yield
    finally:
        torch.set_rng_state(state)


def _saved_as_they_are() -> AbstractContextManager[object]:
    """Hooks of a checkpointed region would take the proof's tensors for the region's."""
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


@dataclass
class _Seen:
    """What is known of one output so far: axes that fit, and whether it moved."""

    candidates: list[RecordAxis]
    factor: dict[int, int]
    moved: bool = False
    sized_by_values: bool = False


@dataclass
class _Run:
    outputs: list[Tensor]
    written: tuple[int, ...]
    leaves: list[Tensor]


@dataclass
class _Proof:
    call: ProvableCall
    within: Range
    seen: list[_Seen] | None = None
    written: tuple[int, ...] = ()
    draws: bool | None = None  # whether the call uses torch's generator; unknown before it has run
    shapes: dict[int, list[torch.Size]] = field(default_factory=dict)

    def verdict(self, sizes: Sequence[int]) -> Verdict:
        for records in sizes:
            for pattern in self.call.patterns:
                self._forward(records, pattern, many=records > FEW and len(sizes) > 1)
                if self.seen is not None and any(one.moved and not one.candidates for one in self.seen):
                    return self._mixed()
        assert self.seen is not None
        places = tuple(self._place(one) for one in self.seen)
        shapes = [set(own) for own in zip(*self.shapes.values(), strict=True)]
        if any(place is PUBLIC and len(own) > 1 for place, own in zip(places, shapes, strict=True)):
            raise UnprovableError("the size of what it gives does not follow the number of records")
        factors = tuple(
            one.factor[place.axis] if isinstance(place, RecordAxis) else own.pop()
            for one, place, own in zip(self.seen, places, shapes, strict=True)
        )
        verdict = Verdict(places, factors, self.written)
        if all(self._gradients_apart(records, places) for records in sizes):
            return verdict
        return replace(
            verdict,
            outputs=(MIXED,) * len(places),
            factors=(None,) * len(places),
            why="the gradient that goes back to one record moves with others",
        )

    # -- forward ---------------------------------------------------------------------------------------

    def _forward(self, records: int, pattern: Pattern, *, many: bool) -> None:
        first = pattern is Pattern.MODERATE
        base = [self._base(leaf, records, pattern) for leaf in self.call.leaves]
        before = self._try(base, records)
        if before is None:
            if first:
                raise UnprovableError("it fails on generic values")
            return
        self._begin(before, records)
        chosen = halves(records)
        if many and not first:
            chosen = chosen[:_SECOND_HALVES]
        for half in chosen:
            after = self._try(self._replaced(base, half, records, pattern), records)
            if after is None:
                if first:
                    raise UnprovableError("it fails on generic values")
                continue
            self._compare(before, after, half, records)

    def _begin(self, run: _Run, records: int) -> None:
        if self.seen is None:
            self.written = run.written
            self.seen = [_Seen(*self._axes(tensor, records)) for tensor in run.outputs]
        elif len(run.outputs) != len(self.seen) or run.written != self.written:
            raise UnprovableError("it gives another number of tensors for another number of records")
        self.shapes.setdefault(records, [tensor.shape for tensor in run.outputs])
        if len(self.shapes) > 1:
            for index, one in enumerate(self.seen):
                shapes = {records: own[index] for records, own in self.shapes.items()}
                one.candidates = [axis for axis in one.candidates if follows(axis.axis, shapes, one.factor)]

    def _axes(self, tensor: Tensor, records: int) -> tuple[list[RecordAxis], dict[int, int]]:
        inputs = [leaf.place for leaf in self.call.leaves if isinstance(leaf.place, RecordAxis)]
        found: list[RecordAxis] = []
        factors: dict[int, int] = {}
        for axis, size in enumerate(tensor.shape):
            if size % records == 0 and size > 0:
                factors[axis] = size // records
                found.append(RecordAxis(axis))
                if size > records:
                    found.append(RecordAxis(axis, minor=True))
        found.sort(key=lambda axis: (axis not in inputs, axis.minor))  # an output that never moves looks like its input
        return found, factors

    def _compare(self, before: _Run, after: _Run, half: Tensor, records: int) -> None:
        assert self.seen is not None
        if len(after.outputs) != len(self.seen) or after.written != self.written:
            raise UnprovableError("it gives another number of tensors for other values")
        for one, old, new in zip(self.seen, before.outputs, after.outputs, strict=True):
            if old.shape != new.shape or old.dtype != new.dtype:
                one.moved, one.candidates, one.sized_by_values = True, [], True
                continue
            change = changed(old, new)
            if change is None:
                continue
            one.moved = True
            one.candidates = [axis for axis in one.candidates if only(axis, change, half)]

    def _place(self, one: _Seen) -> Place:
        return one.candidates[0] if one.candidates else PUBLIC

    def _mixed(self) -> Verdict:
        assert self.seen is not None
        by_values = any(one.sized_by_values for one in self.seen)
        places = (MIXED,) * len(self.seen)
        why = "its shape depends on values of the records" if by_values else "records move entries of others"
        return Verdict(places, (None,) * len(places), self.written, why, by_values)

    # -- gradients -------------------------------------------------------------------------------------

    def _gradients_apart(self, records: int, places: Sequence[Place]) -> bool:
        wanted = [i for i, leaf in enumerate(self.call.leaves) if leaf.needs_grad and leaf.like.is_floating_point()]
        wanted = [i for i in wanted if isinstance(self.call.leaves[i].place, RecordAxis)]
        if not wanted:
            return True
        chosen = halves(records) if records <= FEW else halves(records)[:_SECOND_HALVES]
        for pattern in (Pattern.MODERATE, Pattern.SPREAD):
            base = [self._base(leaf, records, pattern) for leaf in self.call.leaves]
            before = self._pulled(base, None, None, records, places, pattern, wanted)
            if before is None:
                continue
            for half in chosen:
                after = self._pulled(
                    self._replaced(base, half, records, pattern), before[1], half, records, places, pattern, wanted
                )
                if after is None:
                    continue
                for i, old, new in zip(wanted, before[0], after[0], strict=True):
                    axis = self.call.leaves[i].place
                    assert isinstance(axis, RecordAxis)
                    if old is None or new is None:
                        if old is not new:
                            return False
                        continue
                    change = changed(old, new)
                    if change is not None and not only(axis, change, half):
                        return False
        return True

    def _pulled(
        self,
        values: list[Tensor],
        pulls: list[Tensor] | None,
        half: Tensor | None,
        records: int,
        places: Sequence[Place],
        pattern: Pattern,
        wanted: Sequence[int],
    ) -> tuple[Sequence[Tensor | None], list[Tensor]] | None:
        """Gradients of the wanted inputs, for random gradients of the outputs, those of `half` drawn anew."""
        roots = [value.detach().requires_grad_() if i in wanted else value for i, value in enumerate(values)]
        run = self._try(roots, records, keep_graph=True)
        if run is None:
            return None
        free = Range(-(2**20), 2**20)
        if pulls is None or half is None:
            # Copies, as products round differently where memory is not aligned.
            pulls = [_SOURCE.drawn(tensor.detach(), tensor.shape, pattern, free).clone() for tensor in run.outputs]
        else:
            pulls = [
                put(pull, _SOURCE.drawn(pull, pull.shape, pattern, free), place, half)
                if isinstance(place, RecordAxis)
                else pull
                for pull, place in zip(pulls, places, strict=True)
            ]
        pairs = [
            (tensor, pull)
            for tensor, pull in zip(run.outputs, pulls, strict=True)
            if tensor.requires_grad and tensor.shape == pull.shape
        ]
        if not pairs:
            return [None] * len(wanted), pulls
        grads = torch.autograd.grad(
            [tensor for tensor, _ in pairs],
            [roots[i] for i in wanted],
            [pull.to(tensor.dtype) for tensor, pull in pairs],
            allow_unused=True,
        )
        return grads, pulls

    # -- values ----------------------------------------------------------------------------------------

    def _base(self, leaf: Leaf, records: int, pattern: Pattern) -> Tensor:
        shape = leaf.shape(records)
        if leaf.place is PUBLIC:
            if leaf.counts:
                return torch.arange(shape[0], dtype=leaf.like.dtype, device=leaf.like.device)
            if leaf.values is not None:
                return leaf.values
            steady = pattern if pattern is Pattern.SPREAD else Pattern.MODERATE
            return _SOURCE.drawn(leaf.like, shape, steady, self.within)
        return _SOURCE.base(leaf.like, shape, pattern, self.within)

    def _replaced(self, base: Sequence[Tensor], half: Tensor, records: int, pattern: Pattern) -> list[Tensor]:
        values = []
        for leaf, value in zip(self.call.leaves, base, strict=True):
            if isinstance(leaf.place, RecordAxis):
                value = put(value, _SOURCE.drawn(leaf.like, value.shape, pattern, self.within), leaf.place, half)
            values.append(value)
        return values

    def _try(self, values: Sequence[Tensor], records: int, *, keep_graph: bool = False) -> _Run | None:
        copies = [value.clone() for value in values]
        versions = [copy._version for copy in copies]
        args, kwargs = self.call.rebuild(copies, records)
        if self.draws is not False:
            torch.manual_seed(SEED)
        try:
            with torch.set_grad_enabled(keep_graph), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = STAND_INS.get(self.call.func, self.call.func)(*args, **kwargs)
        except Exception:
            return None
        if self.draws is None:
            self.draws = not torch.equal(torch.get_rng_state(), _seeded_state())
        written = tuple(i for i, copy in enumerate(copies) if copy._version != versions[i])
        outputs = tensors_of_result(result)
        outputs += [copies[i] for i in written if not any(copies[i] is output for output in outputs)]
        return _Run(outputs, written, copies)


def tensors_of_result(tree: Any) -> list[Tensor]:
    """The tensors of a result, in order; also in named tuples and the like."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [tensor for branch in tree for tensor in tensors_of_result(branch)]
    if isinstance(tree, dict):
        return [tensor for branch in tree.values() for tensor in tensors_of_result(branch)]
    return []


@lru_cache
def _seeded_state() -> Tensor:
    return torch.Generator().manual_seed(SEED).get_state()
