"""What a comparison found: public values only, with a JSON form that rebuilds the page without any run."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from discreet.core import check
from discreet.core.plain import plain

FORMAT = "discreet.comparison/1"
CONFIDENCE = 0.95

Setting = str | int | float | bool | None


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its standard error and the half width of its t confidence interval.

    error = s / sqrt(n), half = t(0.975, n - 1) * error, with s the sample deviation; both None for one value.

    >>> estimate = Estimate.of([0.91, 0.92, 0.93])
    >>> round(estimate.mean, 4), round(estimate.error, 5), round(estimate.half, 5)
    (0.92, 0.00577, 0.02484)
    """

    mean: float
    error: float | None
    half: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        """From one value for each run."""
        from scipy.special import stdtrit

        check.require(
            len(values) > 0 and all(math.isfinite(value) for value in values),
            "finite values, at least one",
            f"{list(values)}",
            "average finished runs only",
        )
        count, mean = len(values), statistics.fmean(values)
        if count == 1:
            return Estimate(mean=mean, error=None, half=None, count=1)
        error = statistics.stdev(values) / math.sqrt(count)
        quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
        return Estimate(mean=mean, error=error, half=quantile * error, count=count)

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals share a point; one run has no interval and is told apart from nothing."""
        if self.half is None or other.half is None:
            return True
        return self.low <= other.high and other.low <= self.high


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """The test accuracy after a step, and the epsilon that is proven for the steps so far."""

    step: int
    accuracy: float
    epsilon: float


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished training; `seed` None: keyed by the operating system.

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
class Entry:
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
    runs: tuple[Run, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def accuracy(self) -> Estimate | None:
        """Over the finished runs; None where there is none."""
        return Estimate.of([run.accuracy for run in self.runs]) if self.runs else None

    @property
    def epsilon(self) -> float | None:
        """The largest certified epsilon of its runs."""
        return max((run.epsilon for run in self.runs), default=None)

    @property
    def claimed(self) -> float | None:
        """What the method's paper claims for such a run."""
        return max((run.claimed for run in self.runs if run.claimed is not None), default=None)

    @property
    def noise(self) -> float | None:
        return self.runs[0].noise if self.runs else None

    @property
    def steps(self) -> int | None:
        return self.runs[0].steps if self.runs else None

    @property
    def seconds(self) -> float | None:
        """The mean wall time of a run."""
        return statistics.fmean(run.seconds for run in self.runs) if self.runs else None

    @property
    def curve(self) -> tuple[tuple[int, float, Estimate], ...]:
        """(step, certified epsilon, accuracy over the runs) for the steps that every run evaluated."""
        if not self.runs:
            return ()
        held = [{point.step: point for point in run.curve} for run in self.runs]
        common = sorted(set.intersection(*(set(points) for points in held)))
        return tuple(
            (
                step,
                max(points[step].epsilon for points in held),
                Estimate.of([points[step].accuracy for points in held]),
            )
            for step in common
        )


@final
@dataclass(frozen=True, kw_only=True)
class Excluded:
    """A method that has no certificate: listed, not ranked."""

    method: str
    guarantee: str


@final
@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the numbers come from."""

    command: str
    created: str
    versions: tuple[tuple[str, str], ...]
    checksum: str
    constants: str


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods on one dataset and model at one certified budget, best first.

    together  the epsilon of releasing all runs of the page, composed at `delta` each; None where unknown
    public    whether the training records are public, so that repeating and choosing cost nothing
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
    entries: tuple[Entry, ...]
    excluded: tuple[Excluded, ...]
    together: float | None
    provenance: Provenance

    @staticmethod
    def ranked(entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Best mean accuracy first; entries without a finished run last; ties in the order given."""

        def mean(entry: Entry) -> float:
            return -1.0 if entry.accuracy is None else entry.accuracy.mean

        return tuple(sorted(entries, key=mean, reverse=True))

    @property
    def finished(self) -> tuple[Entry, ...]:
        """The entries with at least one finished run, best first."""
        return tuple(entry for entry in self.entries if entry.runs)

    @property
    def best(self) -> Entry | None:
        return self.finished[0] if self.finished else None

    @property
    def seeded(self) -> bool:
        """Whether any number here was drawn from a seed, which gives no privacy."""
        return self.seeds is not None or any(
            "not private" in run.randomness for e in self.entries for run in e.runs
        )

    @property
    def not_told_apart(self) -> tuple[Entry, ...]:
        """The entries whose intervals overlap the best one's."""
        best = self.best
        if best is None or best.accuracy is None:
            return ()
        others = (entry for entry in self.finished if entry is not best)
        return tuple(e for e in others if e.accuracy is not None and e.accuracy.overlaps(best.accuracy))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values, with the derived accuracies beside the runs for readers of the file."""
        held = plain(self)
        for entry, written in zip(self.entries, held["entries"], strict=True):
            written["accuracy"] = None if entry.accuracy is None else plain(entry.accuracy)
        return {"format": FORMAT, **held}

    @staticmethod
    def from_json(held: Mapping[str, Any]) -> Comparison:
        """The comparison that `to_json` wrote; anything else is refused."""
        check.require(
            held.get("format") == FORMAT,
            f"a file of format {FORMAT}",
            f"format={held.get('format')!r}",
            "give the report.json that discreet compare wrote with this version",
        )
        try:
            return _comparison(held)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            check.refuse(
                "a whole report.json", f"{type(error).__name__}: {error}", "run discreet compare again"
            )


def _comparison(held: Mapping[str, Any]) -> Comparison:
    seeds = held["seeds"]
    return Comparison(
        **_plain_fields(
            Comparison, held, "seeds", "epsilon", "entries", "excluded", "together", "provenance"
        ),
        seeds=None if seeds is None else tuple(seeds),
        epsilon=float(held["epsilon"]),
        entries=tuple(_entry(entry) for entry in held["entries"]),
        excluded=tuple(Excluded(**_plain_fields(Excluded, entry)) for entry in held["excluded"]),
        together=_number(held["together"]),
        provenance=Provenance(
            **_plain_fields(Provenance, held["provenance"], "versions"),
            versions=tuple((str(name), str(version)) for name, version in held["provenance"]["versions"]),
        ),
    )


def _entry(held: Mapping[str, Any]) -> Entry:
    return Entry(
        **_plain_fields(Entry, held, "parameters", "runs", "failures"),
        parameters=tuple((str(name), value) for name, value in held["parameters"]),
        runs=tuple(_run(run) for run in held["runs"]),
        failures=tuple(Failure(**_plain_fields(Failure, failure)) for failure in held["failures"]),
    )


def _run(held: Mapping[str, Any]) -> Run:
    return Run(
        **_plain_fields(Run, held, "curve", "epsilon", "claimed", "assumptions"),
        epsilon=float(held["epsilon"]),
        claimed=_number(held["claimed"]),
        assumptions=tuple(str(assumption) for assumption in held["assumptions"]),
        curve=tuple(
            Point(step=point["step"], accuracy=point["accuracy"], epsilon=float(point["epsilon"]))
            for point in held["curve"]
        ),
    )


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _plain_fields(kind: type, held: Mapping[str, Any], *special: str) -> dict[str, Any]:
    return {field.name: held[field.name] for field in dataclasses.fields(kind) if field.name not in special}
