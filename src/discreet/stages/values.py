"""Tensors with a type that states their privacy guarantee, and the context of a step.

    engine --factors--> aggregation --BoundedSum--> mechanism --Released--> update

A mechanism accepts only `BoundedSum`s, and an update accepts only a `Released`. Hidden state is a `PrivateState`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from discreet.core import check

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from discreet.core.streams import Streams
    from discreet.core.world import World
    from discreet.engine.layout import Layout, Mask

_AGGREGATION = object()  # the key that lets aggregation.py alone build a BoundedSum


@final
class BoundedSum:
    """A sum over records that moves by at most `sensitivity` (L2) when one record is added or removed.

    Only aggregation.py builds it. It has no arithmetic: the noisy sum is divided by the public batch size after
    the release, and never by the size of the drawn batch, which is private.
    """

    __slots__ = ("sensitivity", "value")
    sensitivity: float
    value: Tensor

    def __init__(self, value: Tensor, sensitivity: float, *, key: object) -> None:
        expected = "a BoundedSum from aggregation, which proves the bound"
        remedy = "sum the records with Aggregation"
        check.require(key is _AGGREGATION, expected, "a BoundedSum built elsewhere", remedy)
        check.positive("pass the sensitivity that the bounder proves", sensitivity=sensitivity)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "sensitivity", sensitivity)

    def __setattr__(self, name: str, _: object) -> None:
        check.refuse("an unchanged BoundedSum", f"a new value for {name}", "sum again")

    def __repr__(self) -> str:
        return f"BoundedSum(<private>, sensitivity={self.sensitivity})"


@final
@dataclass(frozen=True, eq=False)
class Released:
    """The output of a mechanism: safe to log, to store, and to pass to any optimizer.

    active  the released values, on all coordinates or, under a mask, on the active ones
    """

    active: Tensor
    layout: Layout
    mask: Mask | None = None

    @staticmethod
    def on(mask: Mask | None, value: Tensor, layout: Layout, batch: float) -> Released:
        """Return value / batch on the active coordinates; values on frozen coordinates are dropped.

        `value` may hold all coordinates or the active ones only.
        """
        if mask is not None:
            from discreet.engine.active import Active

            index = Active.of(mask, layout, value.device).whole
            value = value if len(value) == len(index) else value.index_select(0, index)
        return Released(value.div_(batch), layout, mask)

    @property
    def value(self) -> Tensor:
        """The full vector, with exact zeros on frozen coordinates."""
        if self.mask is None:
            return self.active
        from discreet.engine.active import Active

        whole = self.active.new_zeros(self.layout.size)
        return whole.scatter_(0, Active.of(self.mask, self.layout, self.active.device).whole, self.active)

    def views(self) -> Iterator[Tensor]:
        """The value as one view per parameter."""
        return iter(self.layout.views(self.value))


@final
class PrivateState:
    """State that depends on private records and did not pass a mechanism. It must not be logged or published.

    >>> print(PrivateState([1.0]))
    PrivateState(<hidden>)
    """

    __slots__ = ("_hidden",)

    def __init__(self, hidden: Any) -> None:
        self._hidden = hidden

    def reveal_to_mechanism(self) -> Any:
        """Return the state. Only the mechanism that owns it may call this."""
        return self._hidden

    def __repr__(self) -> str:
        return "PrivateState(<hidden>)"

    def __reduce__(self) -> str:
        remedy = "do not copy or pickle objects that hold it"
        check.refuse("private state to stay in memory", "a copy or pickle of a PrivateState", remedy)


PUBLIC = "public."
"""Keys of `memory` that begin so hold what was computed from public records. It is not saved in checkpoints: a resumed
run computes it again."""


def _alone() -> World:
    from discreet.core.world import World

    return World()


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class StepContext:
    """Public facts about one step, and the random streams.

    memory   public tensors that stages keep between steps; it may hold only released values and what public
             records give
    mask     the active coordinates of this step; None if all are active
    raw      the bounder's hidden sums of this step; only the mechanism may read them
    secrets  hidden state that a mechanism keeps between steps; it is never saved and is empty after a resume
    layout   the coordinates that this process holds: all of them, unless the model is sharded
    world    the processes that hold the same coordinates, each of which draws the noise of its own part of them
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
    world: World = field(default_factory=_alone)

    @property
    def epoch(self) -> int:
        """The number of epochs completed before this step."""
        return self.step // self.steps_per_epoch
