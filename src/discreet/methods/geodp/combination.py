"""Combine noisy directions and magnitudes into one gradient. This is post-processing and costs no privacy."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.geodp.clipping import ANGLES, AngleWindow, Polar
from discreet.methods.geodp.spherical import canonical_, from_spherical, middle
from discreet.stages.clipping import Bounder
from discreet.stages.combination import Combination, whole_gradient
from discreet.stages.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext


def mean_share(number: float, batch: float) -> float:
    """The mean magnitude: a noisy sum divided by the public batch size, clamped to [0, 1]."""
    return min(max(number / batch, 0.0), 1.0)


@final
@dataclass(frozen=True)
class FromPolar(Combination):
    """Mean magnitude times sum of directions, for the bounder `Polar`.

    This equals the sum of clipped gradients if magnitudes and directions are uncorrelated.
    """

    def check(self, bounder: Bounder, selection: Selection) -> None:
        check.require(
            isinstance(bounder, Polar), "the bounder Polar", repr(bounder), "use the recipe methods.polar(...)"
        )

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        return vectors[0].mul_(mean_share(numbers[0], context.batch))


class Tails(enum.StrEnum):
    """The assumed norm of coordinates k..d of a direction, used to turn mean angle k into coordinate k."""

    EVEN = "even"  # sqrt((d - k + 1) / d): the norm for a direction with equal weight on all coordinates
    PRODUCT = "product"  # the product of the preceding sines (Equation 27 of the paper), exact for a single record


@final
@dataclass(frozen=True)
class FromAngles(Combination):
    """Turns mean angles and mean magnitude into a gradient, for the bounder `window`.

    It stores the released angles as the reference of the next step.
    """

    window: AngleWindow
    tails: Tails = Tails.EVEN

    def check(self, bounder: Bounder, selection: Selection) -> None:
        expected = f"the bounder {self.window!r}"
        check.require(bounder == self.window, expected, repr(bounder), "use the recipe methods.geodp_sound(...)")
        whole_gradient(selection, "angles need all coordinates; methods.polar(...) supports masks")

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        noisy, size = vectors[0], context.layout.size
        reference = context.memory.get(ANGLES)
        angles = middle(size, noisy) if reference is None else reference.clone()
        angles += noisy[:-1].double() * (self.window.radius(size) / (self.window.clip * context.batch))
        context.memory[ANGLES] = canonical_(angles)
        length = self.window.clip * mean_share(numbers[0], context.batch) * context.batch
        return noisy.copy_(self.direction(angles).mul_(length))

    def direction(self, angles: Tensor) -> Tensor:
        """The mean direction, [d]. With even tails its norm is below 1 if the records disagree."""
        if self.tails is Tails.PRODUCT:
            return from_spherical(angles.new_ones(()), angles)
        size = len(angles) + 1
        direction = angles.new_ones(size).flip(0).cumsum(0).flip(0).div_(size).sqrt_()
        direction[:-1] *= angles.cos()
        direction[-1] = math.sqrt(2 / size) * angles[-1].sin()
        return direction
