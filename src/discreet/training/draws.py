"""Which records are in a batch: drawn by record or by user, in one process or in several. All of it is private."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.core.streams import Indices, Stream, Streams
from discreet.core.world import World
from discreet.stages.plan import Plan
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, Poisson, TruncatedPoisson
from discreet.stages.unit import SampledUsers
from discreet.training.binding import as_dataset
from discreet.training.owners import Owners

if TYPE_CHECKING:
    from discreet.training.slots import Slots

TESTS: Final = 2**48  # the sub-stream of batches that test updates; it must differ from all process ranks
USERS: Final = 2**49  # the sub-stream that draws the records of users, likewise
_BY_RECORD: Final = (Poisson, BallsInBins, FullBatch)
_JOINT: Final = (TruncatedPoisson, FixedSize)


@final
@dataclass(frozen=True, eq=False)
class Draw:
    """The records of one logical batch; if users were drawn, how many successive records belong to each.

    Users with few records come first, so that users with equally many are neighbours (engine/factors/groups.py).

    vacant  which places hold no record, if the batch is laid into fixed rows (slots.py)
    """

    records: Indices
    sizes: tuple[int, ...] | None = None
    vacant: npt.NDArray[np.bool_] | None = None

    def cut(self, most: int) -> Iterator[Draw]:
        """Parts of at most `most` records, at least one part. The records of a user stay together."""
        if self.sizes is None:
            for start in range(0, max(len(self.records), 1), most):
                part = slice(start, start + most)
                yield Draw(self.records[part], vacant=None if self.vacant is None else self.vacant[part])
            return
        start, sizes = 0, list[int]()
        for size in self.sizes:
            if sizes and sum(sizes) + size > most:
                yield Draw(self.records[start : start + sum(sizes)], tuple(sizes))
                start, sizes = start + sum(sizes), []
            sizes.append(size)
        yield Draw(self.records[start:], tuple(sizes))


class Population(Protocol):
    """`size` is what the sampler draws from, and `draw` turns what it drew into records."""

    @property
    def size(self) -> int: ...

    def draw(self, chosen: Indices) -> Draw:
        """The records of a batch."""


@final
@dataclass(frozen=True)
class Records:
    """Every record by itself."""

    size: int

    def draw(self, chosen: Indices) -> Draw:
        return Draw(chosen)


@final
class Users:
    """Users. A user's records in a step are drawn again each time, by a secret stream, if there are more than allowed.

    Guarantee: the draw of one user is independent of all others and of whether they exist.
    """

    def __init__(self, owners: Owners, per_user: int, stream: Stream) -> None:
        self.size, self._owners, self._per_user, self._stream = len(owners), owners, per_user, stream

    def draw(self, chosen: Indices) -> Draw:
        drawn = [_some(self._owners.records_of(user), self._per_user, self._stream) for user in chosen.tolist()]
        drawn.sort(key=len)
        records = np.concatenate(drawn) if drawn else np.empty(0, dtype=np.int64)
        return Draw(records, tuple(map(len, drawn)))


@final
class CappedUsers:
    """The records that users may use in this run: at most `per_user` of each, drawn once by a secret stream."""

    def __init__(self, owners: Owners, per_user: int, stream: Stream) -> None:
        kept = [_some(owners.records_of(user), per_user, stream) for user in range(len(owners))]
        self._kept = np.sort(np.concatenate(kept)) if kept else np.empty(0, dtype=np.int64)
        self.size = len(self._kept)

    def draw(self, chosen: Indices) -> Draw:
        return Draw(self._kept[chosen])


def _some(records: Indices, most: int, stream: Stream) -> Indices:
    return records if len(records) <= most else records[stream.choice(most, of=len(records))]


def population(plan: Plan, data: Any, owners: Owners | None, stream: Stream) -> Population:
    """What the plan samples from; `stream` draws the records of users."""
    if owners is None or plan.unit.per_user is None:
        return Records(0 if data is None else len(data))
    kind = Users if isinstance(plan.unit, SampledUsers) else CappedUsers
    return kind(owners, plan.unit.per_user, stream)


def own_part(data: Any) -> Any:
    """This process's part of a dataset that every process has: consecutive records, each in exactly one process.

    With one process it is the dataset itself. The parts follow from the size of the dataset and the number of
    processes, so a run may be resumed with another number of them.

    >>> own_part([10, 20, 30])
    [10, 20, 30]
    """
    world, data = World.current(), as_dataset(data)
    if world.size == 1:
        return data
    mine = world.part(len(data))
    return Subset(data, range(mine.start, mine.stop))


def check_processes(plan: Plan, world: World) -> None:
    """Refuse, by name, methods that several processes cannot train."""
    if world.size == 1:
        return
    got = f"{plan.method} in {world.size} processes"
    remedy = "train in one process, or with a method whose steps have independent noise, such as methods.dp_sgd"
    check.require(not plan.mechanism.remembers, "a method that several processes can train", got, remedy)
    got = f"{type(plan.sampling).__name__} in {world.size} processes"
    remedy = "use sampling=discreet.Poisson(), TruncatedPoisson, FixedSize, BallsInBins or FullBatch"
    drawn = isinstance(plan.sampling, _BY_RECORD + _JOINT)
    check.require(drawn, "sampling from the records of all processes", got, remedy)


def sampling_streams(streams: Streams, plan: Plan, world: World) -> tuple[Stream, Stream, Stream]:
    """The streams that draw this process's batches, the batches that test its updates, and the records of users.

    All processes use the masks and projections of the first. Noise is drawn with a key of each process's own, and so
    are batches, unless their sizes concern the records of all: then all draw the same batch, with the first's key. The
    records of users are drawn apart in every process.
    """
    if world.size > 1:

        def of_the_first(key: bytes) -> bytes:
            return bytes(world.broadcast_(torch.tensor(list(key), dtype=torch.uint8)).tolist())

        streams.share(of_the_first, rank=world.rank, sampling=isinstance(plan.sampling, _JOINT))
    sampling = streams.sampling
    users = sampling if plan.unit.is_record else sampling.at(USERS).at(world.rank)
    return sampling, sampling.at(TESTS) if plan.has_tests else sampling, users


def drawn(
    plan: Plan, of: Population, world: World, sampling: Stream, testing: Stream, start: int, slots: Slots | None = None
) -> Iterator[Draw]:
    """What this process takes of each batch from step `start` on; each batch that tests an update comes twice.

    of     what this process holds
    slots  where the records of each batch are laid, in a run with fixed rows
    """
    horizon, sizes = plan.horizon, world.gather(of.size)
    if plan.relation is Neighbouring.REPLACE_ONE:  # the one relation under which the size is public
        horizon.check_exactly(sum(sizes))

    def batches(stream: Stream) -> Iterator[Draw]:
        if world.size == 1 or not isinstance(plan.sampling, _JOINT):
            draws = map(of.draw, plan.sampling.batches(of.size, horizon, stream, start))
            yield from draws if slots is None or of.size == 0 else map(slots.lay, draws)  # no data has no form
            return
        first = sum(sizes[: world.rank])
        for indices in plan.sampling.batches(sum(sizes), horizon, stream, start):
            yield of.draw(indices[(indices >= first) & (indices < first + of.size)] - first)

    if not plan.has_tests:
        yield from batches(sampling)
        return
    for one, other in zip(batches(sampling), batches(testing), strict=True):
        yield from (one, other, other)
