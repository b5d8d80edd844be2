"""The unit of privacy: whom the certificate protects. A record, or a user with all records that the user gave.

EachRecord     neighbours differ in one record
SampledUsers   neighbours differ in one user; users are sampled, and the mean gradient of a user is clipped once
CappedRecords  neighbours differ in one user; records are sampled and clipped one by one, at most `per_user` of a user

Settings are public. Who owns which record is private, so it is an argument of `Private` (`unit=`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final

from discreet.accounting import events
from discreet.core import check
from discreet.stages.analysis import Composition, Unproven
from discreet.stages.sampling import Horizon, Poisson, Sampling

if TYPE_CHECKING:
    from discreet.stages.pipeline import Pipeline

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9 _-]{0,39}")
_ONE_OWNER = (
    "every record has one owner, who stays the same for the whole run and does not depend on other records",
    "records of one {name} have one and the same owner name",
)


class Unit(Protocol):
    """Whom a plan protects, and what that costs. By default the sampler's own price holds.

    per_user  the largest number of records of a user that are used; None if the unit is a record
    """

    per_user: int | None

    @property
    def name(self) -> str:
        """The unit in one word, as the privacy statement says it: "record", "patient"."""

    @property
    def sampled(self) -> str:
        """What the plan's `records` and `batch` count, as a plural."""

    @property
    def keeps_claims(self) -> bool:
        """Whether the claim of a method's paper, which is about records, can be read for this unit."""
        return True

    @property
    def is_record(self) -> bool:
        return self.per_user is None

    @property
    def counted(self) -> int:
        """With how many records a user counts at most, where right predictions are counted."""
        return 1

    def bill(self, sampling: Sampling, release: Any, horizon: Horizon) -> events.Event:
        """The privacy event of a release on a batch of this sampler."""
        return sampling.bill(release, horizon)

    def check(self, stages: Pipeline) -> None:
        """Refuse stages that are not proven for this unit."""
        return

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the certificate assumes about owners."""
        return ()


@final
@dataclass(frozen=True)
class EachRecord(Unit):
    """Neighbours differ in one record. A person who gave several records is protected less."""

    name: ClassVar[str] = "record"
    per_user: None = field(default=None, init=False)
    sampled: ClassVar[str] = "records"


@final
@dataclass(frozen=True, kw_only=True)
class SampledUsers(Unit):
    """Users are sampled. The gradients of at most `per_user` of a user's records are averaged, and clipped once.

    Guarantee: the certificate of the same plan for records, with users in their place: adding or removing a user with
    all records moves a step as much as one record would. `records` and `batch` of the plan count users. The records of
    a user who has more are drawn again in each step, by a secret stream (docs/proofs/SampledUsers.md).

    per_user  the largest number of records of a user in a step; it bounds memory, and costs no privacy
    name      the user in one word, for the privacy statement
    """

    per_user: int
    name: str = "user"

    def __post_init__(self) -> None:
        _check(self.per_user, self.name)

    @property
    def sampled(self) -> str:
        return f"{self.name}s"

    def check(self, stages: Pipeline) -> None:
        sampler, remedy = type(stages.sampling).__name__, "use discreet.Poisson(), or another sampler of a dataset"
        drawn = not stages.sampling.is_own_loader
        check.require(drawn, "a sampler that draws users from a dataset", f"sampling={sampler}()", remedy)
        analysis, remedy = type(stages.analysis).__name__, "use a method that charges every step, such as dp-sgd"
        check.require(stages.analysis.covers_users, "an analysis that is proven for users", analysis, remedy)

    @property
    def assumptions(self) -> tuple[str, ...]:
        read = f"assumptions about sampling hold for one {self.name}, with all records, in the place of a record"
        return (read, *(text.format(name=self.name) for text in _ONE_OWNER))


@final
@dataclass(frozen=True, kw_only=True)
class CappedRecords(Unit):
    """Records are sampled and clipped one by one. Of every user at most `per_user` records are used in the whole run.

    Guarantee: adding or removing a user with all records. A step takes Bin(per_user, rate) of them at most, and the
    certificate is for that mixture (docs/proofs/GroupPoissonSampled.md). The records that are used are drawn once, by a
    secret stream. `records` and `batch` of the plan count records.

    per_user  the largest number of records of a user; every one of them costs privacy
    name      the user in one word, for the privacy statement
    """

    per_user: int
    name: str = "user"
    sampled: ClassVar[str] = "records"
    keeps_claims: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self.per_user, self.name)

    @property
    def counted(self) -> int:
        return self.per_user

    def bill(self, sampling: Sampling, release: Any, horizon: Horizon) -> events.Event:
        return events.GroupPoissonSampled(horizon.rate, self.per_user, release)

    def check(self, stages: Pipeline) -> None:
        for stage, kinds, use in (
            (stages.sampling, (Poisson,), "sampling=discreet.Poisson()"),
            (stages.analysis, (Composition, Unproven), "a method that charges every step, such as dp-sgd"),
        ):
            expected = f"{kinds[0].__name__} for capped records of users"
            remedy = f"use {use}, or unit=discreet.SampledUsers(per_user=...)"
            check.require(isinstance(stage, kinds), expected, type(stage).__name__, remedy)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(text.format(name=self.name) for text in _ONE_OWNER)


def _check(per_user: int, name: str) -> None:
    check.count("give the largest number of records of one user, a public number", per_user=per_user)
    fits = isinstance(name, str) and _NAME.fullmatch(name) is not None
    check.require(fits, "a name for the unit, such as 'patient'", repr(name), "use letters, at most 40 of them")
    # Ledgers and budget files tell units apart by their names, and a user's epsilon says nothing about one record less.
    remedy = "name who owns the records, such as 'patient': name=, or the column of --unit"
    is_apart = name.strip().lower() not in ("record", "records")
    check.require(is_apart, "a unit that is not called a record", repr(name), remedy)
