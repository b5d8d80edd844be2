"""The combination of two-level clipping: adds a moving average of released residuals to the released gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.dicesgd.clipping import TwoLevel
from discreet.stages.clipping import Bounder
from discreet.stages.combination import whole_gradient
from discreet.stages.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.context import StepContext

HELD = "two-level.held"


@final
@dataclass(frozen=True)
class SmoothedResidual:
    """Adds `used`, a part of the accumulated residuals `held`, to the first noisy sum.

        held <- held + second;   used = clip(kappa * held, batch * limit);   held <- held - used

    Without a limit, `used` is the moving average (1 - kappa) used + kappa second. With a limit it is error feedback:
    the clipped-off part is used in later steps. Nothing is lost: the sum of all `used`, plus `held`, equals the sum of
    all released residuals.

    kappa  weight of the newest residual; 1 means no averaging
    limit  bound on `used` on the scale of the mean gradient; None: no bound
    """

    kappa: float
    limit: float | None = None

    def __post_init__(self) -> None:
        check.fraction("choose the weight of the newest value, e.g. 0.1; 1 means no averaging", kappa=self.kappa)
        if self.limit is not None:
            check.positive("choose the largest norm of the residual in one step, e.g. 1.0", limit=self.limit)

    def check(self, bounder: Bounder, selection: Selection) -> None:
        expected = "the bounder TwoLevel"
        check.require(isinstance(bounder, TwoLevel), expected, repr(bounder), "use the recipe methods.two_level(...)")
        whole_gradient(selection, "accumulated residuals may belong to frozen coordinates")

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        first, second = vectors
        before = context.memory.get(HELD)
        held = second if before is None else second + before.to(second)
        used = self.kappa * held
        if self.limit is not None:
            used *= min(1.0, context.batch * self.limit / max(float(used.norm()), 1e-300))
        context.memory[HELD] = held - used
        return first + used
