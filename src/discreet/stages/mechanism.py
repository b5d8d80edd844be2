"""What a mechanism is: the one door through which anything about the records leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from discreet.accounting.events import NonPrivate, Release
from discreet.engine.layout import Layout
from discreet.stages.bounding import Query
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext


class Mechanism(Protocol):
    """Turns all bounded sums of one sample into noisy ones, for one charge."""

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        """What one release costs, before sampling."""

    def check(self, layout: Layout) -> None:
        """Refuse a model that the price is not for."""

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """The noisy sums, in the order of the queries.

        Vectors keep the layout of the gradient, or hold its active coordinates alone.
        """
