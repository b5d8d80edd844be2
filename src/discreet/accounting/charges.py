"""The cost of a run: events with their counts, and separately what its paper's theorem states.

A claim is shown next to the certificate and never used for it.
"""

import abc
import enum
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, final

from discreet.accounting.events import Event, Free
from discreet.core import check
from discreet.core.randomness import SEEDED
from discreet.core.relation import Neighbouring

ABOUT_DELTA = "delta is the probability that the claim fails"

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


class Claim(abc.ABC):
    """The epsilon that a paper states for a run, its theorem, and the assumption that the theorem makes."""

    theorem: str
    assumes: str

    @abc.abstractmethod
    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon at this delta; None if the claim does not cover the run."""

    def delta(self, delta: float) -> float:
        """The delta at which `epsilon(delta)` is claimed; some theorems add to it."""
        return delta

    def repeated(self, times: int) -> Self | None:
        """The claim for `times` such runs on the same data; None if the paper gives no rule."""
        return self if times == 1 else None

    def joined(self, other: "Claim") -> Self | None:
        """The claim for this run and another one on the same data; None if the paper gives no rule."""
        return None

    def to_json(self, delta: float) -> dict[str, Any] | None:
        """{"epsilon", "delta", "theorem"}, or None if nothing is claimed; an infinite epsilon is "inf"."""
        epsilon = self.epsilon(delta)
        if epsilon is None:
            return None
        value = epsilon if math.isfinite(epsilon) else "inf"
        return {"epsilon": value, "delta": self.delta(delta), "theorem": self.theorem}


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
    def of(cls, event: Event, count: int = 1, *, claimed: Claim | None = None) -> Self:
        return cls(((event, count),), claimed)

    def __add__(self, other: Self) -> Self:
        claimed = _joined(self, other)
        return Charge(self.certified + other.certified, claimed, self.assumptions + other.assumptions)

    def __mul__(self, times: int) -> Self:
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


class Accounting(enum.Enum):
    """The accountant that a paper used."""

    PLD = "PLD"
    RDP = "RDP"


@final
@dataclass(frozen=True, kw_only=True)
class AccountedClaim(Claim):
    """The cost of DP-SGD with the same noise, whatever else the method does."""

    events: Counted
    by: Accounting
    theorem: str
    assumes: str

    def epsilon(self, delta: float) -> float | None:
        """Composition of the claimed events under add/remove."""
        from discreet.accounting.accountants import pld_epsilon, rdp_epsilon

        account = {Accounting.PLD: pld_epsilon, Accounting.RDP: rdp_epsilon}[self.by]
        return account(self._charge(), delta=delta, relation=Neighbouring.ADD_REMOVE)

    def repeated(self, times: int) -> Self:
        return replace(self, events=(self._charge() * times).certified)

    def joined(self, other: Claim) -> Self | None:
        """Two claims compose if they use the same accountant and theorem."""
        if not isinstance(other, AccountedClaim) or (other.by, other.theorem) != (self.by, self.theorem):
            return None
        return replace(self, events=(self._charge() + other._charge()).certified)

    def _charge(self) -> Charge:
        return Charge(self.events)
