"""Where a run stands when a step is made: what stages may know besides the sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from discreet.core.streams import Streams
    from discreet.engine.layout import Layout, Mask
    from discreet.stages.values import PrivateState


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StepContext:
    """Public facts about one step, and the streams to draw from.

    memory   public tensors that a stage keeps from step to step; it may hold released values only
    mask     the active coordinates of this step; None: all of them
    raw      the bounder's hidden sums of this step, for the mechanism alone
    secrets  what a mechanism keeps from step to step of them: never written down, empty after a resume
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
        """Epochs completed before this step."""
        return self.step // self.steps_per_epoch
