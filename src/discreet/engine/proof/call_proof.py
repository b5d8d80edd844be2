"""One call by itself: does it keep records apart, in what it gives and in the gradients that go back?

    prove(call, records) -> CallVerdict

The call is run on values of its own (generic_values.py), again and again with about half of the records replaced, so
that of any two records each is replaced once while the other is not: whatever moves must belong to a record that was
replaced. It is run for 5 and for 67 records where its sizes say how they follow the batch, else for the very number of
records that it was made with. Functions that only move entries are run on the numbers of the records instead, which
shows for every entry whose it is.

Guarantee: where the verdict gives an axis to an output, an entry of one record did not move with any other record, on
any of the values; where it says PUBLIC, no entry moved at all, and the function looks at sizes and types alone;
everything else is MIXED.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from discreet.core.secret_draws import seed_default_generators
from discreet.engine.proof import movement
from discreet.engine.proof.draws.steady_draws import SteadyDraws
from discreet.engine.proof.forms.provable_call import (
    FEW,
    FEWER,
    MANY,
    UNMOVED,
    CallVerdict,
    Leaf,
    Place,
    ProvableCall,
    SeenOutput,
    UnprovableError,
    apart_from_the_run,
    first,
    gradients_of,
    switches_formula,
    tensors_of_result,
)
from discreet.engine.proof.generic_values import (
    BY_SIZE,
    SEED,
    STAND_INS,
    Pattern,
    Range,
    ValueSource,
    alternating,
    ranges,
    separating,
)
from discreet.engine.proof.lineage import MIXED, PUBLIC
from discreet.engine.proof.order_of_rows import rows_by_place
from discreet.engine.trace.capture import RecordAxis

SOURCE, _SEEDED = ValueSource(), torch.Generator().manual_seed(SEED).get_state()
_SCALES: Final = (Pattern.MODERATE, Pattern.SPREAD)
_GRADED: Final = (*_SCALES, Pattern.TINY, Pattern.BROKEN, Pattern.ZERO, Pattern.ONE)  # the first three for MANY
_CONDITIONS: Final = (Pattern.MODERATE, Pattern.ZERO, Pattern.ONE)  # random ones may all be false
_COUNTED: Final = (*_CONDITIONS, Pattern.TIES)


def prove(call: ProvableCall, sizes: Sequence[int] = (FEW, MANY)) -> CallVerdict:
    """The verdict on one call; raises `UnprovableError` if no generic values fit it."""
    whole = [size for leaf in call.leaves for size in leaf.sizes if type(size) is int]
    why = "it takes none of the values that were tried"
    SOURCE.restart()
    for within in ranges(whole, call.special, call.func):
        try:
            with apart_from_the_run():
                found = CallProof(call, within).of_moves(sizes) if call.moves else None
                return found or CallProof(call, within).verdict(sizes)
        except UnprovableError as failed:
            why = str(failed)  # not the error itself, which would hold on to all tensors of the attempt
        if all(leaf.place is PUBLIC and leaf.values is not None for leaf in call.leaves):
            break  # no choice
    raise UnprovableError(why)


@dataclass
class _CallRun:
    outputs: list[Tensor]
    written: tuple[int, ...]


@dataclass
class CallProof:
    """One call on values within a range, and what was seen of it.

    is_steady  its draws give every entry the same (draws/steady_draws.py); `has_drawn` if it drew all the same
    drawn      the entries of each of these draws, by the number of records
    """

    call: ProvableCall
    within: Range
    seen: list[SeenOutput] | None = None
    written: tuple[int, ...] = ()
    draws: bool | None = None  # whether the call uses torch's generator; unknown before it has run
    shapes: dict[int, list[torch.Size]] = field(default_factory=dict)
    is_steady: bool = False
    has_drawn: bool = False
    drawn: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def verdict(self, sizes: Sequence[int]) -> CallVerdict:
        for records in sizes:
            for pattern in Pattern:
                self._forward(records, pattern, many=records > FEW and len(sizes) > 1)
                if self.seen is not None and any(one.moved and not one.candidates for one in self.seen):
                    self._look_at_shapes(records)
                    return self._mixed()
        return self._finished(sizes)

    def of_moves(self, sizes: Sequence[int]) -> CallVerdict | None:
        """The verdict on a call that copies entries, by one pair of runs for each number of records.

        Every entry holds the number of its record, so that the result shows whose entries went where; the second run
        shows which entries are constants. This is more than replacing records shows. What goes back is the transpose
        of what is shown, at every size and for all values; it is run for one size. None if entries are not copied.
        """
        leaf = self.call.leaves[0]
        if not isinstance(leaf.place, RecordAxis) or leaf.like.dtype == torch.bool or leaf.like.is_complex():
            return None
        for records in sizes:
            if 2 * records > movement.most_exact(leaf.like.dtype) or not self._copies(leaf, leaf.place, records):
                return None
            if any(one.moved and not one.candidates for one in self.seen or ()):
                return self._mixed()
        return self._finished(sizes[:1], _SCALES)  # those that the gradients of what it gives go by

    def _copies(self, leaf: Leaf, place: RecordAxis, records: int) -> bool:
        """Whether a call copies entries that hold the number of their record; note where they go."""
        numbers, shape = torch.arange(1, records + 1), leaf.shape(records)
        each = (movement.spread(own, leaf.like, shape, place) for own in (numbers, numbers + records))
        before, after = (self.run([own], records) for own in each)
        if before is None or after is None or before.written:
            return False
        self._begin(before, records)
        assert self.seen is not None
        for one, old, new in zip(self.seen, before.outputs, after.outputs, strict=True):
            change = movement.changed(old, new)
            if change is None:
                continue
            if bool((change & (new - old != records)).any()):
                return False
            one.moved = True
            own = [axis for axis in one.candidates if axis.axis < old.dim()]
            one.candidates = [axis for axis in own if movement.belongs(axis, old, change, numbers)]
        return True

    def _finished(self, graded: Sequence[int], values: Sequence[Pattern] = _GRADED) -> CallVerdict:
        """The verdict after all forward runs; gradients are run for `graded` numbers of records, on these values."""
        assert self.seen is not None
        by_size, is_exact = self.call.func in BY_SIZE, len(self.shapes) == 1
        places = tuple(one.place(is_by_size=by_size, is_exact=is_exact) for one in self.seen)
        why = UNMOVED if MIXED in places else ""
        shapes = [set(own) for own in zip(*self.shapes.values(), strict=True)]
        if any(place is PUBLIC and len(own) > 1 for place, own in zip(places, shapes, strict=True)):
            raise UnprovableError("the size of what it gives does not follow the number of records")
        factors = tuple(
            one.factor[place.axis] if isinstance(place, RecordAxis) else own.pop()
            for one, place, own in zip(self.seen, places, shapes, strict=True)
        )
        rows: tuple[tuple[int, RecordAxis], ...] = ()
        shares_draws = False
        for proof in replace(self, is_steady=bool(self.draws))._with_moderate_numbers():
            own = rows_by_place(proof, places, max(self.shapes))
            if proof.has_drawn:
                return self._mixed("it draws random numbers that cannot be compared between places of the batch")
            if own is None:
                return self._mixed("what it gives a record depends on the record's place in the batch")
            if not proof._same_for_every_count(places):
                return self._mixed("what it gives a record depends on the number of records")
            rows = tuple(dict.fromkeys((*rows, *own)))
            shares_draws |= proof._shares_draws()
        if switches_formula(self.call):
            return self._mixed("with more than 25 rows it uses a formula that cannot tell near points apart")
        if not all(self._gradients_apart(records, places, values) for records in graded):
            return self._mixed("the gradient that goes back to one record moves with others")
        return CallVerdict(places, factors, self.written, why, rows=rows, shares_draws=shares_draws)

    def _with_moderate_numbers(self) -> Iterator[CallProof]:
        """This proof, and that of the call without numbers out of scale, if there are any that are no sizes."""
        yield self
        call, records = self.call.with_moderate_numbers(), max(self.shapes)
        if call is not None:
            other = replace(self, call=call)
            run = other.run([other.base(leaf, records, Pattern.MODERATE) for leaf in call.leaves], records)
            if run is not None and [one.shape for one in run.outputs] == self.shapes[records]:
                yield other

    # -- forward ---------------------------------------------------------------------------------------

    def _forward(self, records: int, pattern: Pattern, *, many: bool) -> None:
        base, is_first = [self.base(leaf, records, pattern) for leaf in self.call.leaves], pattern is Pattern.MODERATE
        before = self.run(base, records)
        if before is None:
            if is_first:
                raise UnprovableError("it fails on generic values")
            return
        self._begin(before, records)
        for half in alternating(records) if many and not is_first else separating(records):
            after = self.run(self._replaced(base, half, records, pattern), records)
            if after is None:
                if is_first:
                    raise UnprovableError("it fails on generic values")
                continue
            self._compare(before, after, half, records)

    def _look_at_shapes(self, records: int) -> None:
        """Whether the sizes of what comes out depend on values: equal values show it where random ones do not."""
        for pattern in _CONDITIONS:
            run = self.run([self.base(leaf, records, pattern) for leaf in self.call.leaves], records)
            for one, old, new in zip(self.seen or (), self.shapes[records], run.outputs if run else (), strict=False):
                one.sized_by_values |= old != new.shape

    def _same_for_every_count(self, places: Sequence[Place]) -> bool:
        """Whether a record gets the same in a batch of few records and in one of many."""
        if len(self.shapes) == 1:
            return True
        trials = [(FEW, pattern) for pattern in _COUNTED] + [(few, Pattern.MODERATE) for few in FEWER]
        return all(self._same_for(few, pattern, places) for few, pattern in trials)

    def _same_for(self, few: int, pattern: Pattern, places: Sequence[Place]) -> bool:
        many = [self.base(leaf, MANY, pattern) for leaf in self.call.leaves]
        own = [leaf.first(value, few) for leaf, value in zip(self.call.leaves, many, strict=True)]
        larger, smaller = self.run(many, MANY), self.run(own, few)
        if larger is None or smaller is None:
            return few < FEW or pattern is not Pattern.MODERATE
        trios = zip(larger.outputs, smaller.outputs, places, strict=True)
        pairs = [(s, first(m, at, few) if isinstance(at, RecordAxis) else m) for m, s, at in trios]
        return all(
            movement.agree(s, m) for s, m in pairs if few > 1 or s.shape == m.shape
        )  # an axis of size 1 may be lost

    def _shares_draws(self) -> bool:
        """Whether a draw has not as many entries for each record, or may have, as one number of records shows none."""
        each = {tuple(size / records for size in sizes) for records, sizes in self.drawn.items()}
        return len(each) > (len(self.shapes) > 1)

    def _begin(self, run: _CallRun, records: int) -> None:
        if self.seen is None:
            self.written = run.written
            inputs = [leaf.place for leaf in self.call.leaves if isinstance(leaf.place, RecordAxis)]
            self.seen = [SeenOutput.of(tensor, inputs, records) for tensor in run.outputs]
        elif len(run.outputs) != len(self.seen) or run.written != self.written:
            raise UnprovableError("it gives another number of tensors for another number of records")
        self.shapes.setdefault(records, [tensor.shape for tensor in run.outputs])
        if len(self.shapes) > 1:
            for index, one in enumerate(self.seen):
                shapes = {records: own[index] for records, own in self.shapes.items()}
                one.candidates = [axis for axis in one.candidates if movement.follows(axis.axis, shapes, one.factor)]

    def _compare(self, before: _CallRun, after: _CallRun, half: Tensor, records: int) -> None:
        assert self.seen is not None
        if len(after.outputs) != len(self.seen) or after.written != self.written:
            raise UnprovableError("it gives another number of tensors for other values")
        for one, old, new in zip(self.seen, before.outputs, after.outputs, strict=True):
            if old.shape != new.shape or old.dtype != new.dtype:
                one.moved, one.candidates, one.sized_by_values = True, [], True
                continue
            if one.moved and all(movement.stays(axis, old, new, half) for axis in one.candidates):
                continue  # nearly always, once it is known to move
            change = movement.changed(old, new)
            if change is None:
                continue
            one.moved = True
            one.candidates = [axis for axis in one.candidates if movement.only(axis, change, half)]

    def _mixed(self, why: str = "") -> CallVerdict:
        assert self.seen is not None
        by_values = not why and any(one.sized_by_values for one in self.seen)
        shown = "its shape depends on values of the records" if by_values else "records move entries of others"
        return CallVerdict((MIXED,) * len(self.seen), (None,) * len(self.seen), self.written, why or shown, by_values)

    # -- gradients -------------------------------------------------------------------------------------

    def _gradients_apart(self, records: int, places: Sequence[Place], values: Sequence[Pattern]) -> bool:
        leaves = enumerate(self.call.leaves)
        wanted = [i for i, leaf in leaves if leaf.needs_grad and isinstance(leaf.place, RecordAxis)]
        if not wanted:
            return True
        chosen = separating(records) if records <= FEW else alternating(records)
        for pattern in values if records <= FEW else values[:3]:
            is_special = pattern not in _SCALES
            base = [self.base(leaf, records, pattern) for leaf in self.call.leaves]
            before = self._pulled(base, None, None, records, places, pattern, wanted)
            if before is None:
                continue
            for half in chosen:
                moved = self._replaced(base, half, records, pattern)
                after = self._pulled(moved, before[1], half, records, places, pattern, wanted)
                if after is None:
                    continue
                for i, old, new in zip(wanted, before[0], after[0], strict=True):
                    axis = self.call.leaves[i].place
                    assert isinstance(axis, RecordAxis)
                    if old is not None and new is not None and movement.stays(axis, old, new, half):
                        continue
                    change = (
                        None if old is None or new is None else movement.changed(old, new, but_for_rounding=is_special)
                    )
                    if (old is None) != (new is None) or (change is not None and not movement.only(axis, change, half)):
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
        run = self.run(roots, records, keep_graph=True)
        if run is None:
            return None
        free, usual = Range(-(2**20), 2**20), pattern if pattern is Pattern.SPREAD else Pattern.MODERATE
        if pulls is None or half is None:
            # Copies, as products round differently where memory is not aligned.
            pulls = [SOURCE.drawn(tensor.detach(), tensor.shape, usual, free).clone() for tensor in run.outputs]
        else:
            pulls = [
                movement.put(pull, SOURCE.drawn(pull, pull.shape, usual, free), place, half)
                if isinstance(place, RecordAxis)
                else pull
                for pull, place in zip(pulls, places, strict=True)
            ]
        gradients = gradients_of(run.outputs, pulls, [roots[i] for i in wanted])
        return None if gradients is None else (gradients, pulls)

    # -- values ----------------------------------------------------------------------------------------

    def few_values(self, leaf: Leaf, records: int) -> Tensor:
        """Zeros and ones alone, which many entries share."""
        return SOURCE.drawn(leaf.like, leaf.shape(records), Pattern.ONE, Range(0, 1, unit=True))

    def base(self, leaf: Leaf, records: int, pattern: Pattern) -> Tensor:
        shape = leaf.shape(records)
        if leaf.place is PUBLIC:
            if leaf.counts:
                return torch.arange(math.prod(shape), dtype=leaf.like.dtype, device=leaf.like.device).view(shape)
            if leaf.values is not None:
                return leaf.values
            steady = pattern if pattern in (Pattern.SPREAD, Pattern.TIES) else Pattern.MODERATE
            return SOURCE.drawn(leaf.like, shape, steady, self.within)
        return SOURCE.base(leaf.like, shape, pattern, self.within)

    def _replaced(self, base: Sequence[Tensor], half: Tensor, records: int, pattern: Pattern) -> list[Tensor]:
        values = []
        for leaf, value in zip(self.call.leaves, base, strict=True):
            if isinstance(leaf.place, RecordAxis):
                value = movement.put(
                    value, SOURCE.drawn(leaf.like, value.shape, pattern, self.within), leaf.place, half
                )
            values.append(value)
        return values

    def run(self, values: Sequence[Tensor], records: int, *, keep_graph: bool = False) -> _CallRun | None:
        copies = [value.clone() for value in values]
        versions = [copy._version for copy in copies]
        args, kwargs = self.call.rebuild(copies, records)
        if self.draws is not False:
            seed_default_generators(SEED)
        try:
            with torch.set_grad_enabled(keep_graph), SteadyDraws() if self.is_steady else nullcontext() as steady:
                result = STAND_INS.get(self.call.func, self.call.func)(*args, **kwargs)
        except Exception:
            return None
        if self.draws is None:
            self.draws = not torch.equal(torch.get_rng_state(), _SEEDED)
        elif self.is_steady:
            self.has_drawn |= not torch.equal(torch.get_rng_state(), _SEEDED)
        if steady is not None:
            self.drawn[records] = tuple(steady.sizes)
        written = tuple(i for i, copy in enumerate(copies) if copy._version != versions[i])
        outputs = tensors_of_result(result)
        outputs += [copies[i] for i in written if not any(copies[i] is output for output in outputs)]
        return _CallRun(outputs, written)
