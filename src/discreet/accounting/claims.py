"""What a paper's theorem states for a run. A claim is shown next to the certificate and never used for it.

`epsilon(delta)` is None where the theorem does not apply to the run.
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
    """The epsilon that a paper states for a run, its theorem, and the assumption that the theorem makes."""

    theorem: str
    assumes: str

    @abc.abstractmethod
    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon at this delta; None if the claim does not cover the run."""

    def delta(self, delta: float) -> float:
        """The delta at which `epsilon(delta)` is claimed; some theorems add to it."""
        return delta

    def repeated(self, times: int) -> Claim | None:
        """The claim for `times` such runs on the same data; None if the paper gives no rule."""
        return self if times == 1 else None

    def joined(self, other: Claim) -> Claim | None:
        """The claim for this run and another one on the same data; None if the paper gives no rule."""
        return None

    def to_json(self, delta: float) -> dict[str, Any] | None:
        """{"epsilon", "delta", "theorem"}, or None if nothing is claimed; an infinite epsilon is "inf"."""
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
    """The cost of DP-SGD with the same noise, whatever else the method does."""

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
        return replace(self, events=(self._charge() * times).certified)

    def joined(self, other: Claim) -> AccountedClaim | None:
        """Two claims compose if they use the same accountant and theorem."""
        if not isinstance(other, AccountedClaim) or (other.by, other.theorem) != (self.by, self.theorem):
            return None
        return replace(self, events=(self._charge() + other._charge()).certified)

    def _charge(self) -> Charge:
        from discreet.accounting.charges import Charge

        return Charge(self.events)
