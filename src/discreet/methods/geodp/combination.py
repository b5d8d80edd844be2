"""From noisy directions and magnitudes back to one gradient: post-processing, free of charge."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.geodp.bounding import ANGLES, AngleWindow, Polar
from discreet.methods.geodp.spherical import canonical_, from_spherical, middle
from discreet.stages.bounding import Bounder
from discreet.stages.combination import whole_gradient
from discreet.stages.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext


def mean_share(number: float, batch: float) -> float:
    """A noisy sum of magnitudes, each in [0, 1], over the public batch: their mean, held to [0, 1].

    >>> mean_share(30.0, 40.0), mean_share(-1.0, 40.0)
    (0.75, 0.0)
    """
    return min(max(number / batch, 0.0), 1.0)


@final
@dataclass(frozen=True)
class FromPolar:
    """(mean magnitude) * (sum of directions), for the bounder `Polar`.

    It is the sum of gradients if magnitudes and directions are independent.
    """

    def check(self, bounder: Bounder, selection: Selection) -> None:
        check.require(
            isinstance(bounder, Polar),
            "the bounder Polar, whose sums are directions and magnitudes",
            repr(bounder),
            "take both from methods.polar(...)",
        )

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        return vectors[0].mul_(mean_share(numbers[0], context.batch))


class Tails(enum.StrEnum):
    """How long the rest of the vector is taken to be where a mean angle is turned into a coordinate."""

    EVEN = "even"
    """sqrt((d - k + 1) / d): that of a direction that favours no coordinate."""
    PRODUCT = "product"
    """The product of the sines before it (the paper's Equation 27), as if the mean angles were one record's."""


@final
@dataclass(frozen=True)
class FromAngles:
    """Mean angles and mean magnitude to a gradient, for the bounder `window`; remembers the angles as its reference."""

    window: AngleWindow
    tails: Tails = Tails.EVEN

    def check(self, bounder: Bounder, selection: Selection) -> None:
        check.require(
            bounder == self.window,
            f"the bounder {self.window!r}, whose angles are read here",
            repr(bounder),
            "take both from methods.geodp_sound(...)",
        )
        whole_gradient(selection, "an angle depends on all coordinates after it; polar takes masks")

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        noisy, size = vectors[0], context.layout.size
        known = context.memory.get(ANGLES)
        angles = middle(size, noisy) if known is None else known.clone()
        angles += noisy[:-1].double() * (self.window.radius(size) / (self.window.clip * context.batch))
        context.memory[ANGLES] = canonical_(angles)
        length = self.window.clip * mean_share(numbers[0], context.batch) * context.batch
        return noisy.copy_(self.direction(angles).mul_(length))

    def direction(self, angles: Tensor) -> Tensor:
        """The mean direction, [d]; with even tails it is shorter than 1 where records disagree."""
        if self.tails is Tails.PRODUCT:
            return from_spherical(angles.new_ones(()), angles)
        size = len(angles) + 1
        direction = angles.new_ones(size).flip(0).cumsum(0).flip(0).div_(size).sqrt_()
        direction[:-1] *= angles.cos()
        direction[-1] = math.sqrt(2 / size) * angles[-1].sin()
        return direction
