"""In which way the rows of a public draw go to records.

`r = torch.rand(K * N)` has independent rows for N records in two ways: `r.view(N, K)` and `r.view(K, N).t()`. Each by
itself is fine, but together the rows of different records share numbers.

Guarantee: for losses that `Generators.check` accepts, there is one way to read each draw by which all calls that make
them keep apart what records drew.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from discreet.engine.proof.lineage import PUBLIC, UNPROVEN_ROWS, Origin, PublicRows, ReadDraws
from discreet.engine.trace.capture import RecordAxis

NO_DRAWS: Final[ReadDraws] = frozenset([frozenset()])
_MOST_WAYS: Final = 16


def joined(parts: Iterable[ReadDraws]) -> ReadDraws:
    """The ways to read draws that suit all parts."""
    found = NO_DRAWS
    for part in parts:
        both = (one | other for one in found for other in part)
        found = frozenset(itertools.islice((own for own in both if _is_one_way(own)), _MOST_WAYS))
    return found


def _is_one_way(read: frozenset[tuple[int, RecordAxis]]) -> bool:
    return len({draw for draw, _ in read}) == len(read)


def with_draws(rows: PublicRows, origins: Sequence[Origin]) -> PublicRows:
    """The rows of what a call made, with the draws that reach them from the tensors that it took."""
    if not any(origin.rows is not None and origin.rows.draws for origin in origins):
        return rows
    found: dict[RecordAxis, ReadDraws] = {}
    for axis, followed in rows.ways:
        read = joined(_draws(origins[i], own) for i, own in followed)
        found[axis] = found.get(axis, frozenset()) | read
    return replace(rows, draws=found)


def drawn_by(rows: PublicRows, draw: Origin) -> PublicRows:
    """The rows of what a draw made; `draw` is the state that it left."""
    own = {axis: frozenset([frozenset([(draw.digest, axis)])]) for axis in rows.axes if axis not in rows.shared}
    draws = {axis: joined([rows.draws.get(axis, NO_DRAWS), read]) for axis, read in own.items()}
    return replace(rows, drawn=True, draws=draws)


def draws_used(
    origins: Sequence[Origin],
    tensors: Sequence[Tensor],
    rows: Iterable[tuple[int, RecordAxis]],
    made: tuple[Tensor, Any] | None,
) -> ReadDraws:
    """Of a call on records that takes public tensors by rows.

    made  what the call made, and where the record lies in it, if it draws itself: draws are made entry by entry, which
          is not proven for each axis
    """
    if made is None:
        return joined(_draws(origins[i], axis) for i, axis in rows)
    result, place = made
    aligned = [(origins[i], aligned_axis(result, place, tensors[i])) for i, _ in rows]
    return joined(frozenset() if axis is None else _draws(origin, axis) for origin, axis in aligned)


def aligned_axis(made: Tensor, place: Any, given: Tensor) -> RecordAxis | None:
    """Where the record lies in a tensor that is broadcast to what a call made; None if it is not along an axis."""
    if not isinstance(place, RecordAxis):
        return None
    axis = place.axis - made.dim() + given.dim()
    is_there = axis >= 0 and given.shape[axis] == made.shape[place.axis]
    return RecordAxis(axis, place.minor) if is_there else None


def given_as_rows(origin: Origin, places: Iterable[Any]) -> Origin:
    """A public gradient, whose rows go to records along one of these axes."""
    rows = origin.rows
    if origin.lineage is not PUBLIC or rows is None or not rows.draws:
        return origin
    used = frozenset[frozenset[tuple[int, RecordAxis]]]().union(*(_draws(origin, place) for place in places))
    made_by = origin.digest, origin.func, origin.settings, origin.parents, origin.blame, origin.where
    return Origin(PUBLIC, *made_by, rows=replace(rows, used=used), output=origin.output)


def _draws(origin: Origin, axis: RecordAxis) -> ReadDraws:
    return (origin.rows or UNPROVEN_ROWS).draws.get(axis, NO_DRAWS)
