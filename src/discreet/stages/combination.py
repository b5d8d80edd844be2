"""Combine the noisy sums of a step into one gradient. This is post-processing and costs no privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from discreet.core import check
from discreet.stages.clipping import Bounder
from discreet.stages.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext


class Combination(Protocol):
    """Turns released sums into a gradient. It sees released values only, so `context.memory` stays public."""

    def check(self, bounder: Bounder, selection: Selection) -> None:
        """Refuse a bounder or selection that it does not support. Called when the plan is built."""
        return

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        """Return one vector on the scale of a sum; `vectors` and `numbers` follow the order of the queries."""


@final
@dataclass(frozen=True)
class TakeFirst(Combination):
    """Use the first noisy sum as the gradient. Any other query serves the bounder."""

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        return vectors[0]


def whole_gradient(selection: Selection, why: str) -> None:
    """Refuse masks. They would not break the guarantee, but the combined gradient would be meaningless."""
    expected = "all coordinates active: selection=Everything()"
    remedy = f"remove the selection: {why}"
    check.require(selection.takes_all, expected, type(selection).__name__, remedy)
