"""The set to which parameters are projected after each update. The projection sees released values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

if TYPE_CHECKING:
    from torch import Tensor


class Domain(Protocol):
    """A convex set of parameter vectors."""

    @property
    def diameter(self) -> float:
        """The largest distance between two points of the set."""

    @property
    def needs_initial(self) -> bool:
        """Whether the set is centred at the initial parameters, which are public."""

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """Project the parameters in place; `initial` is empty unless `needs_initial`."""


@final
@dataclass(frozen=True)
class Unbounded:
    """The whole space: parameters are not projected."""

    diameter: ClassVar[float] = math.inf
    needs_initial: ClassVar[bool] = False

    def project_(self, parameters: Sequence[Tensor], initial: Sequence[Tensor]) -> None:
        """Leave the parameters as they are."""
