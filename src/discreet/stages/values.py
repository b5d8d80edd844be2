"""Values that hold tensors and carry what is known about them.

    engine --factors--> aggregation --BoundedSum--> mechanism --Released--> update

A mechanism accepts only `BoundedSum`s, an update only a `Released`; hidden state is a `PrivateState`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from discreet.core import check

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.engine.layout import Layout, Mask


_AGGREGATION = object()  # the key that only aggregation.py holds


@final
class BoundedSum:
    """A sum over records in which adding or removing one record moves at most `sensitivity` (L2).

    Built by aggregation alone. Division by a public number divides the sensitivity too; the size of a batch
    is private and is refused by type, because it is not a `Public`.
    """

    __slots__ = ("sensitivity", "value")
    sensitivity: float
    value: Tensor

    def __init__(self, value: Tensor, sensitivity: float, *, key: object) -> None:
        check.require(
            key is _AGGREGATION,
            "a BoundedSum from aggregation, which proves the bound",
            "a BoundedSum built elsewhere",
            "sum per-sample contributions through a bounder",
        )
        check.positive("the sensitivity is the bounder's proven bound", sensitivity=sensitivity)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "sensitivity", sensitivity)

    def __setattr__(self, name: str, _: object) -> None:
        check.refuse("a sum that keeps its bound", f"a new {name}", "divide it, or sum anew")

    def __truediv__(self, divisor: Public) -> BoundedSum:
        check.require(
            isinstance(divisor, Public),
            "a Public divisor",
            f"a {type(divisor).__name__}",
            "divide by the plan's batch size: the size of the drawn batch is private",
        )
        return BoundedSum(self.value / divisor.number, self.sensitivity / divisor.number, key=_AGGREGATION)

    def __repr__(self) -> str:
        return f"BoundedSum(<private>, sensitivity={self.sensitivity})"


@final
@dataclass(frozen=True)
class Public:
    """A number that is the same for neighbouring datasets: a plan's batch, a clip, a count of steps."""

    number: float

    def __post_init__(self) -> None:
        check.positive("a public divisor is a positive number of the plan", number=self.number)


@final
@dataclass(frozen=True, eq=False)
class Released:
    """What left a mechanism: safe to log, store, and feed to any optimizer.

    active  the released values: all coordinates, or those that the mask leaves active
    """

    active: Tensor
    layout: Layout
    mask: Mask | None = None

    @staticmethod
    def on(mask: Mask | None, value: Tensor, layout: Layout, batch: float) -> Released:
        """value / batch on the active coordinates: of frozen ones nothing is kept, whatever they hold.

        A value of all coordinates is cut down; one of the active coordinates alone is taken as it is.
        """
        if mask is None:
            return Released(value.div_(batch), layout)
        from discreet.stages.active import Active

        index = Active.of(mask, layout, value.device).whole
        active = value if len(value) == len(index) else value.index_select(0, index)
        return Released(active.div_(batch), layout, mask)

    @property
    def value(self) -> Tensor:
        """The whole vector, with exact zeros on frozen coordinates."""
        if self.mask is None:
            return self.active
        from discreet.stages.active import Active

        whole = self.active.new_zeros(self.layout.size)
        return whole.scatter_(0, Active.of(self.mask, self.layout, self.active.device).whole, self.active)

    def views(self) -> Iterator[Tensor]:
        """One view per parameter."""
        return iter(self.layout.views(self.value))


@final
class PrivateState:
    """State that depends on private records without a mechanism in between: never logged, never published.

    >>> print(PrivateState([1.0]))
    PrivateState(<hidden>)
    """

    __slots__ = ("_hidden",)

    def __init__(self, hidden: Any) -> None:
        self._hidden = hidden

    def reveal_to_mechanism(self) -> Any:
        """The state, for the mechanism that owns it."""
        return self._hidden

    def __repr__(self) -> str:
        return "PrivateState(<hidden>)"

    def __reduce__(self) -> str:
        check.refuse(
            "private state to stay in memory",
            "a copy or pickle of a PrivateState",
            "write it only through a private checkpoint",
        )
