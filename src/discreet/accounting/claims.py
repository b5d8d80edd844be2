"""What a paper's theorem states for a run. A claim is shown beside the certificate and never used for it.

`epsilon(delta)` is None where the theorem's hypotheses fail for the run, or where it says nothing about it.
"""

from __future__ import annotations

import abc
import enum
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from discreet.accounting.events import Event
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    from discreet.accounting.charges import Charge

ABOUT_DELTA = "delta is the probability that the claim fails"


class Claim(abc.ABC):
    """The epsilon that a paper states for a run, its theorem, and what that theorem takes for granted."""

    theorem: str
    assumes: str

    @abc.abstractmethod
    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon at this delta; None where the claim does not reach."""

    def delta(self, delta: float) -> float:
        """The delta at which `epsilon(delta)` is claimed, where the theorem adds something to it."""
        return delta

    def repeated(self, times: int) -> Claim | None:
        """The claim for `times` such runs on the same data; None if the paper gives no rule."""
        return self if times == 1 else None

    def joined(self, other: Claim) -> Claim | None:
        """The claim for this run and another one on the same data; None if the paper gives no rule."""
        return None

    def to_json(self, delta: float) -> dict[str, Any] | None:
        """{"epsilon", "delta", "theorem"}, or None where nothing is claimed; infinite is the string "inf"."""
        epsilon = self.epsilon(delta)
        if epsilon is None:
            return None
        value = epsilon if math.isfinite(epsilon) else "inf"
        return {"epsilon": value, "delta": self.delta(delta), "theorem": self.theorem}


class Accounting(enum.Enum):
    """The accountant that a paper used."""

    PLD = "PLD"
    RDP = "RDP"


@final
@dataclass(frozen=True, kw_only=True)
class AccountedClaim(Claim):
    """DP-SGD accounting of the noise that was drawn, whatever else the method does."""

    events: tuple[tuple[Event, int], ...]
    by: Accounting
    theorem: str
    assumes: str

    def epsilon(self, delta: float) -> float | None:
        """Composition of the claimed events under add/remove."""
        from discreet.accounting.accountants import pld_epsilon, rdp_epsilon

        account = {Accounting.PLD: pld_epsilon, Accounting.RDP: rdp_epsilon}[self.by]
        return account(self._charge(), delta=delta, relation=Neighbouring.ADD_REMOVE)

    def repeated(self, times: int) -> AccountedClaim:
        """Accountants compose."""
        return replace(self, events=(self._charge() * times).certified)

    def joined(self, other: Claim) -> AccountedClaim | None:
        """Accountants compose, if both runs were accounted alike."""
        alike = isinstance(other, AccountedClaim) and (other.by, other.theorem) == (self.by, self.theorem)
        if not alike or not isinstance(other, AccountedClaim):
            return None
        return replace(self, events=(self._charge() + other._charge()).certified)

    def _charge(self) -> Charge:
        from discreet.accounting.charges import Charge

        return Charge(self.events)
