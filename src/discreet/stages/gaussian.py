"""The Gaussian mechanism on the bounded sums of one sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.accounting.events import CountQuery, Gaussian, Queries
from discreet.core import check
from discreet.engine.layout import Layout
from discreet.stages.bounding import Query
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext


@final
@dataclass(frozen=True)
class GaussianNoise:
    """Adds N(0, (noise * share * sensitivity)^2) to every active coordinate of every sum.

    Guarantee: all sums of one sample together cost one Gaussian release with multiplier
    (sum_i z_i^-2)^(-1/2), where z_i is the standard deviation of sum i over its sensitivity (docs/proofs/Queries.md).
    Noise 0 releases the sums as they are and is charged as non-private.
    """

    def event(self, queries: Sequence[Query], noise: float) -> Gaussian | CountQuery | Queries:
        """What one release costs, before sampling."""
        events = tuple(query.event(noise) for query in queries)
        return events[0] if len(events) == 1 else Queries(events)

    def check(self, layout: Layout) -> None:
        """Any model: the price does not depend on it."""

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """The noisy sums, of a masked one its active coordinates; no exact sum stays behind."""
        noisy = []
        for total, query in zip(sums, queries, strict=True):
            check.require(
                isinstance(total, BoundedSum) and total.sensitivity <= query.sensitivity,
                "sums with the sensitivity that the noise is for",
                f"{total!r} for {query!r}",
                "aggregate with the bounder of the plan",
            )
            noisy.append(_add_noise(total.value, query.std(noise), context))
        return noisy


def _add_noise(value: Tensor, std: float, context: StepContext) -> Tensor:
    """Noise on what is active, and nothing else: no coordinate leaves without noise."""
    if context.mask is None or value.shape != (context.layout.size,):  # a count is never masked
        return context.streams.noise.add_normal_(value, std)
    from discreet.stages.active import Active

    index = Active.of(context.mask, context.layout, value.device).whole
    active = context.streams.noise.add_normal_(value.index_select(0, index), std)
    value.zero_()  # no exact sum stays behind
    return active
