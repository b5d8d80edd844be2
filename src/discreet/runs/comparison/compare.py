"""Compare certified methods on one dataset and model, at one certified budget or several.

Tuned settings of rows were found on public benchmark data, so they cost no privacy: by a small search on digits,
trained on four fifths of its 1437 training records and scored on the rest. The 360 test records were not used.
docs/comparison.md has the grid and the scores. Comments mark rows that were not searched. Datasets without rows use the
defaults of a run.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self, final

from discreet.core import check
from discreet.core.own_files import is_own
from discreet.methods import METHODS
from discreet.runs.audit_rows import AuditRow, read_audit
from discreet.runs.comparison.values import BudgetResult, Comparison, Reference, Setting

MOST_TRIALS = 6  # of a method in a search
SHIPPED = "truth-table.json"  # the audit's table, where it lies in the report's directory itself
_LISTED = "`discreet methods` describes them"
_NO_BUDGET = "without a certificate there is no budget to compare at"


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method and its settings; None means the default of the dataset.

    name     names the row and its directory; default: the method
    average  decay of the average of released iterates, whose accuracy then counts; 0: no average
    given    whether the user chose the settings; otherwise they were chosen on public data
    """

    method: str
    name: str = ""
    parameters: tuple[tuple[str, Setting], ...] = ()
    learning_rate: float | None = None
    momentum: float | None = None
    average: float | None = None
    given: bool = False

    def __post_init__(self) -> None:
        check.require(self.method in METHODS, f"a method of {', '.join(METHODS)}", repr(self.method), _LISTED)
        method, remedy = METHODS[self.method], f"remove it: {_NO_BUDGET}"
        check.require(method.certified, "methods with a certificate", f"{method.name}: {method.guarantee}", remedy)
        if not self.name:
            object.__setattr__(self, "name", self.method)
        letters = self.name.replace("-", "").replace("_", "").replace(".", "")
        is_name = letters.isascii() and letters.isalnum() and self.name[0] != "." and self.name != SET_ASIDE
        expected = f"a name of letters, digits, dots and hyphens, not {SET_ASIDE}"
        check.require(is_name, expected, repr(self.name), "it names a directory")


SET_ASIDE = "superseded"  # the directory for earlier runs whose settings differ


def _row(method: str, learning_rate: float | None = None, **parameters: Setting) -> Candidate:
    return Candidate(method=method, parameters=tuple(parameters.items()), learning_rate=learning_rate)


_DIGITS = (
    _row("dp-sgd", 16.0, clip=0.05),
    _row("dp-adam", 0.015, clip=0.05),
    _row("auto-s", 0.8, gamma=0.01),
    _row("psac", 0.8, r=0.5),
    _row("per-layer", 16.0, clip=0.05),
    _row("adaptive-quantile", 0.8, clip=0.5, quantile=0.2, rate=0.02),
    # Not searched: the clip that DP-SGD's search found, for methods that clip likewise.
    *(_row(method, clip=0.05) for method in ("sur", "polar", "geodp-sound", "dpsgd-dc", "dpsgd-gc")),
    _row("two-level", clip=0.05, residual=0.2),
)
# Not searched: with 40 cooling epochs, freezing would not start in a short run.
_FASHION = tuple(_row(method, final_rate=0.5, cooling_epochs=4) for method in ("random-freeze", "ranked-freeze"))

TUNED: Mapping[str, Mapping[str, Candidate]] = MappingProxyType(
    {name: {row.method: row for row in rows} for name, rows in (("digits", _DIGITS), ("fashion-mnist", _FASHION))}
)
"""Settings by dataset and method."""


