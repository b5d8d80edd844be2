"""Events of whole runs, whose releases cannot be charged step by step."""

import itertools
import math
from dataclasses import dataclass
from typing import final

from discreet.accounting.events.steps import (
    ABOUT_NOISE,
    ABOUT_RATE,
    Event,
    Gaussian,
    TruncatedPoissonSampled,
    WithoutReplacement,
    nested,
)
from discreet.core import check


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
        check.fraction(ABOUT_RATE, rate=self.rate)
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
        nested(self.step, Gaussian | TruncatedPoissonSampled | WithoutReplacement, "LastIterateRun")
        if not isinstance(self.step, Gaussian):  # a second query would be hidden state that nothing contracts
            nested(self.step.event, Gaussian, "LastIterateRun")
        check.count("count the steps of the run", steps=self.steps)
        check.positive("bounds and batch sizes are positive", clip=self.clip, batch=self.batch)
        check.positive("the learning rate multiplies the mean", learning_rate=self.learning_rate)
        check.positive("the diameter of the domain; a ball of radius r has 2r", diameter=self.diameter)
        check.not_negative("a Lipschitz constant of the update", expansion=self.expansion)


def _check_correlated(noise: float, coefficients: tuple[float, ...], inverse: bool = False, **counts: int) -> None:
    from discreet.accounting.correlated import check_stable

    check.not_negative(ABOUT_NOISE, noise=noise)
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
        check.fraction(ABOUT_RATE, rate=self.rate)
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
