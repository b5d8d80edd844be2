"""Samplers for correlated noise: they bound in which steps of a run one record can take part.

Independent noise is charged by the step. Correlated noise is charged by the run, and its price depends on how often and
at what distances a record comes back. `correlated` states that as an event.

FixedBins      from a dataset: each record in one step of every epoch, always at the same place
CyclicPoisson  from a dataset: Poisson sampling of one part of the records after the other
FixedOrder     your own loader, which repeats the same batches in every epoch
Reshuffled     your own loader, with a new order in every epoch
OnePass        your own stream, in which no record comes twice
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from discreet.accounting import events
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.stages.sampling import Horizon, Sampling

if TYPE_CHECKING:
    from discreet.accounting.correlated import Toeplitz
    from discreet.core.streams import Stream
    from discreet.stages.sampling import Indices

_ASSIGNMENT = 0  # the sub-stream of the draw that holds for the whole run; step t uses t + 1


class Participation(Sampling):
    """A sampler that bounds where a record comes back. Its price is proven for correlated noise only.

    Independent noise is the case of one band.
    """

    @abc.abstractmethod
    def correlated(self, matrix: Toeplitz, noise: float, horizon: Horizon) -> events.Event:
        """The event of a whole run with this matrix."""

    def worst(self, horizon: Horizon) -> list[int]:
        """Steps in which a record moves the run furthest, or nearly so; noise is optimised for them."""
        return [0]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is not checked. Sentences that begin with "if" are printed next to epsilon."""
        return ()

    def bill(self, release: Any, horizon: Horizon) -> events.Event:
        remedy = "use methods.dp_ftrl(bands=1), which adds independent noise, or another sampler"
        check.refuse(f"correlated noise for {type(self).__name__}", "a mechanism that is charged by the step", remedy)


@final
@dataclass(frozen=True)
class FixedBins(Participation):
    """Each record is assigned once to one of the places of an epoch, uniformly and independently, and stays there.

    Guarantee: a record takes part at most once an epoch, always `steps_per_epoch` steps apart. A record that comes or
    goes moves no other record. The assignment is drawn again from the same key after a resume.
    """

    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.ADD_REMOVE,)

    def correlated(self, matrix: Toeplitz, noise: float, horizon: Horizon) -> events.Event:
        return _separated(matrix, noise, horizon)

    def worst(self, horizon: Horizon) -> list[int]:
        return list(range(0, horizon.steps, horizon.steps_per_epoch))

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        bins = stream.again(_ASSIGNMENT).integers(size, below=horizon.steps_per_epoch)
        for step in range(start, horizon.steps):
            yield (bins == step % horizon.steps_per_epoch).nonzero()[0]

    def named(self, names: Sequence[str], horizon: Horizon, stream: Stream, step: int) -> Indices:
        """The places, in `names`, of those who take part in a step.

        Guarantee: whether one takes part follows from its name, the step and the key alone, so it comes back after
        `steps_per_epoch` steps and never before, whoever else is there.
        """
        import numpy as np

        key, places = stream.again(_ASSIGNMENT).uniform64(4).tobytes(), horizon.steps_per_epoch
        hashed = (hashlib.blake2b(name.encode(), key=key, digest_size=8).digest() for name in names)
        bins = np.fromiter((int.from_bytes(one) % places for one in hashed), np.int64, len(names))
        return np.flatnonzero(bins == step % places)


@final
@dataclass(frozen=True)
class CyclicPoisson(Participation):
    """Poisson sampling from one part of the records at a time: step t draws from part t mod `parts`.

    Each record is assigned once to a part, uniformly and independently. A step samples its part at `parts` times the
    rate, so that the expected batch is that of the plan.

    parts  None: as many as the noise has bands
    """

    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.ADD_REMOVE,)
    parts: int | None = None

    def __post_init__(self) -> None:
        if self.parts is not None:
            check.count("use as many parts as the noise has bands", parts=self.parts)

    def correlated(self, matrix: Toeplitz, noise: float, horizon: Horizon) -> events.Event:
        remedy = "use bands of C itself, such as bsr: amplification needs columns that end"
        check.require(not matrix.inverse, "a banded C", "a banded inverse of C", remedy)
        parts, rate = self._numbers(horizon)
        return events.CyclicPoissonRun(
            rate=rate, noise=noise, coefficients=matrix.coefficients, parts=parts, steps=horizon.steps
        )

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        parts, rate = self._numbers(horizon)
        part_of = stream.again(_ASSIGNMENT).integers(size, below=parts)
        for step in range(start, horizon.steps):
            part = (part_of == step % parts).nonzero()[0]
            # The same sample if a step is drawn again in one run; a step is released once.
            yield part[stream.again(step + 1).bernoulli(len(part), rate)]

    def _numbers(self, horizon: Horizon) -> tuple[int, float]:
        if self.parts is None:
            check.refuse("a number of parts", "none", "use methods.bandmf(...), which sets it when a plan is built")
        remedy = "use fewer bands, or smaller batches"
        got = f"{self.parts} parts at rate {horizon.rate}"
        check.require(self.parts * horizon.rate <= 1 + 1e-9, "parts * batch <= records", got, remedy)
        return self.parts, min(1.0, self.parts * horizon.rate)


