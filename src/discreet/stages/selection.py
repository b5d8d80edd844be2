"""Selections choose the coordinates of the gradient that are active in a step.

Guarantee, for every selection: the mask depends only on public streams and on releases, never on the records of this
step. One mask is used for a whole logical batch (docs/proofs/RandomFreeze.md). A selection that counts rows chooses
its mask after the sums, by a noisy count that is charged with the gradient (docs/proofs/TouchedRows.md).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

from discreet.core import check
from discreet.engine.layout import Layout, Mask
from discreet.stages.clipping import Query
from discreet.stages.sampling import Horizon
from discreet.stages.values import Released, StepContext

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.pipeline import Pipeline


class Order(enum.StrEnum):
    """Which part of the gradient is clipped. Both orders have the same guarantee."""

    FREEZE_THEN_CLIP = "freeze-then-clip"
    """Clip the active part only, as the paper does. The active part is shorter, so less of it is clipped."""
    CLIP_THEN_FREEZE = "clip-then-freeze"
    """Clip the whole gradient, then drop its frozen coordinates (posterior freeze)."""


class Frozen(enum.StrEnum):
    """What the optimizer does with frozen coordinates."""

    STILL = "still"
    """Nothing: neither the parameter nor its optimizer state changes, and weight decay is not applied."""
    COASTING = "coasting"
    """It sees a gradient of zero, so momentum and weight decay still move the parameter (as in the paper)."""


class RowCounting(Protocol):
    """Selects rows of tables by a noisy count of the records that touch them."""

    def query(self) -> Query:
        """The query for the counts, with the norm to which each record's contribution is clipped."""

    def tables(self, layout: Layout) -> tuple[int, ...]:
        """The parameters whose rows are counted; a public choice."""

    def per_row(self, rows_N: Tensor) -> Tensor:
        """What each record adds to each row that it touches, from the number of rows that it touches."""

    def select(self, counts: Tensor, std: float, layout: Layout) -> Mask | None:
        """The mask of the selected rows, from the noisy counts of all rows of the tables, one after the other."""


class Selection(Protocol):
    """Chooses the active coordinates of each step."""

    @property
    def counting(self) -> RowCounting | None:
        """How rows are selected by a noisy count; None if `mask` chooses before the sums."""
        return None

    def check(self, stages: Pipeline) -> None:
        """Refuse stages that it does not support. Called when the plan is built."""
        return

    @property
    def order(self) -> Order:
        """Whether the norm is computed before or after freezing."""

    @property
    def frozen(self) -> Frozen:
        """What the optimizer does with frozen coordinates."""

    @property
    def takes_all(self) -> bool:
        """Whether every coordinate is active in every step."""

    def mask(self, context: StepContext) -> Mask | None:
        """The mask of this step; None if all coordinates are active."""

    def observe(self, released: Released, std: float, context: StepContext) -> None:
        """Receive the release of the step; `std` is the standard deviation of the noise on each coordinate.

        By default it is ignored, because the masks do not depend on releases.
        """
        return

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        """Active coordinates, summed over the run, relative to a dense run.

        The dense run has `baseline_epochs` epochs; None: as many steps as this run.
        """


@final
@dataclass(frozen=True)
class Everything(Selection):
    """All coordinates are active in every step."""

    order: ClassVar[Order] = Order.FREEZE_THEN_CLIP
    frozen: ClassVar[Frozen] = Frozen.STILL
    takes_all: ClassVar[bool] = True

    def mask(self, context: StepContext) -> Mask | None:
        return None

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        return density_of(horizon, lambda epoch: 0.0, baseline_epochs)


def density_of(horizon: Horizon, rate: Callable[[int], float], baseline_epochs: int | None) -> float:
    per_epoch = horizon.steps_per_epoch
    epochs = range(-(-horizon.steps // per_epoch))
    steps = (min(per_epoch, horizon.steps - epoch * per_epoch) for epoch in epochs)
    active = sum(count * (1 - rate(epoch)) for epoch, count in zip(epochs, steps, strict=True))
    if baseline_epochs is None:
        return active / horizon.steps
    check.count("give the number of epochs of the dense run to compare with", baseline_epochs=baseline_epochs)
    return active / (baseline_epochs * per_epoch)
