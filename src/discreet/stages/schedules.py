"""How the noise changes over a run: a public factor on the noise multiplier for each step."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final

from discreet.core import check


class Period(enum.Enum):
    """What a schedule counts."""

    STEP = "step"
    EPOCH = "epoch"

    def index(self, step: int, steps_per_epoch: int) -> int:
        """The number of whole periods before `step`.

        >>> Period.EPOCH.index(7, 3)
        2
        """
        return step if self is Period.STEP else step // steps_per_epoch


class Schedule(Protocol):
    """Noise multiplier of a step = noise * factor."""

    def factor(self, step: int, steps_per_epoch: int) -> float:
        """The factor of step 0, 1, ..."""

    def pieces(self, start: int, stop: int, steps_per_epoch: int) -> Iterator[tuple[float, int]]:
        """Steps start..stop as (factor, how many steps in a row)."""


@final
@dataclass(frozen=True)
class Constant:
    """The same noise at every step."""

    def factor(self, step: int, steps_per_epoch: int) -> float:
        return 1.0

    def pieces(self, start: int, stop: int, steps_per_epoch: int) -> Iterator[tuple[float, int]]:
        if stop > start:
            yield 1.0, stop - start


@final
@dataclass(frozen=True)
class Table:
    """One factor per step or epoch, written out; a run longer than the table is refused.

    >>> Table((1.0, 0.5), Period.EPOCH).factor(3, steps_per_epoch=2)
    0.5
    """

    factors: tuple[float, ...]
    period: Period = Period.STEP

    def __post_init__(self) -> None:
        check.require(
            bool(self.factors), "at least one factor", "an empty table", "list one factor per period"
        )
        for factor in self.factors:
            check.positive("every factor multiplies the noise", factor=factor)

    def factor(self, step: int, steps_per_epoch: int) -> float:
        index = self.period.index(step, steps_per_epoch)
        check.require(
            index < len(self.factors),
            f"a table of more than {index} entries",
            f"{len(self.factors)} entries",
            f"list one factor for every {self.period.value} of the run",
        )
        return self.factors[index]

    def pieces(self, start: int, stop: int, steps_per_epoch: int) -> Iterator[tuple[float, int]]:
        return run_lengths(self, start, stop, steps_per_epoch)


def run_lengths(
    schedule: Schedule, start: int, stop: int, steps_per_epoch: int
) -> Iterator[tuple[float, int]]:
    """The pieces of any schedule, by asking for every step."""
    factors = (schedule.factor(step, steps_per_epoch) for step in range(start, stop))
    for factor, group in itertools.groupby(factors):
        yield factor, sum(1 for _ in group)
