"""The protocol of mechanisms. Information about the records is released through a mechanism only."""

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
    """Adds noise to all bounded sums of one batch, for one charge."""

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        """The privacy event of one release, before amplification by sampling."""

    def check(self, layout: Layout) -> None:
        """Refuse a model to which the stated cost does not apply."""

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """Return the noisy sums in the order of the queries.

        A vector holds all coordinates of the gradient, or the active ones only.
        """
