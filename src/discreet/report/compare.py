"""Certified methods side by side: one dataset, one model, one certified budget, several seeds."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from discreet.core import check
from discreet.report.defaults import Candidate, candidates
from discreet.report.values import Comparison


@final
@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What to compare; None means the default of the dataset.

    out                  the report's directory; each run is in out/<row>/<seed>
    epsilon, delta       the certified budget of every single run
    data, data_dir, download, classes, records, public_data   as in a run
    rows                 methods with their settings; None: every certified method
    seeds                repeatable experiments, whose results say "seeded: not private";
                         None: `repeats` runs of each row, keyed by the operating system
    workers              how many runs are trained at once; None: one for each core, four at most
    command              what the user typed, for the page
    """

    out: Path
    epsilon: float
    delta: float
    data: str = "digits"
    data_dir: str | None = None
    download: bool = False
    classes: int | None = None
    records: int | None = None
    public_data: bool = False
    model: str | None = None
    batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    micro_batch: int = 512
    rows: tuple[Candidate, ...] | None = None
    seeds: tuple[int, ...] | None = None
    repeats: int = 3
    workers: int | None = None
    command: str = ""

    def __post_init__(self) -> None:
        check.positive("epsilon is the certified budget of a run, e.g. 3", epsilon=self.epsilon)
        check.inside_unit("delta is far below 1/records, e.g. 1e-5; there is no default", delta=self.delta)
        check.count("how many runs each method gets", repeats=self.repeats)
        if self.workers is not None:
            check.count("how many runs are trained at once", workers=self.workers)
        for seed in self.seeds or ():
            check.count("a seed is a whole number", least=0, seed=seed)
        check.require(
            self.seeds is None or len(self.seeds) == len(set(self.seeds)) > 0,
            "different seeds, at least one",
            f"seeds={self.seeds}",
            "a repeated seed gives the same run twice",
        )
        names = [row.name for row in self.chosen]
        check.require(
            len(names) == len(set(names)) > 0, "rows with different names", f"{names}", "name them apart"
        )

    @property
    def chosen(self) -> tuple[Candidate, ...]:
        """The rows, in the order of METHODS where they were not given."""
        return candidates(self.data) if self.rows is None else self.rows

    @property
    def keys(self) -> tuple[tuple[str, int | None], ...]:
        """(directory name, seed) of each repetition.

        >>> CompareSettings(out=Path("x"), epsilon=3.0, delta=1e-5, repeats=2).keys
        (('os-1', None), ('os-2', None))
        """
        if self.seeds is not None:
            return tuple((str(seed), seed) for seed in self.seeds)
        return tuple((f"os-{index + 1}", None) for index in range(self.repeats))


def default_seeds(data: str, repeats: int) -> tuple[int, ...] | None:
    """Repeatable seeds for a published benchmark; for a file of one's own the operating system's randomness.

    >>> default_seeds("digits", 3), default_seeds("patients.npz", 3)
    ((0, 1, 2), None)
    """
    return None if data.endswith(".npz") else tuple(range(repeats))


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
    """What the comparison does: run `index` of `runs`, from 0. Accuracy and epsilon come with evaluations.

    note  why a run failed, or where the run is that had other settings
    """

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


Listener = Callable[[Progress], None]


def compare(settings: CompareSettings, on_progress: Listener | None = None) -> Comparison:
    """Train every row with every seed and rank the rows by mean test accuracy.

    A finished run with the same settings is read, not repeated, and one that was cut short goes on: the same
    call again continues. A run that fails is a row with its reason. Ctrl-C passes through, after the run has
    saved itself.

    Guarantee: every finished run of a row has a certified epsilon of at most `settings.epsilon`.
    """
    from discreet.report.rounds import Rounds  # imports torch

    return Rounds(settings, on_progress or (lambda progress: None)).comparison()
