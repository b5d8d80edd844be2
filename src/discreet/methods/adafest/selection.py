"""Selects the rows of large tables by a noisy count of the records that touch them.

Shape suffixes: N records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from discreet.core import check
from discreet.engine.layout import Layout, Lines, Mask
from discreet.stages.clipping import Query, clip_factor
from discreet.stages.combination import TakeFirst
from discreet.stages.pipeline import Pipeline
from discreet.stages.sampling import Horizon
from discreet.stages.selection import Frozen, Order, RowCounting, Selection, density_of
from discreet.stages.values import StepContext

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True, kw_only=True)
class TouchedRows(Selection, RowCounting):
    """A record adds the same number to the count of each row that it touches; rows with a large noisy count are active.

    A row that is not active gets no noise and no update. All other parameters are always active.

    clip        clipping norm of what one record adds to all counts together; it adds 1 to each row, or less
    noise       noise multiplier of the counts, relative to that of the gradient
    threshold   a row is active if its noisy count exceeds this many standard deviations of the noise
    least_rows  tables with fewer rows are always active

    Guarantee: adding or removing one record moves the counts by at most `clip`. The mask is a function of the noisy
    counts, and gradients are clipped before it is known (docs/proofs/TouchedRows.md).
    """

    clip: float = 1.0
    noise: float = 4.0
    threshold: float = 2.0
    least_rows: int = 1000
    order: ClassVar[Order] = Order.CLIP_THEN_FREEZE
    frozen: ClassVar[Frozen] = Frozen.STILL
    takes_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.positive("choose a clipping norm for the counts of one record, e.g. 1.0", clip=self.clip)
        check.positive("choose the noise of the counts relative to that of the gradient, e.g. 4.0", noise=self.noise)
        check.not_negative("choose a threshold in standard deviations of the noise, e.g. 2.0", threshold=self.threshold)
        check.count("choose how many rows a table has at least, e.g. 1000", least_rows=self.least_rows)

    @property
    def counting(self) -> RowCounting:
        return self

    def check(self, stages: Pipeline) -> None:
        expected, remedy = "independent Gaussian noise on every coordinate", "use mechanism=GaussianNoise()"
        check.require(stages.mechanism.is_independent, expected, type(stages.mechanism).__name__, remedy)
        expected, remedy = "the noisy sum itself as gradient", "use combination=TakeFirst()"
        fits = isinstance(stages.combination, TakeFirst)
        check.require(fits, expected, type(stages.combination).__name__, remedy)

    def query(self) -> Query:
        return Query(self.clip, share=self.noise)

    def tables(self, layout: Layout) -> tuple[int, ...]:
        return tuple(table for table in layout.tables if layout.shapes[table][0] >= self.least_rows)

    def per_row(self, rows_N: Tensor) -> Tensor:
        """min(1, clip / sqrt(k)) for a record that touches k rows, so that its contribution has norm at most `clip`.

        >>> import torch
        >>> TouchedRows(clip=1.0).per_row(torch.tensor([0, 1, 4])).round(decimals=3)
        tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64)
        """
        return clip_factor(rows_N.double().sqrt(), self.clip)

    def mask(self, context: StepContext) -> Mask | None:
        """None: all coordinates are summed. `select` chooses among them after the sums."""
        return None

    def select(self, counts: Tensor, std: float, layout: Layout) -> Mask | None:
        tables = self.tables(layout)
        if not tables:
            return None
        active = (counts > self.threshold * std).split([layout.shapes[table][0] for table in tables])
        rows = dict(zip(tables, active, strict=True))
        places = range(len(layout.names))
        return Mask(tuple(Lines(rows[place], None) if place in rows else True for place in places))

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        """An upper bound: which rows are active depends on the records."""
        return density_of(horizon, lambda epoch: 0.0, baseline_epochs)
