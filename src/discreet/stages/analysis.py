"""Analyses derive the certificate of a plan. Composition applies to every plan."""

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
    """Derives the certificate of a plan."""

    @property
    def visible(self) -> bool:
        """Whether the parameters may be published before the run ends."""

    @property
    def composes(self) -> bool:
        """Whether further charged queries, such as tests of updates, may be composed with the run."""

    def check(self, stages: Pipeline) -> None:
        """Refuse stages that the proof does not cover."""

    def whole_run(self, plan: Plan) -> Event | None:
        """One event for the run, charged before the first release; None if each step is charged separately."""

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        """What the certificate assumes besides the plan. It is printed next to every epsilon."""

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        """Create the runtime checks of this plan. Refuses a model or optimizer that the proof does not cover."""


@final
@dataclass(frozen=True)
class Composition:
    """Every release is charged, and all released values may be published.

    Guarantee: the epsilon of all releases together, under any post-processing.
    """

    @property
    def visible(self) -> bool:
        return True

    @property
    def composes(self) -> bool:
        return True

    def check(self, stages: Pipeline) -> None:
        """Accept all stages."""

    def whole_run(self, plan: Plan) -> Event | None:
        return None

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return ()

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        return NoGuard()


@final
@dataclass(frozen=True)
class Unproven:
    """No proof is known: the run is charged as non-private, whatever its noise.

    reason  why no guarantee is known; it is printed next to the claim
    """

    reason: str

    @property
    def visible(self) -> bool:
        return True

    @property
    def composes(self) -> bool:
        return True  # epsilon is infinite with or without further queries

    def check(self, stages: Pipeline) -> None:
        """Accept all stages: nothing is guaranteed."""

    def whole_run(self, plan: Plan) -> Event | None:
        return NonPrivate()

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return (f"no proven guarantee: {self.reason}",)

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        return NoGuard()
