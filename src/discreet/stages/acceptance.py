"""Whether an update is kept: always, or after a noisy test that is charged like any other query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

from discreet.core import check
from discreet.stages.bounding import Query


class Acceptance(Protocol):
    """Decides about an update from what was released about it."""

    def queries(self) -> tuple[Query, ...]:
        """The sums over a fresh sample that the decision needs; none: every update is kept."""

    def accepts(self, noisy_mean: float) -> bool:
        """Whether the update is kept, from the noisy sum over the public batch size."""


@final
@dataclass(frozen=True)
class AcceptAll:
    """Every update is kept: no test, no charge."""

    def queries(self) -> tuple[Query, ...]:
        return ()

    def accepts(self, noisy_mean: float) -> bool:
        return True


@final
@dataclass(frozen=True, kw_only=True)
class LossTest:
    """Keep an update if the loss of a fresh sample falls: mean of clamp(new - old loss, -c, c) + noise < threshold.

    Guarantee: a record moves the sum by at most `loss_clip`, whatever its losses (what is no number counts as
    +c); every test is charged on its own sample, whether the update is kept or not. What is kept, and when, is
    then post-processing. The loss must be the same function of a record in all three passes of a step: the engine
    proves in the first that no record's loss depends on another's.

    share  the test's noise multiplier is share * noise of the mechanism: a test needs little precision
    """

    loss_clip: float = 0.01
    share: float = 4.0
    threshold: float = 0.0

    def __post_init__(self) -> None:
        check.positive(
            "loss_clip bounds each record's change of loss, share its noise over the gradient's",
            loss_clip=self.loss_clip,
            share=self.share,
        )
        check.require(
            abs(self.threshold) < self.loss_clip,
            f"|threshold| < loss_clip={self.loss_clip}",
            f"threshold={self.threshold!r}",
            "the tested mean lies within the bound: 0 keeps what lowers the loss",
        )

    def queries(self) -> tuple[Query, ...]:
        return (Query(self.loss_clip, self.share),)

    def accepts(self, noisy_mean: float) -> bool:
        return noisy_mean < self.threshold
