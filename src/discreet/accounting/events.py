"""What happened to the data: frozen, serialisable values that an accountant turns into epsilon.

An event states its mathematics completely. `noise` is the multiplier z on a sum: standard deviation of the noise /
clip, for the add/remove sensitivity of one clip. The accountants divide it once by `units(relation)`. A `Charge` says
how often each event happened. An accountant refuses events that it does not know.

>>> event = PoissonSampled(rate=0.01, event=Gaussian(noise=1.1))
>>> event_from_json(event.to_json()) == event
True
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Self, final, get_args

from discreet.core import check
from discreet.core.relation import Neighbouring

_ABOUT_NOISE = "noise is the standard deviation on the sum divided by the clip, 0 meaning no privacy"
_ABOUT_RATE = "the rate is a probability; for batch 256 of 50000 records use 256/50000"


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


def _nested(value: Any, allowed: UnionType | type[Event], owner: str) -> None:
    names = " or ".join(kind.__name__ for kind in get_args(allowed) or (allowed,))
    remedy = f"{owner} is proven for these events only"
    check.require(isinstance(value, allowed), f"event to be {names}", f"event={value!r}", remedy)


@final
@dataclass(frozen=True)
class Gaussian(Event, kind="gaussian"):
    """One sum of records, each of norm <= clip, released with noise N(0, (noise * clip)^2 I)."""

    noise: float

    def __post_init__(self) -> None:
        check.not_negative(_ABOUT_NOISE, noise=self.noise)

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
            _nested(query, Query, "Queries")

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
        check.not_negative(_ABOUT_NOISE, noise=self.noise)
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
        check.fraction(_ABOUT_RATE, rate=self.rate)
        _nested(self.event, Release, "PoissonSampled")


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
        check.fraction(_ABOUT_RATE, rate=self.rate)
        check.count("records is a public upper bound", cap=self.cap, records=self.records)
        _nested(self.event, Whitenable, "TruncatedPoissonSampled")


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
        _nested(self.event, Whitenable, "WithoutReplacement")


@final
@dataclass(frozen=True)
class BallsInBinsEpoch(Event, kind="balls-in-bins"):
    """A whole run: in each of `epochs` epochs every record joins one step, chosen uniformly and independently."""

    epochs: int
    event: Whitenable

    def __post_init__(self) -> None:
        check.count("count the passes over the data", epochs=self.epochs)
        _nested(self.event, Whitenable, "BallsInBinsEpoch")


@final
@dataclass(frozen=True)
class Unamplified(Event, kind="unamplified"):
    """One step on a batch from an unknown loader: `event`, without amplification by sampling."""

    event: Whitenable

    def __post_init__(self) -> None:
        _nested(self.event, Whitenable, "Unamplified")


@final
@dataclass(frozen=True, kw_only=True)
class ClippedFeedback(Event, kind="clipped-feedback"):
    """A whole run with clipped error feedback: v_t = clip(e_t, feedback_clip) + mean clip(g, clip) + noise.

    The mean divides by the public `batch`, and the noise has standard deviation `noise_std_on_mean`. The error e_{t+1}
    = e_t + mean g - v_t (without noise) stays hidden. `preclip` bounds every g; None: nothing does.
    """

    rate: float
    steps: int
    batch: float
    clip: float
    feedback_clip: float
    noise_std_on_mean: float
    preclip: float | None = None

    def __post_init__(self) -> None:
        check.fraction(_ABOUT_RATE, rate=self.rate)
        check.count("count the steps of the run", steps=self.steps)
        check.positive("bounds and batch sizes are positive", batch=self.batch, clip=self.clip)
        check.not_negative("0 means no feedback, or no noise", feedback_clip=self.feedback_clip)
        check.not_negative("0 means no feedback, or no noise", noise_std_on_mean=self.noise_std_on_mean)
        if self.preclip is not None:
            check.positive("the pre-clip bounds every gradient, None nothing", preclip=self.preclip)


@final
@dataclass(frozen=True, kw_only=True)
class LastIterateRun(Event, kind="last-iterate-run"):
    """A whole run of updates x <- project(x - learning_rate * (sum/batch + noise)) that publishes only the last x.

    step       one step with its sampling; its noise is relative to the clip on the sum
    diameter   of the convex domain
    expansion  a Lipschitz constant c of the noiseless update for EVERY possible batch; batches must be bounded, which
               plain Poisson sampling does not ensure
    """

    step: Gaussian | TruncatedPoissonSampled | WithoutReplacement
    steps: int
    clip: float
    batch: float
    learning_rate: float
    diameter: float
    expansion: float

    def __post_init__(self) -> None:
        _nested(self.step, Gaussian | TruncatedPoissonSampled | WithoutReplacement, "LastIterateRun")
        if not isinstance(self.step, Gaussian):  # a second query would be hidden state that nothing contracts
            _nested(self.step.event, Gaussian, "LastIterateRun")
        check.count("count the steps of the run", steps=self.steps)
        check.positive("bounds and batch sizes are positive", clip=self.clip, batch=self.batch)
        check.positive("the learning rate multiplies the mean", learning_rate=self.learning_rate)
        check.positive("the diameter of the domain; a ball of radius r has 2r", diameter=self.diameter)
        check.not_negative("a Lipschitz constant of the update", expansion=self.expansion)


def _check_correlated(noise: float, coefficients: tuple[float, ...], inverse: bool = False, **counts: int) -> None:
    from discreet.accounting.correlated import check_stable

    check.not_negative(_ABOUT_NOISE, noise=noise)
    remedy = "give the first column of a Toeplitz matrix, beginning with its diagonal, as a tuple of numbers"
    given = isinstance(coefficients, tuple) and all(map(math.isfinite, coefficients)) and coefficients[:1] > (0,)
    check.require(given, "finite coefficients, the first of them positive", coefficients, remedy)
    check.count("count the steps of the run, and how a record comes back", **counts)
    check_stable(coefficients, inverse, counts["steps"])


@final
@dataclass(frozen=True, kw_only=True)
class CorrelatedRun(Event, kind="correlated-run"):
    """A whole run of releases x_t + clip * noise * (C^-1 z)_t, z standard normal, C lower-triangular Toeplitz.

    coefficients  the first column of C or, if `inverse`, of C^-1, as far as it is not 0
    most, apart   neighbours differ in at most `most` steps, which are at least `apart` steps apart
    """

    noise: float
    coefficients: tuple[float, ...]
    inverse: bool
    steps: int
    most: int
    apart: int

    def __post_init__(self) -> None:
        _check_correlated(
            self.noise, self.coefficients, self.inverse, steps=self.steps, most=self.most, apart=self.apart
        )


@final
@dataclass(frozen=True, kw_only=True)
class ReshuffledRun(Event, kind="reshuffled-run"):
    """The same releases; neighbours differ in at most one step of every epoch of `steps_per_epoch` steps."""

    noise: float
    coefficients: tuple[float, ...]
    inverse: bool
    steps: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _check_correlated(
            self.noise, self.coefficients, self.inverse, steps=self.steps, steps_per_epoch=self.steps_per_epoch
        )


@final
@dataclass(frozen=True, kw_only=True)
class CyclicPoissonRun(Event, kind="cyclic-poisson-run"):
    """The same releases, at most `parts` bands; step t samples part t mod `parts` of the records at `rate`."""

    rate: float
    noise: float
    coefficients: tuple[float, ...]
    parts: int
    steps: int

    def __post_init__(self) -> None:
        check.fraction(_ABOUT_RATE, rate=self.rate)
        _check_correlated(self.noise, self.coefficients, steps=self.steps, parts=self.parts)
        bands = len(self.coefficients)
        check.require(bands <= self.parts, f"at most {self.parts} bands, one a part", bands, "use fewer bands")


@final
@dataclass(frozen=True)
class BestOfRuns(Event, kind="best-of-runs"):
    """The best of K runs by a score that is part of each run's output; K and the other runs stay hidden.

    candidates  what one run may cost: events with counts, one entry for each setting or part of the data
    mean        E[K], the expected number of runs
    shape       K is truncated negative binomial with this shape eta > -1 (K >= 1); None: K is Poisson, and K = 0
                gives a public default
    """

    candidates: tuple[tuple[tuple[Event, int], ...], ...]
    mean: float
    shape: float | None = 0.0

    def __post_init__(self) -> None:
        remedy = "give each candidate as a tuple of (event, count)"
        is_tuple = isinstance(self.candidates, tuple) and len(self.candidates) > 0
        check.require(is_tuple, "candidates to be a tuple of at least one cost", f"{self.candidates!r}", remedy)
        for event, count in itertools.chain.from_iterable(self.candidates):
            valid = isinstance(event, Event) and not isinstance(event, BestOfRuns)
            check.require(valid, "events that are no selections", f"{event!r}", remedy)
            check.count(remedy, count=count)
        check.positive("the expected number of runs", mean=self.mean)
        check.require(self.mean > 1, "mean > 1", f"mean={self.mean!r}", "one run needs no selection")
        if self.shape is not None:
            got, remedy = f"shape={self.shape!r}", "0 is the logarithmic law, 1 the geometric one"
            valid = type(self.shape) in (int, float) and -1 < self.shape < math.inf
            check.require(valid, "a finite shape > -1", got, remedy)


@final
@dataclass(frozen=True)
class Free(Event, kind="free"):
    """Post-processing of earlier releases; costs nothing."""


@final
@dataclass(frozen=True)
class NonPrivate(Event, kind="non-private"):
    """An access for which no bound is proven: epsilon is infinite."""


_SAMPLED = (PoissonSampled, TruncatedPoissonSampled, WithoutReplacement, BallsInBinsEpoch, Unamplified)
_RUNS = (ClippedFeedback, LastIterateRun, CorrelatedRun, ReshuffledRun, CyclicPoissonRun, BestOfRuns)
_KINDS: tuple[type[Event], ...] = (*get_args(Release), *_SAMPLED, *_RUNS, Free, NonPrivate)
EVENTS: Mapping[str, type[Event]] = {event.kind: event for event in _KINDS}


def event_from_json(body: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote. Unknown kinds and wrong fields are refused."""
    remedy = "read it with the version of the library that wrote it"
    check.require(isinstance(body, Mapping), "an event as a JSON object", f"{body!r}", remedy)
    kind = body.get("kind")
    known = isinstance(kind, str) and kind in EVENTS
    check.require(known, f"kind to be one of {', '.join(EVENTS)}", f"kind={kind!r}", remedy)
    cls = EVENTS[str(kind)]
    names = {f.name for f in dataclasses.fields(cls)}
    given = set(body) - {"kind"}
    check.require(given == names, f"{kind} with {sorted(names)}", f"{sorted(given)}", remedy)
    return cls(**{name: _value(body[name]) for name in names})


def _value(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        return event_from_json(plain)
    if isinstance(plain, list):
        return tuple(_value(item) for item in plain)
    return plain
