"""What happened: frozen, serialisable values that an accountant turns into epsilon.

The rules of this file:

* An event states its mathematics completely, so that an accountant needs nothing else.
* `noise` is the multiplier z on a sum: standard deviation of the noise / clip. It is stated once, against
  the add/remove sensitivity of one clip; `units(relation)` says how many clips one change of a record moves
  the sum, and the accountants divide by it where they meet the event, once.
* Composition is not an event: a `Charge` says how often each event happened.
* An event that an accountant does not know is refused, never guessed.

>>> event = PoissonSampled(rate=0.01, event=Gaussian(noise=1.1))
>>> event_from_json(event.to_json()) == event
True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from discreet.accounting.releases import (
    RELEASES,
    WHITENABLE,
    CountQuery,
    Event,
    Gaussian,
    ProjectedGaussian,
    Queries,
    Query,
    Release,
    SelectionQuery,
    Whitenable,
    nested,
    units,
)
from discreet.core import check

__all__ = [
    "EVENTS",
    "BallsInBinsEpoch",
    "ClippedFeedback",
    "CountQuery",
    "Event",
    "Free",
    "Gaussian",
    "LastIterateRun",
    "NonPrivate",
    "PoissonSampled",
    "ProjectedGaussian",
    "Queries",
    "Query",
    "Release",
    "SelectionQuery",
    "TruncatedPoissonSampled",
    "Unamplified",
    "Whitenable",
    "WithoutReplacement",
    "event_from_json",
    "units",
]

_ABOUT_RATE = "the rate is a probability; for batch 256 of 50000 records use 256/50000"


# Sampled releases: one step of a run ---------------------------------------------------------------------


@final
@dataclass(frozen=True)
class PoissonSampled(Event):
    """`event` on a sample that holds each record independently with probability `rate`."""

    rate: float
    event: Release
    kind: ClassVar[str] = "poisson-sampled"

    def __post_init__(self) -> None:
        check.fraction(_ABOUT_RATE, rate=self.rate)
        nested(self.event, RELEASES, "PoissonSampled")


@final
@dataclass(frozen=True)
class TruncatedPoissonSampled(Event):
    """`event` on a Poisson sample cut to `cap` records, chosen uniformly, where it held more.

    `records` is a PUBLIC upper bound on the size of the data.
    """

    rate: float
    cap: int
    records: int
    event: Whitenable
    kind: ClassVar[str] = "truncated-poisson"

    def __post_init__(self) -> None:
        check.fraction(_ABOUT_RATE, rate=self.rate)
        check.count("records is a public upper bound", cap=self.cap, records=self.records)
        nested(self.event, WHITENABLE, "TruncatedPoissonSampled")


@final
@dataclass(frozen=True)
class WithoutReplacement(Event):
    """`event` on `batch` of exactly `records` records, uniform without replacement. Replace-one only."""

    records: int
    batch: int
    event: Whitenable
    kind: ClassVar[str] = "without-replacement"

    def __post_init__(self) -> None:
        remedy = "a sample without replacement takes batch <= records"
        check.count(remedy, records=self.records, batch=self.batch)
        check.require(self.batch <= self.records, f"batch <= {self.records}", f"batch={self.batch}", remedy)
        nested(self.event, WHITENABLE, "WithoutReplacement")


@final
@dataclass(frozen=True)
class BallsInBinsEpoch(Event):
    """A whole run: in each of `epochs` epochs every record joins one uniformly chosen step, independently."""

    epochs: int
    event: Whitenable
    kind: ClassVar[str] = "balls-in-bins"

    def __post_init__(self) -> None:
        check.count("count the passes over the data", epochs=self.epochs)
        nested(self.event, WHITENABLE, "BallsInBinsEpoch")


@final
@dataclass(frozen=True)
class Unamplified(Event):
    """One step on a batch from a loader that we do not know: `event`, with no credit for sampling."""

    event: Whitenable
    kind: ClassVar[str] = "unamplified"

    def __post_init__(self) -> None:
        nested(self.event, WHITENABLE, "Unamplified")


# Whole runs ------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class ClippedFeedback(Event):
    """A whole run with clipped error feedback: v_t = clip(e_t, feedback_clip) + mean clip(g, clip) + noise.

    The mean divides by the public `batch`, the noise has standard deviation `noise_std_on_mean`, the error
    e_{t+1} = e_t + mean g - v_t (without noise) stays hidden. `preclip` bounds every g, None: nothing does.
    """

    rate: float
    steps: int
    batch: float
    clip: float
    feedback_clip: float
    noise_std_on_mean: float
    preclip: float | None = None
    kind: ClassVar[str] = "clipped-feedback"

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
class LastIterateRun(Event):
    """A whole run of updates x <- project(x - learning_rate * (sum/batch + noise)); only the last x leaves.

    `step` is one step as sampled (its noise is against the clip on the sum), `diameter` that of the convex
    domain, `expansion` c a Lipschitz constant of the noiseless update for EVERY batch that can occur: batches
    must therefore be bounded, which plain Poisson sampling does not do.
    """

    step: Gaussian | TruncatedPoissonSampled | WithoutReplacement
    steps: int
    clip: float
    batch: float
    learning_rate: float
    diameter: float
    expansion: float
    kind: ClassVar[str] = "last-iterate-run"

    def __post_init__(self) -> None:
        nested(self.step, (Gaussian, TruncatedPoissonSampled, WithoutReplacement), "LastIterateRun")
        if not isinstance(self.step, Gaussian):  # a second query would be hidden state that nothing contracts
            nested(self.step.event, (Gaussian,), "LastIterateRun")
        check.count("count the steps of the run", steps=self.steps)
        check.positive("bounds and batch sizes are positive", clip=self.clip, batch=self.batch)
        check.positive("the learning rate multiplies the mean", learning_rate=self.learning_rate)
        check.positive("the diameter of the domain; a ball of radius r has 2r", diameter=self.diameter)
        check.not_negative("a Lipschitz constant of the update", expansion=self.expansion)


# Nothing, and everything ---------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Free(Event):
    """Post-processing of what was released already: costs nothing."""

    kind: ClassVar[str] = "free"


@final
@dataclass(frozen=True)
class NonPrivate(Event):
    """Something for which no bound is proven: epsilon is infinite."""

    kind: ClassVar[str] = "non-private"


EVENTS: Mapping[str, type[Event]] = {
    event.kind: event
    for event in (
        Gaussian,
        CountQuery,
        SelectionQuery,
        Queries,
        ProjectedGaussian,
        PoissonSampled,
        TruncatedPoissonSampled,
        WithoutReplacement,
        BallsInBinsEpoch,
        Unamplified,
        ClippedFeedback,
        LastIterateRun,
        Free,
        NonPrivate,
    )
}


def event_from_json(body: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote; an unknown kind or a field too many or too few is refused."""
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
