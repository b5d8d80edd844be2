"""Experiments and their outcomes: the paper's numbers beside ours."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check

if TYPE_CHECKING:
    from research.reproductions.bench import Bench


class Status(enum.StrEnum):
    """Whether the paper's result was reproduced."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not"

    @classmethod
    def of(cls, held: Iterable[bool], *, quick: bool = False) -> Status:
        """From whether each of the paper's statements held; a quick run is at most "partly".

        >>> Status.of([True, False]), Status.of([True], quick=True)
        (<Status.PARTLY: 'partly'>, <Status.PARTLY: 'partly'>)
        """
        said = tuple(held)
        if all(said) and not quick:
            return cls.REPRODUCED
        return cls.PARTLY if any(said) else cls.NOT


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table.

    paper             the paper's number, or None
    ours, spread      mean over seeds, and its standard error
    certified         epsilon that is proven; math.inf if nothing is
    claimed           epsilon by the paper's own rule
    """

    setting: str
    paper: float | None = None
    ours: float | None = None
    spread: float | None = None
    seeds: int = 1
    certified: float | None = None
    claimed: float | None = None
    note: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's.

        >>> Row(setting="DPSGD", paper=71.3, ours=78.0).difference
        6.7
        """
        if self.paper is None or self.ours is None:
            return None
        return round(self.ours - self.paper, 10)


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a figure."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        check.require(
            len(self.x) == len(self.y),
            "as many x as y",
            f"{len(self.x)} and {len(self.y)} in {self.name!r}",
            "give one y for every x",
        )


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """Curves on shared axes; `name` becomes part of the file name."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        check.require(
            bool(self.name) and all(c.isascii() and (c.isalnum() or c == "-") for c in self.name),
            "a figure's name of letters, digits and hyphens",
            repr(self.name),
            "it names a file",
        )


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment found.

    unit     of the rows' numbers, e.g. "test accuracy, %"
    summary  one or two sentences with the figures that matter
    guesses  what the paper does not specify, our choice, and the reason
    """

    unit: str
    rows: tuple[Row, ...]
    status: Status
    summary: str
    figures: tuple[Figure, ...] = ()
    guesses: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of a paper; minutes are expected minutes on one CPU thread."""

    name: str
    paper: str
    artefact: str
    what: str
    minutes_quick: float
    minutes_full: float
    run: Callable[[Bench], Outcome]


def mean_and_error(values: tuple[float, ...]) -> tuple[float, float | None]:
    """The mean and its standard error, which is None for a single value.

    >>> mean_and_error((1.0, 3.0))
    (2.0, 1.0)
    """
    check.require(bool(values), "at least one value", "none", "run at least one seed")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