def candidates(data: str, names: Iterable[str] | None = None) -> tuple[Candidate, ...]:
    """The chosen methods with their settings for `data`; by default every method that has a certificate.

    Chosen methods without a certificate are left out: a comparison lists them as not comparable.

    >>> [row.name for row in candidates("digits", ["psac", "dp-sgd"])]
    ['psac', 'dp-sgd']
    """
    certified = (method.name for method in METHODS.values() if method.certified)
    chosen = dict.fromkeys(certified if names is None else names)
    tuned = TUNED.get(data, {})
    rows = [name for name in chosen if name not in METHODS or METHODS[name].certified]
    check.require(bool(rows), "at least one method with a certificate", ", ".join(chosen) or "none", _NO_BUDGET)
    return tuple(tuned[name] if name in tuned else Candidate(method=name) for name in rows)


@final
@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What to compare; None means the default of the dataset.

    out                  the report's directory; each run is in out/<row>/<seed>
    epsilon, delta       the certified budget of every single run
    others               further budgets for the frontier; every row is calibrated and trained again for each
    other_repeats        runs of each row at those budgets; None: as many as at `epsilon`
    data, data_dir, download, classes, records, public_data   as in a run
    public_records       as in a run, for the methods and features that need them; without it such methods are left out
    preset, features, schedule, label, schema, test, hold_out, task, unit, per_user, sample   as in a run
    rows                 methods with their settings; None: every certified method
    seeds                repeatable experiments, marked "seeded: not private";
                         None: `repeats` runs of each row with randomness of the operating system
    tune_on              public stand-in data on which learning rate and clip are searched first
    trials               the trials of that search, for each method
    tuned_in             the report.json of an earlier comparison, whose search chose the settings
    eval_every           steps between evaluations; None: about twenty in a run
    accept_large_delta   delta may be 1/records or more, which protects no single record
    budget               the budget file of the records: all runs together are one charge, before a record is read
    truth                an audit's table for the page; None: truth-table.json in `out`, if it is there
    workers              how many runs are trained at once; None: one for each core, four at most
    finished_only        train nothing: the page is made of finished runs and says how many are missing
    command              the user's command, for the page
    """

    out: Path
    epsilon: float
    delta: float
    others: tuple[float, ...] = ()
    other_repeats: int | None = None
    data: str = "digits"
    data_dir: str | None = None
    download: bool = False
    classes: int | None = None
    records: int | None = None
    public_data: bool = False
    public_records: str | None = None
    preset: str | None = None
    features: tuple[str, ...] | None = None
    schedule: str | None = None
    label: str | None = None
    schema: str | None = None
    test: str | None = None
    hold_out: float | None = None
    task: str | None = None
    unit: str | None = None
    per_user: int | None = None
    sample: str = "users"
    model: str | None = None
    batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    micro_batch: int | None = None
    eval_every: int | None = None
    rows: tuple[Candidate, ...] | None = None
    seeds: tuple[int, ...] | None = None
    repeats: int = 3
    tune_on: str | None = None
    trials: int = MOST_TRIALS
    tuned_in: Path | None = None
    accept_large_delta: bool = False
    budget: str | None = None
    truth: Path | None = None
    workers: int | None = None
    finished_only: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        budgets = (self.epsilon, *self.others)
        for epsilon in budgets:
            check.positive("epsilon is the certified budget of a run, e.g. 3", epsilon=epsilon)
        check.require(len(budgets) == len(set(budgets)), "different budgets", f"{budgets}", "drop one")
        if self.other_repeats is not None:
            check.count("how many runs each method gets at further budgets", other_repeats=self.other_repeats)
        check.inside_unit("choose delta; use at most 1/(10 * records), e.g. 1e-5", delta=self.delta)
        check.count("how many runs each method gets", repeats=self.repeats)
        check.count("how many trials a search gives each method", trials=self.trials)
        remedy = f"the grid of a search has {MOST_TRIALS} settings"
        check.require(self.trials <= MOST_TRIALS, f"trials <= {MOST_TRIALS}", f"{self.trials}", remedy)
        both = self.tune_on is not None and self.tuned_in is not None
        remedy = "drop one of them: the second takes the settings of an earlier search"
        check.require(not both, "--tune-on or --tuned-in", "both", remedy)
        if self.workers is not None:
            check.count("how many runs are trained at once", workers=self.workers)
        for seed in self.seeds or ():
            check.count("a seed is a whole number", least=0, seed=seed)
        is_valid = self.seeds is None or len(self.seeds) == len(set(self.seeds)) > 0
        remedy = "a repeated seed gives the same run twice"
        check.require(is_valid, "different seeds, at least one", f"seeds={self.seeds}", remedy)
        names = [row.name for row in self.chosen]
        check.require(len(names) == len(set(names)) > 0, "rows with different names", f"{names}", "name them apart")

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

    def at(self, epsilon: float) -> Self:
        """The settings of one budget alone; where there are several, each has a directory of its own."""
        if not self.others:
            return self
        count = None if epsilon == self.epsilon else self.other_repeats
        return dataclasses.replace(
            self,
            out=self.out / f"epsilon-{epsilon:g}",
            epsilon=epsilon,
            others=(),
            seeds=None if self.seeds is None else self.seeds[:count],
            repeats=self.repeats if count is None else count,
        )


def default_seeds(data: str, repeats: int) -> tuple[int, ...] | None:
    """Repeatable seeds for a published benchmark; None, secret randomness, for the user's own file.

    >>> default_seeds("digits", 3), default_seeds("patients.csv", 3)
    ((0, 1, 2), None)
    """
    return None if is_own(data) else tuple(range(repeats))


class Phase(enum.Enum):
    CALIBRATING = "calibrating"
    TRAINING = "training"
    FINISHED = "finished"
    REUSED = "reused"
    FAILED = "failed"


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonProgress:
    """Progress of run `index` of `runs`, counted from 0. Accuracy and epsilon are set at evaluations.

    stage the budget, or the search for settings, that the run belongs to
    note  why a run failed, or where an earlier run with other settings was moved
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
    measure: str = "accuracy"
    note: str = ""
    stage: str = ""


