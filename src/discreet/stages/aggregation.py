"""Sums over records. This is the only module that builds a `BoundedSum`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, final

from discreet.engine.layout import Mask
from discreet.stages.clipping import Bounder
from discreet.stages.selection import Order, RowCounting
from discreet.stages.values import _AGGREGATION, BoundedSum, PrivateState

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.core.world import World
    from discreet.engine.contributions import Contributions
    from discreet.engine.engine import Engine

_NOTHING: Mapping[str, Tensor] = MappingProxyType({})


@final
@dataclass(frozen=True, eq=False)
class Sums:
    """The sums of one batch: bounded sums for the queries, and hidden sums that only the mechanism may read."""

    vectors: tuple[BoundedSum, ...]
    scalars: tuple[BoundedSum, ...]
    hidden: PrivateState


def sum_of_numbers(numbers_N: Tensor, bound: float, world: World) -> BoundedSum:
    """Clamp one number per record to [-bound, bound] and sum over all processes; NaN counts as +bound."""
    total = numbers_N.double().nan_to_num(bound).clamp(-bound, bound).sum().view(1)
    world.sum_(total)
    return BoundedSum(total, bound, key=_AGGREGATION)


def without(vacant: Tensor | None, values_N: Tensor) -> Tensor:
    """Values whose last axis is the records, with exact zeros for rows that hold no record."""
    return values_N if vacant is None else values_N.masked_fill(vacant, 0)


def _of_records(contribution_map: Callable[[Tensor], Tensor], vacant: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The map with zero gradients for rows that hold no record; it is given all rows in order.

    Every map takes a gradient of zero to a contribution of zero.
    """
    if vacant is None:
        return contribution_map
    left = vacant

    def mapped(gradients_nd: Tensor) -> Tensor:
        nonlocal left
        own, left = left[: len(gradients_nd)], left[len(gradients_nd) :]
        return contribution_map(gradients_nd.masked_fill_(own.unsqueeze(1), 0))

    return mapped


@final
class RowCounts:
    """Counts, over one logical batch, the records (or users) that touch each row of the tables.

    Guarantee: adding or removing one record moves the counts by at most the sensitivity of the query (L2): a record
    adds one weight to each of the k rows that it touches, and weight * sqrt(k) is at most the sensitivity. If users are
    sampled, this holds for a user, whose records touch k rows together.
    """

    def __init__(self, counting: RowCounting, engine: Engine) -> None:
        self._counting, self._engine, self._tables = counting, engine, counting.tables(engine.layout)
        rows = sum(engine.layout.shapes[table][0] for table in self._tables)
        self._counts = engine.zeros(1, rows)[0].double()  # exact sums: counts stay far below 2^53

    def add(self, vacant: Tensor | None = None) -> None:
        """Count the current micro-batch of the engine, before `Aggregation.add` ends it; vacant rows count nothing."""
        touched = self._engine.touched(self._tables)
        weights_N = without(vacant, self._counting.per_row(touched.per_record))
        self._counts.index_add_(0, touched.rows, weights_N[touched.records])

    def sum(self, world: World) -> BoundedSum:
        """Sum over all processes and attach the sensitivity."""
        world.sum_(self._counts)
        return BoundedSum(self._counts, self._counting.query().sensitivity, key=_AGGREGATION)


