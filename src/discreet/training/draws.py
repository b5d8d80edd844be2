"""Which records are in a batch: drawn by record or by user, in one process or in several. All of it is private.

Fixed rows (`Slots`): every pass has the same number of rows, and a record's row is a secret draw of its own. Kernels
round a row by the number of rows in the call and by the row's place. With fixed rows the first is a public constant and
the second does not depend on other records, so that neither does the rounding of a record's gradient
(docs/proofs/FixedRows.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.core.streams import Indices, Stream, Streams
from discreet.core.world import World
from discreet.engine.proof.program import BatchKind
from discreet.engine.record_watch import RecordWatch
from discreet.engine.shards.sharding import Sharding
from discreet.stages.plan import Plan
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, Poisson, TruncatedPoisson
from discreet.stages.unit import SampledUsers
from discreet.training.binding import SELDOM, as_dataset
from discreet.training.owners import OwnerOf, Owners, owners_of

TESTS: Final = 2**48  # the sub-stream of batches that test updates; it must differ from all process ranks
USERS: Final = 2**49  # the sub-stream that draws the records of users, likewise
PLACES: Final = 2**50  # the sub-stream that places records in fixed rows, likewise
_BY_RECORD: Final = (Poisson, BallsInBins, FullBatch)
_JOINT: Final = (TruncatedPoisson, FixedSize)


@final
@dataclass(frozen=True, eq=False)
class Draw:
    """The records of one logical batch; if users were drawn, how many successive records belong to each.

    Users with few records come first, so that users with equally many are neighbours (engine/factors/groups.py).

    vacant  which places hold no record, if the batch is laid into fixed rows (`Slots`)
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


@final
class Slots:
    """The places of a logical batch: `passes` passes of `rows` rows each, both public.

    Guarantee: the places of the records are a uniform random injection, drawn by a secret stream independently of
    everything else, anew in each step. So without one record those of the others have the same distribution, and the
    number and the sizes of the passes do not depend on the sample.
    """

    def __init__(self, rows: int, capacity: int, stream: Stream) -> None:
        self.rows, self.passes, self._stream = rows, math.ceil(capacity / rows), stream

    def lay(self, draw: Draw) -> Draw:
        """Lay the records into all places. A vacant place names record 0, which is replaced when it is loaded."""
        count, places = len(draw.records), self.rows * self.passes
        remedy = "build the plan with a larger `records`, which must be a public upper bound"
        check.require(count <= places, "no more records than the plan's largest batch", "more", remedy)
        at = self._stream.permutation(places)[:count]
        records, vacant = np.zeros(places, dtype=np.int64), np.ones(places, dtype=np.bool_)
        records[at], vacant[at] = draw.records, False
        return Draw(records, vacant=vacant)


