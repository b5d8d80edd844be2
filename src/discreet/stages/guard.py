"""Rules that a run must keep while it trains, besides its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.core.world import World


class RunGuard(Protocol):
    """Checks at the start of a run and before each release; an `Analysis` makes the one that it needs."""

    def begin(self, average: float | None, schedulers: Sequence[Any], views: int, world: World) -> None:
        """Refuse settings of the run that the certificate does not cover."""

    def data(self, size: int) -> None:
        """Refuse more records than the bound is proven for."""

    def losses(self, losses: Tensor) -> None:
        """See the losses of a micro-batch before they are used."""

    def release(self) -> None:
        """Refuse a release that the certificate would not cover."""

    def close(self) -> None:
        """Remove every hook from the model."""


@final
class NoGuard:
    """No rules besides the plan: the certificate covers an observer who sees every iterate."""

    def begin(self, average: float | None, schedulers: Sequence[Any], views: int, world: World) -> None:
        """Nothing to refuse."""

    def data(self, size: int) -> None:
        """Nothing to refuse."""

    def losses(self, losses: Tensor) -> None:
        """Nothing to check."""

    def release(self) -> None:
        """Nothing to refuse."""

    def close(self) -> None:
        """No hook was set."""
