"""Which records join a step, and what that is proven to be worth.

Settings are public. The size of the data, the stream and the indices are private: they are arguments only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from discreet.accounting import events
from discreet.core import check
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.core.streams import Stream

    Indices = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class Size:
    """The public numbers of records in the data and in a step."""

    records: int
    batch: float


@final
@dataclass(frozen=True, kw_only=True)
class Horizon:
    """The public numbers of a run: how many records, how large a batch, how many steps.

    >>> Horizon.of(records=60_000, batch=1024, epochs=40).steps
    2360
    """

    rate: float
    steps: int
    steps_per_epoch: int
    batch: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        check.fraction(
            "the rate is a probability; for batch 256 of 50000 records use 256/50000", rate=self.rate
        )
        check.count("count the steps of the run", steps=self.steps, steps_per_epoch=self.steps_per_epoch)

    @staticmethod
    def of(*, records: int, batch: float, epochs: int | None = None, steps: int | None = None) -> Horizon:
        """rate = batch / records; an epoch is ceil(records / batch) steps."""
        check.count("records is a public number, not len(dataset) of private data", records=records)
        check.positive("batch is the expected number of records in a step", batch=batch)
        check.require(
            batch <= records,
            f"batch <= records={records}",
            f"batch={batch!r}",
            "a step takes at most all records",
        )
        check.require(
            (epochs is None) != (steps is None),
            "either epochs or steps",
            f"epochs={epochs!r} and steps={steps!r}",
            "give one of the two",
        )
        per_epoch = math.ceil(records / batch)
        if epochs is not None:
            check.count("count the passes over the data", epochs=epochs)
            steps = epochs * per_epoch
        assert steps is not None
        return Horizon(
            rate=batch / records, steps=steps, steps_per_epoch=per_epoch, batch=batch, records=records
        )

    @staticmethod
    def of_rate(*, rate: float, steps: int) -> Horizon:
        """For accounting alone, where no batch is drawn."""
        check.fraction("the rate is a probability; for batch 256 of 50000 records use 256/50000", rate=rate)
        return Horizon(rate=rate, steps=steps, steps_per_epoch=math.ceil(1 / rate))

    @property
    def size(self) -> Size:
        """Records and batch, for whatever draws or divides; a horizon of a rate alone is for accounting only."""
        if self.records is None or self.batch is None:
            check.refuse(
                "a public number of records and a batch size", "a rate alone", "give records and batch"
            )
        return Size(self.records, self.batch)


class Sampling(Protocol):
    """A way to draw batches, with its proven price."""

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        """The neighbouring relations it is proven for."""

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        """The event of one charge (a step, or an epoch where `per_epoch`)."""

    @property
    def per_epoch(self) -> bool:
        """Whether one charge pays for a whole epoch."""

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        """The indices of each step from `start` on; `size` is the private number of records."""


class _PerStep:
    @property
    def per_epoch(self) -> bool:
        return False


@final
@dataclass(frozen=True)
class Poisson(_PerStep):
    """Each record joins each step with probability `rate`, decided by comparing integers."""

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        return (Neighbouring.ADD_REMOVE,)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.PoissonSampled(horizon.rate, release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        for _ in range(start, horizon.steps):
            yield stream.bernoulli(size, horizon.rate).nonzero()[0]


@final
@dataclass(frozen=True)
class TruncatedPoisson(_PerStep):
    """Poisson, cut to `cap` records chosen uniformly. Needs a public bound on the number of records."""

    cap: int

    def __post_init__(self) -> None:
        check.count("the largest batch that fits", cap=self.cap)

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        return (Neighbouring.ADD_REMOVE,)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.TruncatedPoissonSampled(horizon.rate, self.cap, horizon.size.records, release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        check.require(
            size <= horizon.size.records,
            "no more records than the plan's public upper bound",
            "more",
            "plan with a larger `records`",
        )
        for _ in range(start, horizon.steps):
            drawn = stream.bernoulli(size, horizon.rate).nonzero()[0]
            if len(drawn) > self.cap:
                drawn = drawn[stream.choice(self.cap, of=len(drawn))]
            yield drawn


def _equal_size(size: int, horizon: Horizon) -> None:
    check.require(
        size == horizon.size.records,
        f"exactly records={horizon.size.records} records",
        f"{size}",
        "this sampling is for replace-one, where the size is public; give it as `records`",
    )


@final
@dataclass(frozen=True)
class FixedSize(_PerStep):
    """`batch` different records in every step, uniformly. For replace-one."""

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        return (Neighbouring.REPLACE_ONE,)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.WithoutReplacement(horizon.size.records, self._batch(horizon), release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        _equal_size(size, horizon)
        for _ in range(start, horizon.steps):
            yield stream.choice(self._batch(horizon), of=size)

    @staticmethod
    def _batch(horizon: Horizon) -> int:
        batch = horizon.size.batch
        check.require(
            batch == int(batch), "a whole batch", f"batch={batch}", "fixed-size batches are whole numbers"
        )
        return int(batch)


@final
@dataclass(frozen=True)
class BallsInBins:
    """In each epoch every record joins exactly one step, chosen uniformly. One charge pays for an epoch."""

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        return (Neighbouring.ADD_REMOVE,)

    @property
    def per_epoch(self) -> bool:
        return True

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.BallsInBinsEpoch(1, release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        per_epoch = horizon.steps_per_epoch
        check.require(
            start % per_epoch == 0 or start >= horizon.steps,
            "a start at an epoch's first step",
            f"step {start} of epochs of {per_epoch}",
            "resume at the next epoch: a second assignment would use records twice in this one",
        )
        for step in range(start, horizon.steps):
            if step % per_epoch == 0:
                bins = stream.integers(size, below=per_epoch)
            yield (bins == step % per_epoch).nonzero()[0]


@final
@dataclass(frozen=True)
class FullBatch(_PerStep):
    """All records in every step."""

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        return tuple(Neighbouring)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        check.require(
            horizon.rate == 1.0,
            "rate 1 for full batches",
            f"rate={horizon.rate}",
            "give batch equal to records",
        )
        event: events.Event = release
        return event

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        import numpy as np

        for _ in range(start, horizon.steps):
            yield np.arange(size)


@final
@dataclass(frozen=True)
class OwnLoader(_PerStep):
    """Batches from the user's own loader: accepted, and billed without any amplification, at two clips a step.

    Assumes that the loader walks over the records in batches of one size, in an order that their contents do not
    decide, each record at most once in a batch (docs/proofs/Unamplified.md).
    """

    @property
    def relations(self) -> tuple[Neighbouring, ...]:
        return tuple(Neighbouring)

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        return events.Unamplified(release)

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        check.refuse(
            "a dataset to sample from",
            "a plan for your own loader",
            "iterate your loader and call private.step",
        )
