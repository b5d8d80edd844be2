"""Bounded convex domains, which DPSGD-DC projects the parameters to after each update."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor

# A point on the border may be rounded outwards, so it is put inside by this much.
_INSIDE = 1 - 2**-20


class Centre(enum.StrEnum):
    """Where a domain lies."""

    ORIGIN = "origin"
    INITIAL = "initial"
    """The parameters before the first step, which are public."""


class _Centred:
    """A domain around a public point."""

    centre: Centre

    @property
    def needs_initial(self) -> bool:
        return self.centre is Centre.INITIAL

    def _from(self, initial: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[Tensor | float]:
        """The centre, part by part."""
        if not self.needs_initial:
            return [0.0] * len(parameters)
        check.require(
            [p.shape for p in initial] == [p.shape for p in parameters],
            "the initial parameters, one for each of the model's",
            f"{len(initial)} of them",
            "keep those of the model before its first step",
        )
        return initial


@final
@dataclass(frozen=True, kw_only=True)
class Ball(_Centred):
    """All points within `radius` of the centre: ||x - centre|| <= radius, over all parameters together.

    The diameter is twice the radius. Theorems on bounded domains are about the diameter.

    >>> Ball(radius=1.5).diameter
    3.0
    """

    radius: float
    centre: Centre = Centre.ORIGIN

    def __post_init__(self) -> None:
        check.positive("the radius is half of the diameter; Unbounded() has none", radius=self.radius)
        object.__setattr__(self, "centre", Centre(self.centre))

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """x <- centre + (x - centre) * min(1, radius / distance); what is not finite goes to the centre."""
        centres = self._from(initial, parameters)
        moved = [(p - c).double() for p, c in zip(parameters, centres, strict=True)]
        distance = math.sqrt(sum(float(part.square().sum()) for part in moved))
        limit = self.radius * _INSIDE  # one radius for all points: two would tear neighbours apart
        if distance <= limit:
            return
        factor = limit / distance if math.isfinite(distance) else 0.0
        for parameter, part, centre in zip(parameters, moved, centres, strict=True):
            near = part.nan_to_num(0.0, 0.0, 0.0) * factor + centre
            parameter.copy_(near.to(parameter.dtype))


@final
@dataclass(frozen=True, kw_only=True)
class Box(_Centred):
    """Every coordinate within `half_width` of the centre's.

    The diameter is the diagonal, 2 half_width sqrt(dimensions): `dimensions` counts the trainable parameters, and
    a model with more of them is refused.

    >>> Box(half_width=0.5, dimensions=4).diameter
    2.0
    """

    half_width: float
    dimensions: int
    centre: Centre = Centre.ORIGIN

    def __post_init__(self) -> None:
        check.positive("how far a coordinate may go", half_width=self.half_width)
        check.count("the number of trainable parameters", dimensions=self.dimensions)
        object.__setattr__(self, "centre", Centre(self.centre))

    @property
    def diameter(self) -> float:
        return 2 * self.half_width * math.sqrt(self.dimensions)

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """Each coordinate to the nearest in its interval; what is not a number goes to the centre."""
        count = sum(parameter.numel() for parameter in parameters)
        check.require(
            count <= self.dimensions,
            f"at most dimensions={self.dimensions} trainable parameters",
            f"{count}",
            "the diameter of a box grows with them: give Box their number",
        )
        width = self.half_width * _INSIDE
        for parameter, centre in zip(parameters, self._from(initial, parameters), strict=True):
            near = (parameter - centre).double().nan_to_num(0.0, width, -width).clamp(-width, width)
            parameter.copy_((near + centre).to(parameter.dtype))
