"""Where the parameters may lie: a projection after each update, which sees released values alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from torch import Tensor


class Domain(Protocol):
    """A convex set of parameters."""

    @property
    def diameter(self) -> float:
        """The largest distance of two of its points."""

    @property
    def needs_initial(self) -> bool:
        """Whether the set lies around the public initial parameters."""

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """Move the parameters to the nearest point of the set, in place; `initial` is empty unless needed."""


@final
@dataclass(frozen=True)
class Unbounded:
    """All of space."""

    @property
    def diameter(self) -> float:
        return math.inf

    @property
    def needs_initial(self) -> bool:
        return False

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """Every point lies inside."""
