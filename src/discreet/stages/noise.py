"""Mechanisms add the noise. Information about the records is released through a mechanism only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final

from discreet.accounting.events import CountQuery, Gaussian, NonPrivate, Queries, Release
from discreet.core import check
from discreet.engine.layout import Layout
from discreet.stages.clipping import Query
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.core.streams import Stream
    from discreet.stages.pipeline import Pipeline
    from discreet.stages.sampling import Horizon
    from discreet.stages.values import PrivateState, StepContext


class Mechanism(Protocol):
    """Adds noise to all bounded sums of one batch, for one charge."""

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        """The privacy event of one release, before amplification by sampling."""

    def check(self, layout: Layout) -> None:
        """Refuse a model to which the stated cost does not apply. By default the cost holds for every model."""
        return

    def fitted(self, stages: Pipeline, horizon: Horizon) -> Mapping[str, Any]:
        """Stages that a plan of this length replaces, by name. By default none."""
        return {}

    def prepare(self, context: StepContext) -> None:
        """A step begins: noise may be drawn beside it. By default it is drawn at the release."""
        return

    @property
    def is_independent(self) -> bool:
        """Whether it adds independent Gaussian noise to every coordinate of every sum, and does nothing else."""
        return False

    @property
    def of_numbers(self) -> Mechanism:
        """What adds the noise to a number that is released apart, such as the test of an update."""
        return GaussianNoise()

    def fits(self, stages: Pipeline) -> None:
        """Refuse stages that it does not support. Called when the plan is built."""
        return

    @property
    def in_parts(self) -> bool:
        """Whether the noisy value of a coordinate depends on the exact sum of this coordinate only.

        Then each process of a run gets the sums of its own part of the coordinates, and zeros elsewhere. By default
        every process gets all sums.
        """
        return False

    @property
    def remembers(self) -> bool:
        """Whether a step uses the noise of earlier ones, which a resumed run must draw again."""
        return False

    def recall(self, drawn: Iterable[Stream], size: int, step: int) -> dict[str, PrivateState]:
        """The hidden state before `step`, from the noise streams of the steps before it, in order."""
        return {}

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """Return the noisy sums in the order of the queries. The exact sums are overwritten.

        A vector holds all coordinates of the gradient, or the active ones only. Several processes call this together,
        and get the same result.
        """


@final
@dataclass(frozen=True)
class GaussianNoise(Mechanism):
    """Adds N(0, (noise * share * sensitivity)^2) to every active coordinate of every sum.

    Guarantee: all sums of one batch together cost one Gaussian release with noise multiplier (sum_i z_i^-2)^(-1/2),
    where z_i is the standard deviation of sum i divided by its sensitivity (docs/proofs/Queries.md).
    A noise multiplier of 0 releases the exact sums and is charged as non-private.
    """

    in_parts: ClassVar[bool] = True
    is_independent: ClassVar[bool] = True

    def event(self, queries: Sequence[Query], noise: float) -> Gaussian | CountQuery | Queries:
        events = tuple(query.event(noise) for query in queries)
        return events[0] if len(events) == 1 else Queries(events)

    def prepare(self, context: StepContext) -> None:
        if context.mask is None and str(context.device) == "cpu":
            own = context.world.part(context.layout.size)
            context.streams.noise.prepare(own.stop - own.start)

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        noisy = []
        for total, query in zip(sums, queries, strict=True):
            check_sensitivity(total, query)
            noisy.append(_add_noise(total.value, query.std(noise), context))
        return noisy


def check_sensitivity(total: BoundedSum, query: Query) -> None:
    """Refuse a sum without a proven bound, or with a larger bound than the query that sets its noise."""
    fits = isinstance(total, BoundedSum) and total.sensitivity <= query.sensitivity
    remedy = "aggregate with the plan's bounder"
    check.require(fits, "sums with the sensitivity of their queries", f"{total!r} for {query!r}", remedy)


def _add_noise(value: Tensor, std: float, context: StepContext) -> Tensor:
    """Add noise to the active coordinates and return only them, so that no coordinate is released without noise."""
    whole = value.shape == (context.layout.size,)  # a count is never masked
    return add_normal_(active_part(value, context) if whole else value, std, context)


def add_normal_(vector: Tensor, std: float, context: StepContext) -> Tensor:
    """vector += std * N(0, 1) in place, the same in all processes: each draws the normals of its own part."""
    return add_by_parts_(vector, context, lambda own: context.streams.noise.add_normal_(own, std))


def add_by_parts_(vector: Tensor, context: StepContext, add_: Callable[[Tensor], object]) -> Tensor:
    """Let each process add the noise of its own part of a vector, with its own key, and give all parts to all.

    Guarantee: every coordinate gets noise exactly once, and no process draws the noise of a coordinate of another.
    """
    world = context.world
    add_(vector if world.size == 1 else vector[world.part(len(vector))])
    return world.gather_parts_(vector)


def active_part(total: Tensor, context: StepContext) -> Tensor:
    """The active coordinates of an exact sum; under a mask the sum itself is overwritten, so that none stays."""
    if context.mask is None:
        return total
    from discreet.engine.active import Active

    active = total.index_select(0, Active.of(context.mask, context.layout, total.device).whole)
    total.zero_()
    return active
