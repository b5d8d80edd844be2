"""The cost of a run: events with their counts, and the claim of its paper."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from discreet.accounting.claims import Claim
from discreet.accounting.events import Event, Free
from discreet.core import check
from discreet.core.randomness import SEEDED

Counted = tuple[tuple[Event, int], ...]


def canonical(certified: Iterable[tuple[Event, int]]) -> Counted:
    """Merge equal events, drop free ones and sort, so that equal costs have one form."""
    totals: Counter[Event] = Counter()
    for event, count in certified:
        remedy = "pair every event with the number of times it happened"
        check.require(isinstance(event, Event), "an event", f"{event!r}", remedy)
        check.count(remedy, least=0, count=count)
        if count > 0 and not isinstance(event, Free):
            totals[event] += int(count)
    return tuple(sorted(totals.items(), key=lambda item: json.dumps(item[0].to_json(), sort_keys=True)))


@final
@dataclass(frozen=True)
class Charge:
    """Events that are proven to describe a run, and separately the claim of its paper.

    `+` composes two runs on the same data and `*` repeats one. A sum keeps all assumptions and the mark of a seed.

    >>> from discreet.accounting.events import Gaussian
    >>> step = Charge.of(Gaussian(noise=1.0))
    >>> (step * 2 + step).certified
    ((Gaussian(noise=1.0), 3),)
    """

    certified: Counted = ()
    claimed: Claim | None = None
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "certified", canonical(self.certified))
        object.__setattr__(self, "assumptions", tuple(sorted(set(self.assumptions))))

    @property
    def seeded(self) -> bool:
        """Whether any part of it was seeded. It is then not private, whatever its epsilon."""
        return SEEDED in self.assumptions

    @classmethod
    def of(cls, event: Event, count: int = 1, *, claimed: Claim | None = None) -> Charge:
        return cls(((event, count),), claimed)

    def __add__(self, other: Charge) -> Charge:
        claimed = _joined(self, other)
        return Charge(self.certified + other.certified, claimed, self.assumptions + other.assumptions)

    def __mul__(self, times: int) -> Charge:
        check.count("a charge repeats a whole number of times", least=0, times=times)
        repeated = tuple((event, count * times) for event, count in self.certified)
        claimed = self.claimed.repeated(times) if self.claimed is not None and times > 0 else None
        return Charge(repeated, claimed, self.assumptions)

    __rmul__ = __mul__


def _joined(one: Charge, other: Charge) -> Claim | None:
    """The claim for both runs. A run without cost changes nothing; otherwise both claims must compose."""
    if not one.certified and one.claimed is None:
        return other.claimed
    if not other.certified and other.claimed is None:
        return one.claimed
    if one.claimed is None or other.claimed is None:
        return None
    return one.claimed.joined(other.claimed)
