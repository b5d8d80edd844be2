"""The context of a step: what stages may read besides the sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from discreet.core.streams import Streams
    from discreet.engine.layout import Layout, Mask
    from discreet.stages.values import PrivateState


PUBLIC = "public."
"""Keys of `memory` that begin so hold what was computed from public records. It is not saved in checkpoints: a resumed
run computes it again."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StepContext:
    """Public facts about one step, and the random streams.

    memory   public tensors that stages keep between steps; it may hold only released values and what public
             records give
    mask     the active coordinates of this step; None if all are active
    raw      the bounder's hidden sums of this step; only the mechanism may read them
    secrets  hidden state that a mechanism keeps between steps; it is never saved and is empty after a resume
    """

    step: int
    steps_per_epoch: int
    batch: float
    layout: Layout
    streams: Streams
    device: torch.device | str = "cpu"
    memory: dict[str, Tensor] = field(default_factory=dict)
    mask: Mask | None = None
    raw: PrivateState | None = None
    secrets: dict[str, PrivateState] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The number of epochs completed before this step."""
        return self.step // self.steps_per_epoch
