"""What parameters and public tensors alone make for each record: its values are public, and its gradients are not.

A class token that is spread over the records gets a gradient from each of them, in the record's own row. Calls that
take it must keep these rows apart, as if they held records: `token.expand(len(x), 4).flip(0)` gives each record the
same values, and another one's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from discreet.engine.proof.blame import BY_PLACE, blame_for
from discreet.engine.proof.draws.read_draws import NO_DRAWS
from discreet.engine.proof.lineage import MIXED, PUBLIC, SOLE, SPREAD_ROWS, Origin, PublicRows
from discreet.engine.proof.verdicts import mixed
from discreet.engine.recorder import spread_axis

_NOTHING_FOLLOWS = frozenset([(frozenset[tuple[int, int]](), frozenset[int]())])


def with_gradients(made: Sequence[Tensor], origins: list[Origin], records: int) -> list[Origin]:
    """The origins of what a call made, where rows of gradients belong to the records that the engine takes them for."""
    return [_with_gradient(*pair, records) for pair in zip(made, origins, strict=True)]


def _with_gradient(tensor: Tensor, origin: Origin, records: int) -> Origin:
    axis = spread_axis(tensor) if origin.lineage is PUBLIC and tensor.requires_grad else None
    if axis is None:
        return origin
    made_by = origin.digest, origin.func, None, (origin,)
    if records == 1:
        return Origin(SOLE, *made_by, where=origin.where, output=SPREAD_ROWS)
    rows = origin.rows
    if rows is None or axis not in rows.equal:
        assert origin.func is not None
        blame = blame_for(origin.func, mixed([tensor], BY_PLACE))
        return Origin(MIXED, *made_by, blame=blame, where=origin.where, output=SPREAD_ROWS)
    used = PublicRows(proven=_NOTHING_FOLLOWS, used=rows.draws.get(axis, NO_DRAWS)) if rows.draws else None
    return Origin(axis, *made_by, where=origin.where, rows=used, output=SPREAD_ROWS)
