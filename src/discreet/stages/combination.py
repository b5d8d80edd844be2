"""From the noisy sums of a step to one gradient: post-processing, free of charge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from discreet.core import check
from discreet.stages.bounding import Bounder
from discreet.stages.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext


class Combination(Protocol):
    """Sees releases alone: what it keeps in `context.memory` is public, like what it gives."""

    def check(self, bounder: Bounder, selection: Selection) -> None:
        """Refuse sums that it cannot read, when the plan is built."""

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        """One vector on the scale of a sum, from the noisy vector and scalar sums in the order of the queries."""


@final
@dataclass(frozen=True)
class TakeFirst:
    """The first noisy sum is the gradient; other queries serve the bounder."""

    def check(self, bounder: Bounder, selection: Selection) -> None:
        """Every bounder has a first sum, and any coordinates may be active."""

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        return vectors[0]


def whole_gradient(selection: Selection, why: str) -> None:
    """Refuse masks. They would not break the guarantee, but leave a gradient without meaning."""
    check.require(
        selection.takes_all,
        "all coordinates active: selection=Everything()",
        type(selection).__name__,
        f"leave the mask out: {why}",
    )
