"""From the noisy sums of a step to one gradient: post-processing, free of charge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.moment import Moment


class Combination(Protocol):
    """Sees releases alone: what it keeps in `moment.memory` is public, like what it gives."""

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], moment: Moment) -> Tensor:
        """One vector on the scale of a sum, from the noisy vector and scalar sums in the order of the queries."""


@final
@dataclass(frozen=True)
class TakeFirst:
    """The first noisy sum is the gradient; other queries serve the bounder."""

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], moment: Moment) -> Tensor:
        return vectors[0]
