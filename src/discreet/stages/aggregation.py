"""The sum over records: the one place where `BoundedSum`s are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from discreet.stages.bounding import Bounder
from discreet.stages.selection import Order
from discreet.stages.values import _AGGREGATION, BoundedSum, Mask

if TYPE_CHECKING:
    from discreet.core.world import World
    from discreet.stages.engine import Engine


@final
class Aggregation:
    """Sums of one logical batch, over its micro-batches and over processes.

    Guarantee: with the weights of `bounder`, adding or removing one record moves sum i by at most the
    sensitivity of query i, because every record enters through exactly one call of `add`; one mask, given at
    the start, serves them all.
    """

    def __init__(
        self, bounder: Bounder, scale: float, engine: Engine, mask: Mask | None, order: Order
    ) -> None:
        self._bounder, self._scale, self._engine, self._mask = bounder, scale, engine, mask
        self._clipped = mask if order is Order.FREEZE_THEN_CLIP else None  # the part whose norm is bounded
        self._groups = bounder.groups(engine.layout)
        self._vectors = engine.zeros(len(bounder.vectors(scale)))
        self._scalars = engine.zeros(len(bounder.scalars()))[:, 0].double()

    def add(self) -> None:
        """Add the engine's open micro-batch."""
        norms_GN = self._engine.norms(self._groups, self._clipped)
        weights_QGN = self._bounder.weights(norms_GN, self._scale)
        self._engine.add_weighted(weights_QGN, self._vectors, self._groups, self._mask)
        self._scalars += self._bounder.numbers(norms_GN, self._scale).sum(1)
        self._engine.discard()

    def sums(self, world: World) -> tuple[list[BoundedSum], list[BoundedSum]]:
        """The vector sums and the scalar sums of all processes, each with its sensitivity."""
        world.sum_(self._vectors)
        world.sum_(self._scalars)
        vectors = zip(self._vectors, self._bounder.vectors(self._scale), strict=True)
        scalars = zip(self._scalars.unsqueeze(1), self._bounder.scalars(), strict=True)
        return (
            [BoundedSum(value, query.sensitivity, key=_AGGREGATION) for value, query in vectors],
            [BoundedSum(value, query.sensitivity, key=_AGGREGATION) for value, query in scalars],
        )
