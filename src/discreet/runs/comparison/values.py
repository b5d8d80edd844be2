"""The results of a comparison: public values, with a JSON form from which the page can be rendered again."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, final

from discreet.core import check
from discreet.core.plain import plain
from discreet.runs.audit_rows import AuditRow
from discreet.runs.comparison.separation import told_apart

FORMAT = "discreet.comparison/2"
CONFIDENCE = 0.95

Setting = str | int | float | bool | None
Changes = tuple[tuple[int, float], ...]  # (first step, value) wherever a value changes


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its standard error and half the width of its t confidence interval.

    error = s / sqrt(n), half = t(0.975, n - 1) * error, with s the sample deviation; both None for one value.

    >>> estimate = Estimate.of([0.91, 0.92, 0.93])
    >>> round(estimate.mean, 4), round(estimate.error, 5), round(estimate.half, 5)
    (0.92, 0.00577, 0.02484)
    """

    mean: float
    error: float | None
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        from scipy.special import stdtrit

        is_valid = len(values) > 0 and all(math.isfinite(value) for value in values)
        check.require(is_valid, "finite values, at least one", f"{list(values)}", "average finished runs only")
        count, mean = len(values), statistics.fmean(values)
        if count == 1:
            return cls(mean=mean, error=None, half=None, count=1)
        error = statistics.stdev(values) / math.sqrt(count)
        quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
        return cls(mean=mean, error=error, half=quantile * error, count=count)

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """The test accuracy after a step, and the certified epsilon of the steps so far."""

    step: int
    accuracy: float
    epsilon: float


@final
@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """One finished training; `seed` None: randomness of the operating system.

    directory       relative to the report
    ledger, config  digests: of the ledger's last line, of the settings
    """

    seed: int | None
    accuracy: float
    epsilon: float
    claimed: float | None
    accountant: str
    assumptions: tuple[str, ...] = ()
    steps: int
    seconds: float
    noise: float | None
    curve: tuple[Point, ...]
    randomness: str
    directory: str
    ledger: str
    config: str


