"""Two-level clipping: a moving average of the released residual, added to the released gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.dicesgd.bounding import TwoLevel
from discreet.stages.bounding import Bounder
from discreet.stages.combination import whole_gradient
from discreet.stages.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext

HELD = "two-level.held"


@final
@dataclass(frozen=True)
class SmoothedResidual:
    """first + kappa * held, where `held` collects the second noisy sum and gives away what is used of it.

        held <- held + second;   used = kappa * held, at most batch * limit long;   held <- held - used

    Without a limit `used` is the moving average (1 - kappa) used + kappa second; with one it is error feedback:
    what is too long now is used later. Nothing is lost: all of `used` and `held` add up to all that was released.

    kappa  weight of the newest value; 1: no averaging
    limit  bound on what is used, on the mean; None: none
    """

    kappa: float
    limit: float | None = None

    def __post_init__(self) -> None:
        check.fraction("kappa is the weight of the newest value; 1 is no averaging", kappa=self.kappa)
        if self.limit is not None:
            check.positive("the longest residual to use in one step", limit=self.limit)

    def check(self, bounder: Bounder, selection: Selection) -> None:
        check.require(
            isinstance(bounder, TwoLevel),
            "the bounder TwoLevel, whose second sum is the residual",
            repr(bounder),
            "take both from methods.two_level(...)",
        )
        whole_gradient(selection, "what is held of a residual belongs to coordinates that a mask may drop")

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        first, second = vectors
        before = context.memory.get(HELD)
        held = second if before is None else second + before.to(second)
        used = self.kappa * held
        if self.limit is not None:
            used *= min(1.0, context.batch * self.limit / max(float(used.norm()), 1e-300))
        context.memory[HELD] = held - used
        return first + used