class OwnBatches(Participation):
    """Batches from `private.over(loader)`. One call of `over` is one pass over the records.

    Under replace-one: if a record came or went, all later batches would change.
    """

    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.REPLACE_ONE,)
    is_own_loader: ClassVar[bool] = True

    def batches(self, size: int, horizon: Horizon, stream: Stream, start: int) -> Iterator[Indices]:
        got, remedy = f"sampling={type(self).__name__}()", "iterate private.over(loader) and call private.step"
        check.refuse("a plan that samples from a dataset", got, remedy)


@final
@dataclass(frozen=True)
class FixedOrder(OwnBatches):
    """A loader that gives the same batches in the same order in every pass, such as a DataLoader without shuffle.

    Guarantee: batch i of a pass is step i of the epoch, so a record comes back after `steps_per_epoch` steps.

    checked  compare every batch with that of the first pass, by keyed digests that stay private. False, for loaders
             that augment at random: that the order is fixed is then your word
    """

    checked: bool = True

    def correlated(self, matrix: Toeplitz, noise: float, horizon: Horizon) -> events.Event:
        return _separated(matrix, noise, horizon)

    def worst(self, horizon: Horizon) -> list[int]:
        return list(range(0, horizon.steps, horizon.steps_per_epoch))

    @property
    def assumptions(self) -> tuple[str, ...]:
        order = "the order of the loader does not depend on the records"
        checked = "every pass gives the same batches in the same order, which was checked"
        same = checked if self.checked else "if every pass over the loader has the same order"
        return (order, same, "if a pass over the loader gives no record twice")


@final
@dataclass(frozen=True)
class Reshuffled(OwnBatches):
    """A loader that gives every record once a pass, in a new order in every pass, such as `shuffle=True`.

    Guarantee: a record takes part at most once an epoch. After a crash the rest of the epoch is left out, because a
    new pass would give some of its records again.
    """

    def correlated(self, matrix: Toeplitz, noise: float, horizon: Horizon) -> events.Event:
        return events.ReshuffledRun(
            noise=noise,
            coefficients=matrix.coefficients,
            inverse=matrix.inverse,
            steps=horizon.steps,
            steps_per_epoch=horizon.steps_per_epoch,
        )

    def worst(self, horizon: Horizon) -> list[int]:
        """The end of one epoch and the beginning of the next."""
        length, epochs = horizon.steps_per_epoch, -(-horizon.steps // horizon.steps_per_epoch)
        places = [epoch * length + (length - 1) * (epoch % 2 == 0) for epoch in range(epochs)]
        return [place for place in places if place < horizon.steps]

    @property
    def assumptions(self) -> tuple[str, ...]:
        order = "the order of a pass is drawn independently of the records"
        return (order, "if a pass over the loader gives no record twice")


@final
@dataclass(frozen=True)
class OnePass(OwnBatches):
    """A stream in which no record comes twice during the whole run, resumed parts included.

    A plan for several epochs is refused: its records would come back.
    """

    def correlated(self, matrix: Toeplitz, noise: float, horizon: Horizon) -> events.Event:
        expected = f"at most {horizon.steps_per_epoch} steps, which are one epoch of the plan's records"
        remedy = "use epochs=1 and `records` of the whole stream; for several passes use Reshuffled or FixedOrder"
        check.require(horizon.steps <= horizon.steps_per_epoch, expected, horizon.steps, remedy)
        return events.CorrelatedRun(
            noise=noise,
            coefficients=matrix.coefficients,
            inverse=matrix.inverse,
            steps=horizon.steps,
            most=1,
            apart=horizon.steps,
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        order = "neither the presence nor the contents of a record decide how the others are batched"
        return (order, "if the stream gives no record twice")


def _separated(matrix: Toeplitz, noise: float, horizon: Horizon) -> events.Event:
    """A record once an epoch, always at the same place."""
    return events.CorrelatedRun(
        noise=noise,
        coefficients=matrix.coefficients,
        inverse=matrix.inverse,
        steps=horizon.steps,
        most=-(-horizon.steps // horizon.steps_per_epoch),
        apart=horizon.steps_per_epoch,
    )