Listener = Callable[[ComparisonProgress], None]


def compare(settings: CompareSettings, on_progress: Listener | None = None) -> Comparison:
    """Train every row with every seed and rank the rows by mean test accuracy; repeat for further budgets.

    A finished run with the same settings is read, not repeated, and an interrupted run is resumed: repeat the call to
    continue. A failed run is reported with its reason. Ctrl-C saves the current runs and propagates.

    Guarantee: every finished run of a row has a certified epsilon of at most its budget.
    """
    from discreet.runs.comparison.runner import ComparisonRunner, charge_runs, together  # imports torch
    from discreet.runs.comparison.searching import found_before, search

    listener = on_progress or (lambda progress: None)
    truth, source = _truth(settings)  # a bad file is refused before anything is trained
    tuned = None
    if settings.tune_on is not None:
        settings, tuned = search(settings, _staged(listener, f"tuning on {settings.tune_on}"))
    elif settings.tuned_in is not None:
        settings, tuned = found_before(settings)
    if settings.budget is not None:
        charge_runs(settings)
    ledgers: list[Path] = []
    found: list[Comparison] = []
    references: tuple[Reference, ...] = ()
    for epsilon in (settings.epsilon, *settings.others):
        told = _staged(listener, f"epsilon {epsilon:g}") if settings.others else listener
        rounds = ComparisonRunner(settings.at(epsilon), told, root=settings.out)
        found.append(rounds.comparison())
        ledgers += rounds.ledgers
        references = references or rounds.references()
    main, *others = found
    if others:
        main = dataclasses.replace(main, together=together(ledgers, main.delta, main.relation))
    stages = tuple(BudgetResult(epsilon=at.epsilon, repeats=at.repeats, entries=at.entries) for at in others)
    return dataclasses.replace(
        main, others=stages, truth=truth, truth_source=source, tuned=tuned, references=references
    )


def _truth(settings: CompareSettings) -> tuple[tuple[AuditRow, ...], str]:
    shipped = settings.out / SHIPPED
    path = settings.truth or (shipped if shipped.is_file() else None)
    return ((), "") if path is None else (read_audit(path), path.name)


def _staged(listener: Listener, stage: str) -> Listener:
    return lambda progress: listener(dataclasses.replace(progress, stage=stage))
