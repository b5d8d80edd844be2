"""What a bounder learns from public records before a step, outside of the privacy accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

ASSUMPTION = "if no protected record is among the public records"
"""The user's word, printed next to every epsilon: it cannot be checked without a query on the protected records."""


class PublicLearning(Protocol):
    """Collects gradients of public records, at parameters that are released. It sees no protected record."""

    def add(self, gradients_nd: Tensor) -> None:
        """Learn from gradients of public records, on the active coordinates of the step."""

    def finish(self) -> list[Tensor]:
        """Store the result in the run's memory, and return the stored tensors, which processes share."""
