"""Certified methods side by side: one dataset, one model, one certified budget, several seeds."""

from __future__ import annotations

import datetime
import enum
import json
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet.core import check
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.methods import METHODS
from discreet.report import defaults
from discreet.report.defaults import Candidate, Setup
from discreet.report.values import Comparison, Entry, Excluded, Failure, Point, Provenance, Run

if TYPE_CHECKING:
    from discreet import runs
    from discreet.tasks import Task

CURVE_POINTS = 30


@final
@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What to compare.

    out         the report's directory; each run is in out/<candidate>/<seed>
    epsilon     the certified budget of every single run, with delta
    candidates  rows; None: every certified method with its tuned settings
    seeds       repeatable experiments, each result then says "seeded: not private"; None: the operating system's
                randomness, `repeats` runs for each candidate
    model, batch, epochs   None: the dataset's usual ones
    command     what the user typed, for the page
    """

    out: Path
    epsilon: float
    delta: float
    data: str = "digits"
    data_dir: Path | None = None
    model: str | None = None
    batch: float | None = None
    epochs: int | None = None
    candidates: tuple[Candidate, ...] | None = None
    seeds: tuple[int, ...] | None = None
    repeats: int = 3
    command: str = ""

    def __post_init__(self) -> None:
        check.positive("epsilon is the certified budget, e.g. 3", epsilon=self.epsilon)
        check.inside_unit("delta is far below 1/records, e.g. 1e-5", delta=self.delta)
        check.count("how many runs each method gets", repeats=self.repeats)
        if self.seeds is not None:
            for seed in self.seeds:
                check.count("a seed is a whole number", least=0, seed=seed)
            check.require(
                len(self.seeds) == len(set(self.seeds)) > 0,
                "different seeds, at least one",
                f"seeds={self.seeds}",
                "a repeated seed gives the same run twice",
            )
        names = [candidate.name for candidate in self.rows]
        check.require(len(names) == len(set(names)), "rows with different names", f"{names}", "name them apart")

    @property
    def rows(self) -> tuple[Candidate, ...]:
        return defaults.candidates() if self.candidates is None else self.candidates

    @property
    def keys(self) -> tuple[tuple[str, int | None], ...]:
        """(directory name, seed) of each repetition."""
        if self.seeds is not None:
            return tuple((str(seed), seed) for seed in self.seeds)
        return tuple((f"os-{index + 1}", None) for index in range(self.repeats))

    @property
    def setup(self) -> Setup:
        usual = defaults.setup(self.data)
        return Setup(
            model=usual.model if self.model is None else self.model,
            batch=usual.batch if self.batch is None else self.batch,
            epochs=usual.epochs if self.epochs is None else self.epochs,
        )


def default_seeds(data: str, repeats: int) -> tuple[int, ...] | None:
    """Repeatable seeds for a published benchmark; for anyone's own records the operating system's randomness.

    >>> default_seeds("digits", 3), default_seeds("patients.npz", 3)
    ((0, 1, 2), None)
    """
    return tuple(range(repeats)) if data in defaults.SETUPS else None


class Phase(enum.Enum):
    """Where a run of the comparison is."""

    CALIBRATING = "calibrating"
    TRAINING = "training"
    FINISHED = "finished"
    REUSED = "reused"
    FAILED = "failed"


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the comparison is doing: run `index` of `runs` (from 0); `accuracy` once known, `note` on failure."""

    phase: Phase
    name: str
    seed: int | None
    index: int
    runs: int
    step: int = 0
    steps: int = 0
    epsilon: float | None = None
    accuracy: float | None = None
    note: str = ""
