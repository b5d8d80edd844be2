"""Acceptance of updates: keep all of them, or only those that pass a noisy test, which is charged."""

from dataclasses import dataclass
from typing import Protocol, final

from discreet.core import check
from discreet.stages.clipping import Query


class Acceptance(Protocol):
    """Decides from released values whether an update is kept. By default every update is."""

    def queries(self) -> tuple[Query, ...]:
        """The queries on a fresh batch that the decision needs; empty if every update is kept."""
        return ()

    def accepts(self, noisy_mean: float) -> bool:
        """Whether to keep the update, given the noisy sum divided by the public batch size."""
        return True


@final
@dataclass(frozen=True)
class AcceptAll(Acceptance):
    """Keep every update, without a test and without a charge."""


@final
@dataclass(frozen=True, kw_only=True)
class LossTest(Acceptance):
    """Keep an update if it lowers the loss on a fresh batch: mean of clamp(new - old loss, -c, c) + noise < threshold.

    Guarantee: one record moves the sum by at most c = `loss_clip`, whatever its losses are (NaN counts as +c). Every
    test is charged for its own batch, whether the update is kept or not, so the decision is post-processing. The loss
    must be the same function of a record in all three passes of a step. The engine checks in the first pass that no
    record's loss depends on another record.

    loss_clip  the bound c on each record's change of loss
    share      the noise multiplier of the test is share * noise
    threshold  the noisy mean change below which an update is kept
    """

    loss_clip: float = 0.01
    share: float = 4.0
    threshold: float = 0.0

    def __post_init__(self) -> None:
        remedy = "choose positive values, e.g. loss_clip=0.01 and share=4.0"
        check.positive(remedy, loss_clip=self.loss_clip, share=self.share)
        expected = f"|threshold| < loss_clip={self.loss_clip}"
        remedy = "use threshold=0 to keep every update that lowers the loss"
        check.require(abs(self.threshold) < self.loss_clip, expected, f"threshold={self.threshold!r}", remedy)

    def queries(self) -> tuple[Query, ...]:
        return (Query(self.loss_clip, self.share),)

    def accepts(self, noisy_mean: float) -> bool:
        return noisy_mean < self.threshold