@final
@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that did not finish, and why, in one line."""

    seed: int | None
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class PlanTimeline:
    """Noise, mask density and domain of a plan over its steps.

    noise     the multiplier on the sum, in units of the clip
    density   the share of coordinates that are updated
    diameter  of the domain onto which parameters are projected; None: unbounded
    visible   whether parameters may be seen before the end; if not, there is no accuracy during training
    """

    noise: Changes = ()
    density: Changes = ()
    diameter: float | None = None
    visible: bool = True


@final
@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One method with its settings and its runs: a row of the table."""

    name: str
    method: str
    summary: str
    guarantee: str
    parameters: tuple[tuple[str, Setting], ...]
    optimizer: str
    learning_rate: float | None
    average: float | None = None
    given: bool = False
    course: PlanTimeline = field(default_factory=PlanTimeline)
    runs: tuple[TrainedRun, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def accuracy(self) -> Estimate | None:
        """Over the finished runs; None where there is none."""
        return Estimate.of([run.accuracy for run in self.runs]) if self.runs else None

    @property
    def epsilon(self) -> float | None:
        return max((run.epsilon for run in self.runs), default=None)

    @property
    def claimed(self) -> float | None:
        return max((run.claimed for run in self.runs if run.claimed is not None), default=None)

    @property
    def noise(self) -> float | None:
        return self.runs[0].noise if self.runs else None

    @property
    def steps(self) -> int | None:
        return self.runs[0].steps if self.runs else None

    @property
    def seconds(self) -> float | None:
        return statistics.fmean(run.seconds for run in self.runs) if self.runs else None

    @property
    def curve(self) -> tuple[tuple[int, float, Estimate], ...]:
        """(step, certified epsilon, accuracy over the runs) for the steps that every run evaluated."""
        if not self.runs:
            return ()
        held = [{point.step: point for point in run.curve} for run in self.runs]
        common = {step: [points[step] for points in held] for step in sorted(set(held[0]).intersection(*held))}
        return tuple(
            (step, max(point.epsilon for point in points), Estimate.of([point.accuracy for point in points]))
            for step, points in common.items()
        )


@final
@dataclass(frozen=True, kw_only=True)
class Excluded:
    """A method that is listed but not ranked: it has no certificate, or cannot be run on this task.

    reason  why it cannot be run here; empty if the missing certificate is the reason
    """

    method: str
    guarantee: str
    reason: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """The same rows at one budget of the frontier."""

    epsilon: float
    repeats: int
    entries: tuple[MethodResult, ...]

    @property
    def label(self) -> str:
        return f"{self.epsilon:g}"


@final
@dataclass(frozen=True, kw_only=True)
class TunedSetting:
    """The settings that a search on stand-in data chose for a row, and their score."""

    name: str
    settings: str
    score: float


@final
@dataclass(frozen=True, kw_only=True)
class TuningSummary:
    """A search for settings on public stand-in data.

    records, held_out  the numbers of records that trained and that scored the trials
    """

    data: str
    model: str
    trials: int
    records: int
    held_out: int
    choices: tuple[TunedSetting, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Reference:
    """An accuracy to read the others against; `about` says what it is, `accuracy` None why there is none."""

    name: str
    about: str
    accuracy: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Provenance:
    command: str
    created: str
    versions: tuple[tuple[str, str], ...]
    checksum: str
    constants: str


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods on one dataset and model at one certified budget, best first.

    others    the same rows at further budgets
    truth     the rows of an audit that the page shows, with the name of its file
    tuned     the search that chose the settings, if there was one
    references  accuracies to read the others against: without privacy, and of the most frequent class
    measure   what accuracies are: accuracy, R² of a regression, label accuracy of several labels
    together  the epsilon of publishing all runs of the page, by composition; None if unknown
    public    whether the training records are public, so that repeating and tuning cost nothing
    unit      whom the budget protects
    sampled   what `records` and `batch` count, as a plural
    """

    data: str
    model: str
    parameters: int
    records: int
    test_records: int
    batch: float
    steps: int
    epsilon: float
    delta: float
    relation: str
    sampling: str
    seeds: tuple[int, ...] | None
    repeats: int
    public: bool
    entries: tuple[MethodResult, ...]
    excluded: tuple[Excluded, ...]
    together: float | None
    provenance: Provenance
    others: tuple[BudgetResult, ...] = ()
    truth: tuple[AuditRow, ...] = ()
    truth_source: str = ""
    tuned: TuningSummary | None = None
    references: tuple[Reference, ...] = ()
    measure: str = "accuracy"
    unit: str = "record"
    sampled: str = "records"

    @property
    def neighbours(self) -> str:
        """The relation, with its unit if that is not a record."""
        return self.relation if self.unit == "record" else f"{self.relation} of one {self.unit}"

    @staticmethod
    def ranked(entries: Iterable[MethodResult]) -> tuple[MethodResult, ...]:
        """Best mean accuracy first; entries without a finished run last; ties in the order given."""

        def mean(entry: MethodResult) -> float:
            return -math.inf if entry.accuracy is None else entry.accuracy.mean

        return tuple(sorted(entries, key=mean, reverse=True))

    @property
    def finished(self) -> tuple[MethodResult, ...]:
        return tuple(entry for entry in self.entries if entry.runs)

    @property
    def best(self) -> MethodResult | None:
        return self.finished[0] if self.finished else None

    @property
    def seeded(self) -> bool:
        """Whether any run was seeded, which gives no privacy."""
        runs = (run for budget in self.budgets for entry in budget.entries for run in entry.runs)
        return self.seeds is not None or any("not private" in run.randomness for run in runs)

    @property
    def budgets(self) -> tuple[BudgetResult, ...]:
        own = BudgetResult(epsilon=self.epsilon, repeats=self.repeats, entries=self.entries)
        return tuple(sorted((own, *self.others), key=lambda budget: budget.epsilon))

    @property
    def close_to_best(self) -> tuple[MethodResult, ...]:
        """The entries that the runs cannot tell apart from the best (see `separation`)."""
        if self.best is None:
            return ()
        apart = told_apart(self.best, self.finished[1:])
        return tuple(entry for entry in self.finished[1:] if not apart[entry.name])

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values, with the mean accuracies beside the runs for readers of the file."""
        held = plain(self)
        held["truth"] = [
            {"is": "Truth", **row.to_json(), "parameters": [list(pair) for pair in row.parameters.items()]}
            for row in self.truth
        ]
        every = [self.entries, *(budget.entries for budget in self.others)]
        for entries, written in zip(every, (held, *held["others"]), strict=True):
            for entry, row in zip(entries, written["entries"], strict=True):
                row["is"] = "Entry"  # as files of this format have called a row from the start
                row["accuracy"] = None if entry.accuracy is None else plain(entry.accuracy)
        return {"format": FORMAT, **held}


def settings_in_words(entry: MethodResult) -> str:
    given = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in entry.parameters]
    rate = [] if entry.learning_rate is None else [f"learning rate {entry.learning_rate:g}"]
    averaged = [] if entry.average is None else [f"averaged with decay {entry.average:g}"]
    return ", ".join([*given, entry.optimizer, *rate, *averaged])
