"""How batches are drawn, and the privacy amplification that is proven for each way.

Settings are public. The size of the dataset, the random stream and the drawn indices are private, so they are passed
as arguments and never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final

from discreet.accounting import events
from discreet.core import check
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.core.streams import Stream

    Indices = npt.NDArray[np.int64]

_RATE = "give a probability; for batch 256 of 50000 records use rate=256/50000"


@final
@dataclass(frozen=True)
class Size:
    """Public numbers of records: in the dataset, and expected in a batch."""

    records: int
    batch: float


@final
@dataclass(frozen=True, kw_only=True)
class Horizon:
    """The public numbers of a run: sampling rate, steps, and (unless used for accounting only) batch and records.

    >>> Horizon.of(records=60_000, batch=1024, epochs=40).steps
    2360
    """

    rate: float
    steps: int
    steps_per_epoch: int
    batch: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        check.fraction(_RATE, rate=self.rate)
        check.count("give the number of steps", steps=self.steps, steps_per_epoch=self.steps_per_epoch)
        if self.batch is None or self.records is None:
            return
        check.count("give a public number of records, not len(dataset) of private data", records=self.records)
        check.positive("give the expected number of records in a step", batch=self.batch)
        agrees = math.isclose(self.rate, self.batch / self.records, rel_tol=1e-12)
        expected, got = "rate = batch / records", f"rate={self.rate} for batch={self.batch} of records={self.records}"
        check.require(agrees, expected, got, "use discreet.Horizon.of(records=, batch=, epochs=), which sets the rate")

    @staticmethod
    def of(*, records: int, batch: float, epochs: int | None = None, steps: int | None = None) -> Horizon:
        """Set rate = batch / records. One epoch is ceil(records / batch) steps."""
        check.count("give a public number of records, not len(dataset) of private data", records=records)
        check.positive("give the expected number of records in a step", batch=batch)
        remedy = "use a batch size of at most the number of records"
        check.require(batch <= records, f"batch <= records={records}", f"batch={batch!r}", remedy)
        both = f"epochs={epochs!r} and steps={steps!r}"
        check.require((epochs is None) != (steps is None), "either epochs or steps", both, "give exactly one of them")
        per_epoch = math.ceil(records / batch)
        if epochs is not None:
            check.count("give the number of epochs", epochs=epochs)
            steps = epochs * per_epoch
        assert steps is not None
        return Horizon(rate=batch / records, steps=steps, steps_per_epoch=per_epoch, batch=batch, records=records)

    @staticmethod
    def of_rate(*, rate: float, steps: int) -> Horizon:
        """A horizon for accounting only: it cannot draw batches."""
        check.fraction(_RATE, rate=rate)
        return Horizon(rate=rate, steps=steps, steps_per_epoch=math.ceil(1 / rate))

    @property
    def size(self) -> Size:
        """The numbers of records and batch size; refused for a horizon that was built from a rate."""
        if self.records is None or self.batch is None:
            remedy = "use discreet.Horizon.of(records=, batch=)"
            check.refuse("a public number of records and a batch size", "only a rate", remedy)
        return Size(self.records, self.batch)

    def check_at_most(self, size: int) -> None:
        """Refuse a dataset with more than the public number of records, without saying how many it has."""
        expected = "no more records than the plan's public upper bound"
        remedy = "build the plan with a larger `records`"
        check.require(size <= self.size.records, expected, "a larger dataset", remedy)

    def check_exactly(self, size: int) -> None:
        """Refuse any other number of records; for the replace-one relation, under which the number is public."""
        remedy = "pass the dataset's size as `records`: under replace-one it is public"
        check.require(size == self.size.records, f"exactly records={self.size.records} records", size, remedy)


class Sampling(Protocol):
    """A way to draw batches, with its proven privacy cost."""

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        """The neighbouring relations that the proof covers."""

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        """The privacy event of one step, or of one epoch if `per_epoch`."""

    @property
    def per_epoch(self) -> bool:
        """Whether one charge covers a whole epoch. By default every step is charged."""
        return False

    @property
    def is_own_loader(self) -> bool:
        """Whether the user gives the batches, by `private.over(loader)`."""
        return False

    def capacity(self, horizon: Horizon) -> int | None:
        """The most records that a batch can have, a public number; None if the records alone limit it."""
        return None

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        """Yield the indices of each step, beginning with step `start`; `size` is the private number of records."""


@final
@dataclass(frozen=True)
class Poisson(Sampling):
    """Poisson sampling: each record joins each step independently with probability `rate`.

    The decision compares integers, so floating-point rounding cannot raise the probability.
    """

    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.ADD_REMOVE,)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.PoissonSampled(horizon.rate, release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        for _ in range(start, horizon.steps):
            yield stream.bernoulli(size, horizon.rate).nonzero()[0]


@final
@dataclass(frozen=True)
class TruncatedPoisson(Sampling):
    """Poisson sampling with at most `cap` records in a batch; a larger draw keeps `cap` of them, chosen uniformly.

    It needs a public upper bound on the number of records.
    """

    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.ADD_REMOVE,)
    cap: int

    def __post_init__(self) -> None:
        check.count("give the largest batch size that fits in memory", cap=self.cap)

    @staticmethod
    def seldom_cut(horizon: Horizon, *, multiple_of: int = 1) -> TruncatedPoisson:
        """With a cap six standard deviations above the mean batch, which a batch exceeds once in 10^9 steps.

        >>> TruncatedPoisson.seldom_cut(Horizon.of(records=60_000, batch=256, epochs=1), multiple_of=64)
        TruncatedPoisson(cap=384)
        """
        size = horizon.size
        most = min(size.batch + 6 * math.sqrt(size.batch * (1 - horizon.rate)), size.records)
        return TruncatedPoisson(multiple_of * math.ceil(most / multiple_of))

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.TruncatedPoissonSampled(horizon.rate, self.cap, horizon.size.records, release)

    def capacity(self, horizon: Horizon) -> int | None:
        return self.cap

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        horizon.check_at_most(size)
        for _ in range(start, horizon.steps):
            drawn = stream.bernoulli(size, horizon.rate).nonzero()[0]
            if len(drawn) > self.cap:
                drawn = drawn[stream.choice(self.cap, of=len(drawn))]
            yield drawn


@final
@dataclass(frozen=True)
class FixedSize(Sampling):
    """Exactly `batch` records in every step, drawn uniformly without replacement. For replace-one only."""

    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.REPLACE_ONE,)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.WithoutReplacement(horizon.size.records, self._batch(horizon), release)

    def capacity(self, horizon: Horizon) -> int | None:
        return self._batch(horizon)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        horizon.check_exactly(size)
        for _ in range(start, horizon.steps):
            yield stream.choice(self._batch(horizon), of=size)

    @staticmethod
    def _batch(horizon: Horizon) -> int:
        batch = horizon.size.batch
        check.require(batch == int(batch), "a whole number as batch size", f"batch={batch}", "round the batch size")
        return int(batch)


@final
@dataclass(frozen=True)
class BallsInBins(Sampling):
    """Balls-in-bins sampling: in each epoch every record joins exactly one step, chosen uniformly.

    One charge covers a whole epoch.
    """

    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.ADD_REMOVE,)
    per_epoch: ClassVar[bool] = True

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.BallsInBinsEpoch(1, release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        per_epoch = horizon.steps_per_epoch
        if start % per_epoch and start < horizon.steps:
            remedy = "resume at the next epoch: drawing this one again could use a record twice"
            got = f"step {start} with {per_epoch} steps per epoch"
            check.refuse("to start at the first step of an epoch", got, remedy)
        for step in range(start, horizon.steps):
            if step % per_epoch == 0:
                bins = stream.integers(size, below=per_epoch)
            yield (bins == step % per_epoch).nonzero()[0]


@final
@dataclass(frozen=True)
class FullBatch(Sampling):
    """All records in every step: no amplification by sampling."""

    relations: ClassVar[tuple[Neighbouring, ...]] = tuple(Neighbouring)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        remedy = "set batch equal to records"
        check.require(horizon.rate == 1.0, "rate 1 for full batches", f"rate={horizon.rate}", remedy)
        event: events.Event = release
        return event

    def capacity(self, horizon: Horizon) -> int | None:
        return horizon.size.records

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        import numpy as np

        for _ in range(start, horizon.steps):
            yield np.arange(size)


@final
@dataclass(frozen=True)
class OwnLoader(Sampling):
    """Batches from the user's own loader, charged without amplification and with sensitivity 2 * clip per step.

    Under add/remove a call of `private.over` is one pass over the records and takes one epoch of the plan, which is
    ceil(records / batch) steps, whatever the loader has: batches beyond them are left out, and missing ones are steps
    of noise alone, charged as all others. All batches of a pass have the plan's size, up to the last one.

    Assumes that the order of the records is secret or does not depend on them, and that a record occurs at most once
    in a batch; under add/remove exactly once in a pass (docs/proofs/Unamplified.md). The order of `shuffle=True` is
    drawn in secret, whatever seed the program has set; with `generator=` of your own its seed has to be secret.
    """

    relations: ClassVar[tuple[Neighbouring, ...]] = tuple(Neighbouring)
    is_own_loader: ClassVar[bool] = True

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.Unamplified(release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        remedy = "iterate private.over(loader) and call private.step"
        check.refuse("a plan that samples from a dataset", "a plan with sampling=discreet.OwnLoader()", remedy)
