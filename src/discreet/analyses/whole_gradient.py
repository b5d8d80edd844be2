"""Composition, for plans whose vectors are not gradients: their angles mean nothing on a part of the coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.accounting.events import Event
from discreet.core import check
from discreet.stages.geometric_bounding import AngleWindow
from discreet.stages.polar import FromAngles
from discreet.stages.selection import Everything

if TYPE_CHECKING:
    from discreet.plan import Plan


@final
@dataclass(frozen=True)
class WholeGradient:
    """Every release is charged, and every coordinate is active.

    Guarantee: the epsilon of all releases together. A mask would not break it, but would leave angles without meaning.
    """

    @property
    def visible(self) -> bool:
        return True

    @property
    def composes(self) -> bool:
        return True

    def check(self, plan: Plan) -> None:
        """Refuse masks, and windows whose sums another combination would read."""
        check.require(
            isinstance(plan.selection, Everything),
            "all coordinates active: selection=Everything()",
            type(plan.selection).__name__,
            "an angle depends on all coordinates after it; use polar, which masks fit",
        )
        fits = isinstance(plan.combination, FromAngles) and plan.combination.window == plan.bounder
        check.require(
            isinstance(plan.bounder, AngleWindow) and fits,
            "AngleWindow, and FromAngles of the same window",
            f"{plan.bounder!r} and {plan.combination!r}",
            "take both from methods.geodp_sound(...)",
        )

    def whole_run(self, plan: Plan) -> Event | None:
        return None

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return ()
