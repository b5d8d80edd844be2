"""What a plan samples from: the records, the users, or the records that each user may use. All of it is private."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from discreet.core.streams import Indices, Stream
from discreet.stages.plan import Plan
from discreet.stages.unit import SampledUsers
from discreet.training.owners import Owners


@final
@dataclass(frozen=True, eq=False)
class Draw:
    """The records of one logical batch; if users were drawn, how many successive records belong to each.

    Users with few records come first, so that users with equally many are neighbours (engine/factors/groups.py).
    """

    records: Indices
    sizes: tuple[int, ...] | None = None

    def cut(self, most: int) -> Iterator[Draw]:
        """Parts of at most `most` records, at least one part. The records of a user stay together."""
        if self.sizes is None:
            for start in range(0, max(len(self.records), 1), most):
                yield Draw(self.records[start : start + most])
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


def draws(plan: Plan, of: Population, sampling: Stream, testing: Stream, start: int) -> Iterator[Draw]:
    """The batches of all steps from `start`; if updates are tested, each followed by its test's, twice."""
    drawn = map(of.draw, plan.sampling.batches(of.size, plan.horizon, sampling, start))
    if not plan.has_tests:
        yield from drawn
        return
    tested = map(of.draw, plan.sampling.batches(of.size, plan.horizon, testing, start))
    for one, other in zip(drawn, tested, strict=True):
        yield from (one, other, other)
