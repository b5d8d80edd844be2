"""The ball to which DPSGD-DC projects the parameters after each update."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor

# Projected points are moved inside by this factor, because rounding may move them outwards.
_INSIDE = 1 - 2**-20


class Centre(enum.StrEnum):
    """The centre of the ball."""

    ORIGIN = "origin"
    INITIAL = "initial"  # the initial parameters, which are public


@final
@dataclass(frozen=True, kw_only=True)
class Ball:
    """The ball ||x - centre|| <= radius, over all parameters together.

    The diameter is twice the radius. Theorems on bounded domains use the diameter.
    """

    radius: float
    centre: Centre = Centre.ORIGIN

    def __post_init__(self) -> None:
        check.positive("choose half of the diameter, or use Unbounded()", radius=self.radius)
        object.__setattr__(self, "centre", Centre(self.centre))

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    @property
    def needs_initial(self) -> bool:
        return self.centre is Centre.INITIAL

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """x <- centre + (x - centre) * min(1, radius / distance); non-finite parameters move to the centre."""
        centres: Sequence[Tensor | float] = initial if self.needs_initial else [0.0] * len(parameters)
        shapes = [parameter.shape for parameter in parameters]
        expected, got = "one initial parameter for each parameter of the model", f"{len(initial)} initial parameters"
        remedy = "pass copies of the model's parameters from before the first step"
        check.require(not self.needs_initial or [start.shape for start in initial] == shapes, expected, got, remedy)
        moved = [(p - c).double() for p, c in zip(parameters, centres, strict=True)]
        distance = math.sqrt(sum(float(part.square().sum()) for part in moved))
        limit = self.radius * _INSIDE  # the same for all points, so that this is a projection
        if distance <= limit:
            return
        factor = limit / distance if math.isfinite(distance) else 0.0
        for parameter, part, centre in zip(parameters, moved, centres, strict=True):
            near = part.nan_to_num(0.0, 0.0, 0.0) * factor + centre
            parameter.copy_(near.to(parameter.dtype))
