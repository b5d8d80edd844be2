"""Public tensors with a row for each record: class tokens, initial states, random draws.

`losses * torch.arange(len(losses))` gives each record a weight by its place: leave one record out, and all that follow
have another weight. `losses * torch.ones(len(losses)).softmax(0)` gives each record a weight by the number of records,
which one record more changes for all. So calls on public tensors are proven like calls on records, as soon as a number
among their arguments follows the number of records.

Guarantee: rows along an axis that is called `equal` are equal in this batch, or independent draws from one
distribution; and where those arguments that `proven` names follow the number of records, values do not depend on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

from discreet.engine.proof.draws.read_draws import aligned_axis, with_draws
from discreet.engine.proof.equal_rows import runs_on_equal_rows
from discreet.engine.proof.forms.call_forms import Reading, provable
from discreet.engine.proof.forms.provable_call import (
    FEW,
    MANY,
    ProvableCall,
    choices_of_numbers,
    first,
    switches_formula,
)
from discreet.engine.proof.forms.small_sizes import MOVES, named
from discreet.engine.proof.generic_values import BY_SIZE
from discreet.engine.proof.lineage import PUBLIC, UNPROVEN_ROWS, Origin, PublicRows, Ways
from discreet.engine.proof.movement import agree
from discreet.engine.proof.verdicts import Form, contents, fits, needs_the_very_size, unprovable, verdict_of_reading
from discreet.engine.trace.capture import RecordAxis

_MOST_READINGS: Final = 8
_SIZED_DRAWS: Final = named("rand", "randn")  # their numbers are sizes; those of others are values, outside of tuples
_DRAWS: Final = _SIZED_DRAWS | named(
    *("randint", "randint_like", "random", "rand_like", "randn_like", "bernoulli", "normal", "uniform", "exponential"),
    *("poisson", "binomial", "_standard_gamma", "geometric", "cauchy", "log_normal", "dropout"),
)
"""Functions that draw every entry by itself."""

_SAMPLES: Final = named("multinomial")

_CHOOSING: Final = (
    BY_SIZE
    | MOVES
    | named(
        *(
            "amax",
            "amin",
            "aminmax",
            "max",
            "min",
            "any",
            "all",
            "median",
            "mode",
            "sort",
            "argsort",
            "argmax",
            "argmin",
        ),
        *("flip", "roll", "cat", "concat", "stack", "hstack", "vstack", "tile", "repeat_interleave", "index_select"),
        *("gather", "take_along_dim", "tril", "triu", "diagonal", "nonzero", "setitem", "clone", "detach", "isin"),
        *("movedim", "swapaxes", "masked_fill", "masked_select", "index_put", "tensor_split", "clamp"),
    )
)
"""Functions that give entries as they are. What combines equal rows, such as a mean, depends on their number."""

_Reading = tuple[
    frozenset[tuple[int, int]], frozenset[int]
]  # the tensors, and the numbers, that follow the number of records


def public_rows(
    form: Form, func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading, made: list[Tensor]
) -> list[PublicRows]:
    """The rows of what a call on public tensors made."""
    key = "public", reading.records, contents(reading), tuple(tensor.shape for tensor in made)
    found: list[PublicRows] | None = form.at.get(key)
    if found is None:
        found = form.at[key] = _found(form, func, args, kwargs, reading, made)
    return [with_draws(rows, reading.origins) for rows in found]


def _found(
    form: Form, func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading, made: list[Tensor]
) -> list[PublicRows]:
    growing = {i: origin.rows for i, origin in enumerate(reading.origins) if origin.rows is not None}
    is_sampled = _samples_one_row(func, args, kwargs, reading)
    if func in _DRAWS or is_sampled:
        is_placed = any(rows.placed or not rows.equal for rows in growing.values())
        is_sized = func in _SIZED_DRAWS or is_sampled
        proven = None if is_sized else _readings_of_a_draw(args, kwargs, reading, list(growing))
        axes, none = [frozenset(_axes(tensor, reading.records)) for tensor in made], frozenset[RecordAxis]()
        pairs = [(none, own) if is_placed else (own, none) for own in axes]
        ways = [_ways_of_a_draw(one, own, reading, growing) for one, own in zip(made, axes, strict=True)]
        return [
            PublicRows(equal, placed, proven, drawn=True, ways=own)
            for (equal, placed), own in zip(pairs, ways, strict=True)
        ]
    proof = _RowProof(func, args, kwargs, reading, made, draws=bool(form.draws))
    if unprovable(func, reading) is not None or needs_the_very_size(func, args, kwargs, reading):
        return proof.rows()
    readings = itertools.product(*([*rows.axes, None] for rows in growing.values()))
    for chosen in itertools.islice(readings, _MOST_READINGS):
        proof.read({i: axis for i, axis in zip(growing, chosen, strict=True) if axis is not None})
    return proof.rows()


def _samples_one_row(func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading) -> bool:
    """Whether `multinomial` draws every entry by itself, from one row of public weights: its number is a size then."""
    if func not in _SAMPLES or kwargs.keys() - {"replacement", "num_samples"} or len(reading.tensors) != 1:
        return False
    replaces = kwargs.get("replacement", args[2] if len(args) > 2 else False)
    weights, origin = reading.tensors[0], reading.origins[0]
    return replaces is True and weights.shape[:-1].numel() == 1 and origin.rows is None


def _ways_of_a_draw(made: Tensor, axes: Iterable[RecordAxis], reading: Reading, growing: Iterable[int]) -> Ways:
    """`dropout` and the like make every entry of the same entry of what they take."""
    found = [(axis, [(i, aligned_axis(made, axis, reading.tensors[i])) for i in growing]) for axis in axes]
    return frozenset((axis, tuple((i, own) for i, own in given if own is not None)) for axis, given in found)


def _readings_of_a_draw(args: Any, kwargs: Any, reading: Reading, growing: list[int]) -> frozenset[_Reading]:
    """Readings in which sizes follow the number of records, which are in tuples; numbers by themselves are values."""
    places = set(range(len(reading.multiples)))
    before = Reading(reading.records)
    for arg in (*args, *kwargs.values()):
        start = len(before.multiples)
        before.describe(arg, lambda tensor: Origin(PUBLIC, 0))
        if not isinstance(arg, (tuple, list)):
            places -= set(range(start, len(before.multiples)))
    axes = [(i, axis) for i in growing for axis in range(reading.tensors[i].dim())]
    tensors, numbers = _subsets(axes), _subsets(sorted(places))
    return frozenset((frozenset(one), frozenset(other)) for one in tensors for other in numbers)


def _subsets(of: list[Any]) -> list[tuple[Any, ...]]:
    return [own for size in range(min(len(of), 4) + 1) for own in itertools.combinations(of, size)]


def _axes(tensor: Tensor, records: int) -> tuple[RecordAxis, ...]:
    """Where a tensor may have a row for each record."""
    sizes = [(axis, size // records) for axis, size in enumerate(tensor.shape) if size and size % records == 0]
    return tuple(RecordAxis(axis, minor) for axis, each in sizes for minor in (False, True) if each > 1 or not minor)


class _RowProof:
    """One call on public tensors, read in several ways."""

    def __init__(
        self, func: Callable[..., Any], args: Any, kwargs: Any, reading: Reading, made: list[Tensor], *, draws: bool
    ) -> None:
        self._call, self._reading, self._made, self._draws = (func, args, kwargs), reading, made, draws
        self._equal: list[set[RecordAxis]] = [set() for _ in made]
        self._placed: list[set[RecordAxis]] = [set() for _ in made]
        self._shared: list[set[RecordAxis]] = [set() for _ in made]
        self._ways: list[set[tuple[RecordAxis, tuple[tuple[int, RecordAxis], ...]]]] = [set() for _ in made]
        self._proven: set[_Reading] = set()

    def rows(self) -> list[PublicRows]:
        proven = frozenset(self._proven)
        parts = zip(self._equal, self._placed, map(frozenset, self._shared), map(frozenset, self._ways), strict=True)
        drawn = any(one.rows is not None and one.rows.drawn for one in self._reading.origins)
        return [
            PublicRows(frozenset(equal), frozenset(placed - equal), proven, drawn, shared, ways)
            for equal, placed, shared, ways in parts
        ]

    def read(self, followed: dict[int, RecordAxis]) -> None:
        """With these tensors following the number of records, and any choice of the numbers."""
        origins = [
            Origin(followed[i], 0)
            if i in followed
            else Origin(PUBLIC, 0, func=one.func, settings=one.settings, parents=one.parents)
            for i, one in enumerate(self._reading.origins)
        ]
        for numbers in choices_of_numbers(self._reading.multiples, self._reading.records):
            other = Reading(self._reading.records, numbers, values=self._reading.values)
            other.tensors, other.origins, other.multiples = self._reading.tensors, origins, self._reading.multiples
            places = frozenset(i for i in range(len(other.multiples)) if numbers.follow(i))
            if places and self._call[0] in _SAMPLES:
                continue  # without replacement, a number goes by the numbers that were drawn before it
            is_apart = bool(followed) and self._is_apart(other, followed)
            is_chosen = not followed or self._call[0] in _CHOOSING  # other results tell, by rounding, of how many rows
            is_chosen &= not self._draws  # from one state, draws of few records and of many say nothing about others
            if is_apart or ((followed or places) and is_chosen and self._are_equal(followed) and self._is_same(other)):
                self._proven.add((frozenset((i, axis.axis) for i, axis in followed.items()), places))

    def _is_apart(self, reading: Reading, followed: dict[int, RecordAxis]) -> bool:
        verdict = verdict_of_reading(*self._call, reading)
        if not verdict.keeps_apart or verdict.rows or not fits(verdict, self._made, reading.records):
            return False
        given = self._reading.origins
        is_placed = any(axis not in (given[i].rows or UNPROVEN_ROWS).equal for i, axis in followed.items())
        found = self._placed if is_placed else self._equal
        for own, shared, ways, place in zip(found, self._shared, self._ways, verdict.outputs, strict=True):
            if isinstance(place, RecordAxis):
                own.add(place)
                if verdict.shares_draws:
                    shared.add(place)
                if not is_placed:
                    ways.add((place, tuple(followed.items())))
        return True

    def _are_equal(self, followed: dict[int, RecordAxis]) -> bool:
        rows = {i: self._reading.origins[i].rows or UNPROVEN_ROWS for i in followed}
        return all(axis in rows[i].equal and not rows[i].drawn for i, axis in followed.items())

    def _is_same(self, reading: Reading) -> bool:
        """Whether the call gives the same for few and for many records, on equal rows."""
        call = provable(*self._call, reading, exact=False)
        found = None if switches_formula(call) else self._draws_for_every_count(call, reading)
        if found is None:
            return False
        moderate = call.with_moderate_numbers()
        is_alike = moderate is not None and _sizes_for_few(moderate) == _sizes_for_few(call)
        shown = self._draws_for_every_count(moderate, reading) if moderate is not None and is_alike else found
        if shown is None:
            return False
        for i, (_, axes) in enumerate(found[0]):
            for axis in axes:
                rows = (axis.split(draw[i][0], MANY) for draw in shown)
                is_one_row = all(_is_one_row(own, is_exact=not call.leaves) for own in rows)
                (self._equal if is_one_row else self._placed)[i].add(axis)
                self._ways[i].add((axis, ()))  # of no draw
        return True

    def _draws_for_every_count(
        self, call: ProvableCall, reading: Reading
    ) -> list[list[tuple[Tensor, list[RecordAxis]]]] | None:
        """What the call gives for MANY, and the axes of rows, for each draw of values; None if it depends on the number
        of records, or if it shows no row in any draw: it may look for values that were not drawn."""
        runs = runs_on_equal_rows(call, (FEW, MANY))
        if runs is None or not len(runs[0][0]) == len(runs[0][1]) == len(self._made):
            return None
        shapes = _shapes(runs[0])
        runs = [draw for draw in runs if _shapes(draw) == shapes]  # others have other sizes by their values
        found = []
        for draw in runs:
            of_draw = []
            for few, many, own in zip(*draw, self._made, strict=True):
                axes = _axes_of(few, many, own, reading.records, is_exact=not call.leaves)
                if axes is None:
                    return None
                of_draw.append((many, axes))
            found.append(of_draw)
        has_rows = any(isinstance(leaf.place, RecordAxis) for leaf in call.leaves)
        if has_rows and call.func not in BY_SIZE and _is_unmoved([many for _, many in runs]):
            return None
        return found


def _shapes(draw: list[list[Tensor]]) -> list[list[torch.Size]]:
    return [[one.shape for one in made] for made in draw]


def _is_unmoved(draws: list[list[Tensor]]) -> bool:
    """Whether any tensor is the same in all draws."""
    first = draws[0]
    moved = [any(not torch.equal(one, other[i]) for other in draws) for i, one in enumerate(first)]
    return not all(own or not one.numel() for own, one in zip(moved, first, strict=True))


def _sizes_for_few(call: ProvableCall) -> list[torch.Size] | None:
    runs = runs_on_equal_rows(call, (FEW,))
    return None if runs is None else [one.shape for one in runs[0][0]]


def _axes_of(few: Tensor, many: Tensor, made: Tensor, records: int, *, is_exact: bool) -> list[RecordAxis] | None:
    """Axes with a row for each record, by what a call gave for FEW and MANY and gives now; None if values differ."""
    if not few.dim() == many.dim() == made.dim():
        return None
    growing = [axis for axis in range(few.dim()) if not few.shape[axis] == many.shape[axis] == made.shape[axis]]
    for axis in growing:
        each = few.shape[axis] // FEW
        if (few.shape[axis], many.shape[axis], made.shape[axis]) != (each * FEW, each * MANY, each * records):
            return None
        many = first(many, RecordAxis(axis))
    return [one for one in _axes(few, FEW) if one.axis in growing] if _are_same(few, many, is_exact) else None


def _is_one_row(by_record: Tensor, *, is_exact: bool) -> bool:
    return _are_same(by_record[:1].expand_as(by_record), by_record, is_exact)


def _are_same(one: Tensor, other: Tensor, is_exact: bool) -> bool:
    """Whether values are equal; but for rounding where a call takes tensors, for it has nothing else to round."""
    return torch.equal(one, other) if is_exact else agree(one, other)


def is_rows(origin: Origin, axis: RecordAxis) -> bool:
    """Whether a public tensor has a row for each record along an axis that does not depend on the record's place."""
    return origin.lineage is PUBLIC and origin.rows is not None and axis in origin.rows.equal


def rows_of_memory(tensor: Tensor, records: int) -> PublicRows | None:
    """Of a tensor that is about to be overwritten, every entry."""
    axes = _axes(tensor, records) if records > 1 else ()
    return PublicRows(frozenset(axes), proven=None) if axes else None