@final
class Cuts:
    """Refuses numbers that the records of one micro-batch share and those of another do not.

    Leaving one record out of a batch moves others across its cuts. Guarantee: a record's loss does not depend on the
    micro-batch in which it is: no draw is shared by records if batches may be cut, and whatever the loop declares
    public is the same in all micro-batches of a step. With fixed rows, places are drawn, and it may depend on them.
    """

    def __init__(self, plan: Plan, micro_batch: int, world: World, slots: Slots | None) -> None:
        size, self._are_places_drawn, self._are_single = plan.horizon.size, slots is not None, micro_batch == 1
        most = plan.sampling.capacity(plan.horizon)
        if most is None:
            most = min(math.ceil(size.batch + SELDOM * math.sqrt(size.batch)), size.records)
        most *= plan.unit.per_user or 1 if isinstance(plan.unit, SampledUsers) else 1
        self._are_expected = world.size > 1 or (most > micro_batch and not plan.sampling.is_own_loader)
        self._declared: tuple[Any, ...] | None = None  # in the micro-batches of this step so far

    @contextmanager
    def adding(self, watch: RecordWatch, *, is_last: bool) -> Iterator[None]:
        """The losses of a micro-batch are made, and are added inside the block; those of a rehearsal are looked at."""
        is_rehearsal, is_cut = watch.kind is BatchKind.REHEARSAL, self._declared is not None or not is_last
        if is_cut and not is_rehearsal:
            self._refuse_shared(watch)
            self._refuse_changed(watch)
        yield
        if is_rehearsal and self._are_expected:
            self._refuse_shared(watch)
        elif watch.is_rehearsed:
            self._declared = None if is_last else watch.declared_values

    def _refuse_changed(self, watch: RecordWatch) -> None:
        expected, got = "declared values that stay the same in all micro-batches of a step", "others than before"
        remedy = "choose them anew only after private.step returned True, or pass fixed_rows"
        is_same = self._are_places_drawn or self._declared in (None, watch.declared_values)
        check.require(is_same, expected, got, remedy)

    def _refuse_shared(self, watch: RecordWatch) -> None:
        is_harmless = self._are_single or self._are_places_drawn
        at = None if is_harmless else watch.generators.shared_at
        remedy = (
            "draw a row for each record, as torch.rand(len(x), 1) does; or choose a micro_batch that holds the largest "
            "batch, in one process; or pass fixed_rows"
        )
        expected = "random numbers that belong to single records, because batches are cut into micro-batches"
        check.require(at is None, expected, f"one draw for all records of a micro-batch, in {at}", remedy)


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


@final
class Sampler:
    """Draws the batches of a run in this process.

    stream  what draws batches; a resumed run whose noise is drawn again replaces it
    slots   where the records of each batch are laid, in a run with fixed rows
    """

    def __init__(self, plan: Plan, world: World, streams: Streams) -> None:
        check_processes(plan, world)
        self._plan, self._world = plan, world
        self.stream, self._testing, self._users = sampling_streams(streams, plan, world)
        self._of: Population = Records(0)
        self.slots: Slots | None = None

    def take(self, data: Any, unit: OwnerOf | None) -> None:
        """Draw from these records; `unit` names their owners."""
        owners = owners_of(self._plan, data, unit, self._world)
        self._of = population(self._plan, data, owners, self._users)

    @property
    def size(self) -> int:
        """How many records, or users, there are."""
        return self._of.size

    def batches(self, start: int) -> Iterator[Draw]:
        """What this process takes of each batch from step `start` on."""
        return drawn(self._plan, self._of, self._world, self.stream, self._testing, start, self.slots)


def slots_of(
    plan: Plan, rows: int | None, micro_batch: int | None, data: Any, streams: Streams, sharding: Sharding | None
) -> Slots | None:
    """The places of a run with fixed rows, None without; combinations that are not proven are refused by name."""
    if rows is None:
        return None
    check.count("fixed_rows is the number of rows in every forward pass, e.g. 64", fixed_rows=rows)
    reasons = {
        "micro_batch, which fixed_rows replaces": micro_batch is not None,
        "your own loader, whose batches the library does not lay": data is None or plan.sampling.is_own_loader,
        "a plan that protects users, whose records lie side by side": not plan.unit.is_record,
        "several processes": World.current().size > 1,
        "a model that FSDP2 divides among processes": sharding is not None,
    }
    came = [reason for reason, holds in reasons.items() if holds]
    remedy = "leave fixed_rows out, or train in one process on a dataset from which the plan draws single records"
    check.require(not came, "a run that can have fixed_rows", "; ".join(came), remedy)
    capacity = plan.sampling.capacity(plan.horizon)
    if capacity is None:
        other = TruncatedPoisson.seldom_cut(plan.horizon, multiple_of=rows)
        remedy = f"build the plan with recipe.using(sampling=discreet.{other}), or with FixedSize() under replace-one"
        got = f"{type(plan.sampling).__name__}, whose batches have no public limit"
        check.refuse("sampling with a largest batch, for fixed_rows", got, remedy)
    return Slots(rows, capacity, streams.sampling.at(PLACES))