@final
class Aggregation:
    """Sums one logical batch over its micro-batches and over processes.

    Guarantee: adding or removing one record moves sum i by at most the sensitivity of query i. Every record enters
    through exactly one call of `add`, with the bounder's weight or map, and all records share the mask that is given
    at construction. Hidden sums have no bound and are returned as a `PrivateState`.
    """

    def __init__(
        self,
        bounder: Bounder,
        scale: float,
        engine: Contributions,
        mask: Mask | None,
        order: Order,
        memory: Mapping[str, Tensor] = _NOTHING,
    ) -> None:
        import torch

        self._bounder, self._scale, self._engine, self._mask = bounder, scale, engine, mask
        self._clipped = mask if order is Order.FREEZE_THEN_CLIP else None  # the part that is clipped
        self._groups, self._contribution_map = bounder.groups(engine.layout), bounder.contribution_map(memory)
        self._bounded = len(bounder.vectors(scale))
        self._hidden = len(bounder.hidden(engine.zeros(len(self._groups), 0), scale))
        self._scalars = torch.zeros(len(bounder.scalars()), dtype=torch.float64, device=engine.device)

    @cached_property
    def _vectors(self) -> Tensor:
        """The bounded sums, followed by the hidden ones. They are made when they are first added to: until then, the
        activations of the first micro-batch need the memory."""
        return self._engine.zeros(self._bounded + self._hidden)

    def add(self, vacant: Tensor | None = None) -> None:
        """Add the current micro-batch of the engine, in the precision in which its norms were measured.

        vacant  which of its rows hold no record: they add exact zero, whatever their gradients are
        """
        with self._engine.full_precision():
            self._add(vacant)

    def add_nothing(self) -> None:
        """Take part in an addition of the other processes, which the sums of a sharded model need."""
        self._engine.add_nothing(self._vectors)

    def _add(self, vacant: Tensor | None) -> None:
        norms_GN = self._engine.norms(self._groups, self._clipped)
        if self._contribution_map is None:
            weights = without(vacant, self._weights(norms_GN))
            self._engine.add_weighted(weights, self._vectors, self._groups, self._mask, is_last=True)
        else:
            self._add_mapped(_of_records(self._contribution_map, vacant))
        self._scalars += without(vacant, self._bounder.numbers(norms_GN, self._scale)).sum(1)
        self._engine.discard()

    def _add_mapped(self, contribution_map: Callable[[Tensor], Tensor]) -> None:
        chunk = self._bounder.records_at_once(self._engine.layout.size)
        total = self._engine.mapped_sum(contribution_map, self._mask, chunk=chunk)
        if self._mask is None:
            self._vectors += total
        else:
            from discreet.engine.active import Active

            active = Active.of(self._mask, self._engine.layout, self._engine.device)
            self._vectors.index_add_(1, active.whole, total.to(self._vectors.dtype))

    def _weights(self, norms_GN: Tensor) -> Tensor:
        """The weights of the bounded sums, followed by those of the hidden sums."""
        bounded = self._bounder.weights(norms_GN, self._scale)
        if not self._hidden:
            return bounded
        weights = norms_GN.new_empty(self._bounded + self._hidden, *norms_GN.shape)
        weights[: self._bounded] = bounded
        weights[self._bounded :] = self._bounder.hidden(norms_GN, self._scale)
        return weights

    def sums(self, world: World, *, in_parts: bool = False) -> Sums:
        """Sum over all processes and attach the sensitivities.

        in_parts  give each process the sums of its own part of the active coordinates only, and zeros elsewhere
        """
        holders = self._engine.holders(world)  # a sharded model has summed over the others already
        for vector in self._vectors.unbind():
            self._sum_(vector, holders.sum_parts_ if in_parts else holders.sum_, holders)
        if len(self._scalars):  # a public number
            world.sum_(self._scalars)
        bounded, hidden = self._vectors[: self._bounded], self._vectors[self._bounded :].clone()
        # Hidden sums get their own storage: saving a view of a released sum would write its whole storage.
        self._vectors[self._bounded :].zero_()
        vectors = zip(bounded, self._bounder.vectors(self._scale), strict=True)
        scalars = zip(self._scalars.unsqueeze(1), self._bounder.scalars(), strict=True)
        return Sums(
            tuple(BoundedSum(value, query.sensitivity, key=_AGGREGATION) for value, query in vectors),
            tuple(BoundedSum(value, query.sensitivity, key=_AGGREGATION) for value, query in scalars),
            PrivateState(list(hidden)),
        )

    def _sum_(self, vector: Tensor, sum_: Callable[[Tensor], Tensor], world: World) -> None:
        """Sum a vector over the processes; under a mask only its active coordinates are sent."""
        if self._mask is None or world.size == 1:
            sum_(vector)
            return
        from discreet.engine.active import Active

        index = Active.of(self._mask, self._engine.layout, self._engine.device).whole
        vector.scatter_(0, index, sum_(vector.index_select(0, index)))
