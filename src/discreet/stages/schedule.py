"""Noise schedules: a public factor on the noise multiplier for each step."""

import abc
import enum
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final

from discreet.core import check


class Period(enum.StrEnum):
    """The unit of time of a schedule."""

    STEP = "step"
    EPOCH = "epoch"

    def before(self, step: int, steps_per_epoch: int) -> int:
        """The number of completed periods before `step`.

        >>> Period.EPOCH.before(7, 3)
        2
        """
        return step if self is Period.STEP else step // steps_per_epoch


class Schedule(Protocol):
    """Sets the noise multiplier of each step to noise * factor."""

    def factor(self, step: int, steps_per_epoch: int) -> float:
        """The factor of a step; steps count from 0."""

    def pieces(self, start: int, stop: int, steps_per_epoch: int) -> Iterator[tuple[float, int]]:
        """The steps from `start` up to `stop`, as runs of equal factors: (factor, number of steps)."""


@final
@dataclass(frozen=True)
class Constant:
    """The same noise multiplier at every step."""

    def factor(self, step: int, steps_per_epoch: int) -> float:
        return 1.0

    def pieces(self, start: int, stop: int, steps_per_epoch: int) -> Iterator[tuple[float, int]]:
        if stop > start:
            yield 1.0, stop - start


class PerPeriod(Schedule):
    """Base of schedules whose factor `at(k)` is constant within period k = 1, 2, ..."""

    period: Period

    @abc.abstractmethod
    def at(self, k: int) -> float:
        """The factor in period k."""

    def factor(self, step: int, steps_per_epoch: int) -> float:
        return self.at(self.period.before(step, steps_per_epoch) + 1)

    def pieces(self, start: int, stop: int, steps_per_epoch: int) -> Iterator[tuple[float, int]]:
        length = 1 if self.period is Period.STEP else steps_per_epoch
        periods = range(start // length, -(-stop // length)) if start < stop else ()
        for factor, group in itertools.groupby(periods, lambda before: self.at(before + 1)):
            same = list(group)
            yield factor, min((same[-1] + 1) * length, stop) - max(same[0] * length, start)


@final
@dataclass(frozen=True)
class Table(PerPeriod):
    """One factor for each step or epoch. A run longer than the table is refused.

    >>> Table((1.0, 0.5), Period.EPOCH).factor(3, steps_per_epoch=2)
    0.5
    """

    factors: tuple[float, ...]
    period: Period = Period.STEP

    def __post_init__(self) -> None:
        remedy = "give one factor per period, as a tuple of numbers (tensor.tolist() for a tensor)"
        object.__setattr__(self, "factors", check.numbers(remedy, factors=self.factors))
        for factor in self.factors:
            check.positive("use positive factors only: they multiply the noise", factor=factor)

    def at(self, k: int) -> float:
        expected = f"a table of more than {k - 1} entries"
        remedy = f"give one factor for every {self.period} of the run"
        check.require(k <= len(self.factors), expected, f"{len(self.factors)} entries", remedy)
        return self.factors[k - 1]


@final
@dataclass(frozen=True, kw_only=True)
class Exponential(PerPeriod):
    """Exponential decay: the factor rho^(-k / periods) in period k = 1, 2, ..., with rho > 1.

    The factor is 1 / rho in period `periods`. A longer run continues with the same formula.

    >>> Exponential(rho=4.0, periods=2).at(1)
    0.5
    """

    rho: float
    periods: int
    period: Period = Period.EPOCH

    def __post_init__(self) -> None:
        check.positive("choose rho > 1: the last factor is 1 / rho", rho=self.rho)
        check.require(self.rho > 1, "rho > 1", f"rho={self.rho!r}", "increase rho: the noise must decay")
        check.count("give the number of periods after which the factor is 1 / rho", periods=self.periods)

    def at(self, k: int) -> float:
        return math.pow(self.rho, -k / self.periods)


@final
@dataclass(frozen=True, kw_only=True)
class Linear(PerPeriod):
    """Linear decay from 1 in the first period to `last` in period `periods`, and constant after that.

    >>> [Linear(last=0.5, periods=3).at(k) for k in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.5]
    """

    last: float
    periods: int
    period: Period = Period.EPOCH

    def __post_init__(self) -> None:
        check.positive("choose the last factor on the noise, e.g. 0.5", last=self.last)
        check.count("use at least two periods: the first and the last", least=2, periods=self.periods)

    def at(self, k: int) -> float:
        if k >= self.periods:
            return self.last
        return 1 + (self.last - 1) * (k - 1) / (self.periods - 1)
