"""Which coordinates of the gradient take part in a step.

Guarantee, for every selection: the mask depends on public streams and on what was released before, never on the
records of this step, and one mask serves a whole logical batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from discreet.stages.moment import Moment
    from discreet.stages.values import Mask


class Selection(Protocol):
    """A choice of active coordinates for each step."""

    def mask(self, moment: Moment) -> Mask | None:
        """The mask of this step; None where everything is active."""


@final
@dataclass(frozen=True)
class Everything:
    """All coordinates, always."""

    def mask(self, moment: Moment) -> Mask | None:
        return None
