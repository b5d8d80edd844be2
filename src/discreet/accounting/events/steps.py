"""Events of one step: releases, and releases on a sample of the records."""

import dataclasses
import math
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Self, final, get_args

from discreet.core import check
from discreet.core.relation import Neighbouring

ABOUT_NOISE = "noise is the standard deviation on the sum divided by the clip, 0 meaning no privacy"
ABOUT_RATE = "the rate is a probability; for batch 256 of 50000 records use 256/50000"


@dataclass(frozen=True)
class Event:
    """One access to the data. Equal events cost the same. `kind` is its name in JSON."""

    kind: ClassVar[str] = "event"

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind

    def to_json(self) -> dict[str, Any]:
        """JSON values, with the kind of the event."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"kind": self.kind, **fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def units(relation: Neighbouring) -> float:
    """By how many clips the sum differs between neighbours: 1 if a record is added or removed, 2 if it is replaced."""
    return 1.0 if relation is Neighbouring.ADD_REMOVE else 2.0


def nested(value: Any, allowed: UnionType | type[Event], owner: str) -> None:
    names = " or ".join(kind.__name__ for kind in get_args(allowed) or (allowed,))
    remedy = f"{owner} is proven for these events only"
    check.require(isinstance(value, allowed), f"event to be {names}", f"event={value!r}", remedy)


@final
@dataclass(frozen=True)
class Gaussian(Event, kind="gaussian"):
    """One sum of records, each of norm <= clip, released with noise N(0, (noise * clip)^2 I)."""

    noise: float

    def __post_init__(self) -> None:
        check.not_negative(ABOUT_NOISE, noise=self.noise)

    @property
    def whitened(self) -> Self:
        """The equivalent single Gaussian."""
        return self


@final
@dataclass(frozen=True)
class CountQuery(Event, kind="count-query"):
    """The count of adaptive quantile clipping: every record adds -1/2 or +1/2; noise N(0, sigma^2).

    The add/remove sensitivity is 1/2, so the noise multiplier is sigma / (1/2).

    >>> CountQuery(sigma=5.0).whitened
    Gaussian(noise=10.0)
    """

    sigma: float

    def __post_init__(self) -> None:
        check.not_negative("sigma is the standard deviation of the noise on the count", sigma=self.sigma)

    @property
    def whitened(self) -> Gaussian:
        return Gaussian(noise=self.sigma / 0.5)


@final
@dataclass(frozen=True)
class SelectionQuery(Event, kind="selection-query"):
    """A noisy test on private data, which accepts or rejects an update: a statistic plus N(0, sigma^2).

    `sensitivity` bounds its change when one record is added or removed; replacing a record changes it by twice as much.
    """

    sigma: float
    sensitivity: float

    def __post_init__(self) -> None:
        check.not_negative("sigma is the standard deviation of the noise on the test", sigma=self.sigma)
        check.positive("state how far one record can move the tested statistic", sensitivity=self.sensitivity)

    @property
    def whitened(self) -> Gaussian:
        return Gaussian(noise=self.sigma / self.sensitivity)


Query = Gaussian | CountQuery | SelectionQuery


@final
@dataclass(frozen=True)
class Queries(Event, kind="queries"):
    """Several queries on ONE sample, equivalent to one Gaussian with z = (sum_i z_i^-2)^(-1/2).

    >>> round(Queries((Gaussian(1.2), Gaussian(4.0))).whitened.noise, 6)
    1.149392
    """

    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        remedy = "give the tuple of queries that saw the same sample"
        is_tuple = isinstance(self.queries, tuple) and len(self.queries) > 0
        check.require(is_tuple, "queries to be a tuple of at least one event", f"{self.queries!r}", remedy)
        for query in self.queries:
            nested(query, Query, "Queries")

    @property
    def whitened(self) -> Gaussian:
        noises = [query.whitened.noise for query in self.queries]
        if len(noises) == 1 or min(noises) == 0:
            return Gaussian(noise=min(noises))
        # Scaled by the smallest, so that tiny and huge multipliers neither overflow nor vanish.
        least = min(noises)
        return Gaussian(noise=least / math.sqrt(sum((least / noise) ** 2 for noise in noises)))


@final
@dataclass(frozen=True)
class ProjectedGaussian(Event, kind="projected-gaussian"):
    """y_l = A_l^T S_l / sqrt(p_l) + N(0, (noise * clip)^2 I), A_l dense, iid N(0, 1), fresh and public.

    `dims` are the widths p_l of the projection of each layer. Orthonormal projections are plain `Gaussian`.
    """

    noise: float
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        check.not_negative(ABOUT_NOISE, noise=self.noise)
        remedy = "give the width of the projection of every layer"
        is_tuple = isinstance(self.dims, tuple) and len(self.dims) > 0
        check.require(is_tuple, "dims to be a tuple of at least one width", f"dims={self.dims!r}", remedy)
        for width in self.dims:
            check.count(remedy, width=width)


Whitenable = Query | Queries
Release = Whitenable | ProjectedGaussian


@final
@dataclass(frozen=True)
class PoissonSampled(Event, kind="poisson-sampled"):
    """`event` on a sample that contains each record independently with probability `rate`."""

    rate: float
    event: Release

    def __post_init__(self) -> None:
        check.fraction(ABOUT_RATE, rate=self.rate)
        nested(self.event, Release, "PoissonSampled")


@final
@dataclass(frozen=True)
class GroupPoissonSampled(Event, kind="group-poisson"):
    """`event` on a Poisson sample of records, where neighbours differ in all records of one user, at most `most`.

    Each record joins independently with probability `rate`, so the sum moves by Bin(most, rate) clips at most.
    """

    rate: float
    most: int
    event: Whitenable

    def __post_init__(self) -> None:
        check.fraction(ABOUT_RATE, rate=self.rate)
        check.count("most is the largest number of records of one user", most=self.most)
        nested(self.event, Whitenable, "GroupPoissonSampled")


@final
@dataclass(frozen=True)
class TruncatedPoissonSampled(Event, kind="truncated-poisson"):
    """`event` on a Poisson sample, of which at most `cap` records, chosen uniformly, are kept.

    `records` is a PUBLIC upper bound on the number of records.
    """

    rate: float
    cap: int
    records: int
    event: Whitenable

    def __post_init__(self) -> None:
        check.fraction(ABOUT_RATE, rate=self.rate)
        check.count("records is a public upper bound", cap=self.cap, records=self.records)
        nested(self.event, Whitenable, "TruncatedPoissonSampled")


@final
@dataclass(frozen=True)
class WithoutReplacement(Event, kind="without-replacement"):
    """`event` on `batch` of exactly `records` records, drawn uniformly without replacement. Replace-one only."""

    records: int
    batch: int
    event: Whitenable

    def __post_init__(self) -> None:
        remedy = "a sample without replacement takes batch <= records"
        check.count(remedy, records=self.records, batch=self.batch)
        check.require(self.batch <= self.records, f"batch <= {self.records}", f"batch={self.batch}", remedy)
        nested(self.event, Whitenable, "WithoutReplacement")


@final
@dataclass(frozen=True)
class BallsInBinsEpoch(Event, kind="balls-in-bins"):
    """A whole run: in each of `epochs` epochs every record joins one step, chosen uniformly and independently."""

    epochs: int
    event: Whitenable

    def __post_init__(self) -> None:
        check.count("count the passes over the data", epochs=self.epochs)
        nested(self.event, Whitenable, "BallsInBinsEpoch")


@final
@dataclass(frozen=True)
class Unamplified(Event, kind="unamplified"):
    """One step on a batch from an unknown loader: `event`, without amplification by sampling."""

    event: Whitenable

    def __post_init__(self) -> None:
        nested(self.event, Whitenable, "Unamplified")


@final
@dataclass(frozen=True)
class Free(Event, kind="free"):
    """Post-processing of earlier releases; costs nothing."""


@final
@dataclass(frozen=True)
class NonPrivate(Event, kind="non-private"):
    """An access for which no bound is proven: epsilon is infinite."""
