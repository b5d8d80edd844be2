"""Runtime checks for runs whose certificate needs more than the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.core.world import World


class RunGuard(Protocol):
    """Checks a run at its start and before each release. `Analysis.guard` creates it."""

    def begin(self, average: float | None, schedulers: Sequence[Any], views: int, world: World) -> None:
        """Refuse run settings that the certificate does not cover."""

    def data(self, size: int) -> None:
        """Refuse a dataset with more records than the bound is proven for."""

    def losses(self, losses: Tensor) -> None:
        """Check the losses of a micro-batch before they are used."""

    def release(self) -> None:
        """Refuse a release that the certificate does not cover."""

    def close(self) -> None:
        """Remove all hooks from the model."""


@final
class NoGuard:
    """No checks: the certificate covers an observer who sees the parameters after every step."""

    def begin(self, average: float | None, schedulers: Sequence[Any], views: int, world: World) -> None:
        """Nothing to refuse."""

    def data(self, size: int) -> None:
        """Nothing to refuse."""

    def losses(self, losses: Tensor) -> None:
        """Nothing to check."""

    def release(self) -> None:
        """Nothing to refuse."""

    def close(self) -> None:
        """Nothing to remove."""
