"""Which coordinates of the gradient take part in a step.

Guarantee, for every selection: the mask depends on public streams and on what was released before, never on the
records of this step, and one mask serves a whole logical batch (docs/proofs/RandomFreeze.md).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from discreet.core import check

if TYPE_CHECKING:
    from discreet.engine.layout import Mask
    from discreet.stages.context import StepContext
    from discreet.stages.sampling import Horizon
    from discreet.stages.values import Released


class Order(enum.StrEnum):
    """Which gradient is clipped; either is proven."""

    FREEZE_THEN_CLIP = "freeze-then-clip"
    """The active part: freezing leaves more of it below the clip (the paper's)."""
    CLIP_THEN_FREEZE = "clip-then-freeze"
    """The whole: frozen coordinates take their share of the clip and lose it (posterior freeze)."""


class Frozen(enum.StrEnum):
    """What an optimizer may do to frozen coordinates."""

    STILL = "still"
    """Nothing: parameter, momentum and weight decay rest, as if the coordinate were not there."""
    COASTING = "coasting"
    """It sees a gradient of zero: momentum and weight decay go on moving them (the paper's)."""


class Selection(Protocol):
    """A choice of active coordinates for each step."""

    @property
    def order(self) -> Order:
        """Whether norms are taken before or after freezing."""

    @property
    def frozen(self) -> Frozen:
        """What may still move a frozen coordinate."""

    @property
    def takes_all(self) -> bool:
        """Whether every coordinate is active in every step."""

    def mask(self, context: StepContext) -> Mask | None:
        """The mask of this step; None where everything is active."""

    def observe(self, released: Released, std: float, context: StepContext) -> None:
        """See what the step let out; `std` is the noise on each of its coordinates."""

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        """Active coordinates of the run over those of a dense run of `baseline_epochs` (default: as long)."""


@final
@dataclass(frozen=True)
class Everything:
    """All coordinates, always."""

    @property
    def order(self) -> Order:
        return Order.FREEZE_THEN_CLIP

    @property
    def frozen(self) -> Frozen:
        return Frozen.STILL

    @property
    def takes_all(self) -> bool:
        return True

    def mask(self, context: StepContext) -> Mask | None:
        return None

    def observe(self, released: Released, std: float, context: StepContext) -> None:
        """Nothing to learn."""

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        return density_of(horizon, lambda epoch: 0.0, baseline_epochs)


def density_of(horizon: Horizon, rate: Callable[[int], float], baseline_epochs: int | None) -> float:
    per_epoch = horizon.steps_per_epoch
    epochs = range(-(-horizon.steps // per_epoch))
    steps = (min(per_epoch, horizon.steps - epoch * per_epoch) for epoch in epochs)
    active = sum(count * (1 - rate(epoch)) for epoch, count in zip(epochs, steps, strict=True))
    if baseline_epochs is None:
        return active / horizon.steps
    check.count("the epochs of the dense run that this one replaces", baseline_epochs=baseline_epochs)
    return active / (baseline_epochs * per_epoch)
