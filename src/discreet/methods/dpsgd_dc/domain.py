"""Bounded convex domains, to which DPSGD-DC projects the parameters after each update."""

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
    """The centre of a domain."""

    ORIGIN = "origin"
    INITIAL = "initial"
    """The initial parameters, which are public."""


class _Centred:
    """Base of domains around a public point."""

    centre: Centre

    @property
    def needs_initial(self) -> bool:
        return self.centre is Centre.INITIAL

    def _centres(self, initial: Sequence[Tensor], parameters: Sequence[Tensor]) -> Sequence[Tensor | float]:
        """The centre, one entry per parameter."""
        if not self.needs_initial:
            return [0.0] * len(parameters)
        check.require(
            [p.shape for p in initial] == [p.shape for p in parameters],
            "one initial parameter for each parameter of the model",
            f"{len(initial)} initial parameters",
            "pass copies of the model's parameters from before the first step",
        )
        return initial


@final
@dataclass(frozen=True, kw_only=True)
class Ball(_Centred):
    """The ball ||x - centre|| <= radius, over all parameters together.

    The diameter is twice the radius. Theorems on bounded domains use the diameter.

    >>> Ball(radius=1.5).diameter
    3.0
    """

    radius: float
    centre: Centre = Centre.ORIGIN

    def __post_init__(self) -> None:
        check.positive("choose half of the diameter, or use Unbounded()", radius=self.radius)
        object.__setattr__(self, "centre", Centre(self.centre))

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """x <- centre + (x - centre) * min(1, radius / distance); non-finite parameters move to the centre."""
        centres = self._centres(initial, parameters)
        moved = [(p - c).double() for p, c in zip(parameters, centres, strict=True)]
        distance = math.sqrt(sum(float(part.square().sum()) for part in moved))
        limit = self.radius * _INSIDE  # the same for all points, so that this is a projection
        if distance <= limit:
            return
        factor = limit / distance if math.isfinite(distance) else 0.0
        for parameter, part, centre in zip(parameters, moved, centres, strict=True):
            near = part.nan_to_num(0.0, 0.0, 0.0) * factor + centre
            parameter.copy_(near.to(parameter.dtype))


@final
@dataclass(frozen=True, kw_only=True)
class Box(_Centred):
    """The box in which every coordinate differs from the centre by at most `half_width`.

    The diameter is the diagonal, 2 half_width sqrt(dimensions). `dimensions` is the number of trainable parameters; a
    model with more parameters is refused.

    >>> Box(half_width=0.5, dimensions=4).diameter
    2.0
    """

    half_width: float
    dimensions: int
    centre: Centre = Centre.ORIGIN

    def __post_init__(self) -> None:
        check.positive("choose the largest distance of a coordinate from the centre", half_width=self.half_width)
        check.count("give the number of trainable parameters", dimensions=self.dimensions)
        object.__setattr__(self, "centre", Centre(self.centre))

    @property
    def diameter(self) -> float:
        return 2 * self.half_width * math.sqrt(self.dimensions)

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """Clamp each coordinate to its interval; NaN moves to the centre."""
        count = sum(parameter.numel() for parameter in parameters)
        check.require(
            count <= self.dimensions,
            f"at most dimensions={self.dimensions} trainable parameters",
            f"{count}",
            f"use Box(dimensions={count}): the diameter grows with the number of parameters",
        )
        width = self.half_width * _INSIDE
        for parameter, centre in zip(parameters, self._centres(initial, parameters), strict=True):
            near = (parameter - centre).double().nan_to_num(0.0, width, -width).clamp(-width, width)
            parameter.copy_((near + centre).to(parameter.dtype))
