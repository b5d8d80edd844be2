"""What a rule is: the bounds that are proven for one kind of event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from discreet.accounting.pld import Floats, Pld
from discreet.core.relation import Neighbouring

Orders = tuple[float, ...]
Parts = list[tuple[Pld, int]]


@final
@dataclass(frozen=True)
class Resolution:
    """How finely losses are resolved: the grid, and the logarithm of the mass a step may lose to infinity."""

    grid: float
    log_tail: float = -50.0

    @property
    def gaussian_log_tail(self) -> float:
        """Gaussian tails are cheap: never cut more than e^-50."""
        return max(-700.0, min(-50.0, self.log_tail))


@final
@dataclass(frozen=True, kw_only=True)
class Whole:
    """Bounds for a run that is one event: (epsilon, its name) at a delta, and delta at an epsilon.

    composed  whether composition of its steps is among them: then it is not done again
    """

    epsilon: Callable[[Any, Neighbouring, float], tuple[float, str]]
    delta: Callable[[Any, Neighbouring, float], float]
    composed: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """The proven bounds of one kind of event.

    relations  where the proof holds; anything else is refused
    mu         the event IS a Gaussian release at this distance (None: it is not)
    pld, rdp   dominating loss distributions (with counts) and Rényi divergence of one occurrence
    whole      what is proven for a run that is this event alone
    assumes    what must be true outside of the mathematics, in words
    """

    relations: frozenset[Neighbouring]
    mu: Callable[[Any, Neighbouring], float | None] | None = None
    pld: Callable[[Any, Neighbouring, Resolution], Parts] | None = None
    rdp: Callable[[Any, Neighbouring, Orders], Floats] | None = None
    whole: Whole | None = None
    assumes: tuple[str, ...] = ()
