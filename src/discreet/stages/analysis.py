"""What an analysis is, and the one that fits every plan: composition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from discreet.accounting.events import Event, NonPrivate
from discreet.stages.guard import NoGuard, RunGuard

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from discreet.stages.pipeline import Pipeline
    from discreet.stages.plan import Plan


class Analysis(Protocol):
    """The argument by which a plan's certificate holds."""

    @property
    def visible(self) -> bool:
        """Whether the iterates may be seen before the run ends."""

    @property
    def composes(self) -> bool:
        """Whether the argument holds beside further charged queries, such as tests of updates."""

    def check(self, stages: Pipeline) -> None:
        """Refuse stages that the argument does not cover."""

    def whole_run(self, plan: Plan) -> Event | None:
        """One event for the run, charged before its first release; None: each step is charged on its own."""

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        """What the certificate rests on besides the plan: printed wherever epsilon is."""

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        """The checks that a run of this plan needs; refuses at once a model or optimizer that breaks them."""


@final
@dataclass(frozen=True)
class Composition:
    """Every release is charged, and everything released may be seen.

    Guarantee: the epsilon of all releases together, whatever an observer does with any of them.
    """

    @property
    def visible(self) -> bool:
        return True

    @property
    def composes(self) -> bool:
        return True

    def check(self, stages: Pipeline) -> None:
        """Every step composes."""

    def whole_run(self, plan: Plan) -> Event | None:
        return None

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return ()

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        return NoGuard()


@final
@dataclass(frozen=True)
class Unproven:
    """No argument is known: the run is charged as non-private, whatever its noise.

    reason  why not, in a sentence that is printed beside the claim
    """

    reason: str

    @property
    def visible(self) -> bool:
        return True

    @property
    def composes(self) -> bool:
        return True  # infinity plus anything

    def check(self, stages: Pipeline) -> None:
        """Nothing is promised, so nothing is refused."""

    def whole_run(self, plan: Plan) -> Event | None:
        return NonPrivate()

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return (f"no proven guarantee: {self.reason}",)

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        return NoGuard()
