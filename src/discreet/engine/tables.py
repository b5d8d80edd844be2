"""Tables of rows, such as embeddings, and the rows that each record touches.

Which parameters are tables is public: it follows from the modules of the model. Which rows a record touches is private.
Index legend: N records, P positions, B columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import torch
from torch import Tensor, nn

from discreet.core.check import refuse
from discreet.engine.factors.groups import Joined
from discreet.engine.factors.linear import OneHot
from discreet.engine.factors.parts import BoundedFactors, Factors
from discreet.engine.model.support import modules_in, trainable

if TYPE_CHECKING:
    from discreet.engine.layout import Layout

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)


def tables_of(model: nn.Module) -> tuple[int, ...]:
    """The trained parameters that only lookup modules hold, by their place in the layout.

    A weight that is tied to another module, such as an output layer, is no table: every record touches all of its rows.
    """
    by_lookups: set[int] = set()
    by_others: set[int] = set()
    for module in modules_in(model):
        held = by_lookups if isinstance(module, _LOOKUPS) else by_others
        held.update(id(parameter) for parameter in module._parameters.values() if parameter is not None)
    places = enumerate(parameter for _, parameter in trainable(model))
    return tuple(place for place, parameter in places if id(parameter) in by_lookups - by_others)


@final
@dataclass(frozen=True, eq=False)
class TouchedRows:
    """The rows of some tables on which the gradients of a micro-batch are not zero, each once for each record.

    rows        the rows, counted through all tables
    records     the records that touch them
    per_record  how many rows each record touches, [N]; 0 for a record whose gradient is not finite

    If the micro-batch has users, they take the place of records: a row counts once for all records of a user.
    """

    rows: Tensor
    records: Tensor
    per_record: Tensor

    @classmethod
    def of(cls, factors: Sequence[Factors | None], tables: Sequence[int], layout: Layout, finite_N: Tensor) -> Self:
        """The rows that the factors of a micro-batch touch."""
        none = torch.empty(0, dtype=torch.int64, device=finite_N.device)
        rows, records, start = [none], [none], 0
        for table in tables:
            own = factors[table]
            for part, first in () if own is None else _lookups(own, layout.names[table]):
                # Several lookups of a row are one entry, and the entries that this leaves over are zero. So are rows
                # with entries so small that their squares vanish.
                touched = torch.linalg.vector_norm(part.right_NPB, dim=-1) != 0
                is_finite = finite_N[first : first + part.records]
                record, place = (touched & is_finite.unsqueeze(1)).nonzero(as_tuple=True)
                rows.append(part.index_NP[record, place] + start)
                records.append(record + first)
            start += layout.shapes[table][0]
        each = torch.cat(records)
        return cls(torch.cat(rows), each, torch.bincount(each, minlength=len(finite_N)))


def _lookups(factors: Factors, name: str) -> Iterator[tuple[OneHot, int]]:
    """The lookups of a table, and the first record of each; users with equally many records have one of their own."""
    members, first = factors.members if isinstance(factors, Joined) else (factors,), 0
    for member in members:
        yield _lookup(member, name), first
        first += member.records


def _lookup(factors: Factors, name: str) -> OneHot:
    if not isinstance(factors, BoundedFactors) or not isinstance(factors.part, OneHot):
        refuse(
            "tables in which the model only looks up rows",
            f"{name}, which it also uses in another way",
            "use the table through its module only, or another method such as methods.dp_sgd()",
        )
    return factors.part
