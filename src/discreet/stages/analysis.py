"""Analyses derive the certificate of a plan, and the runtime checks that it needs. Composition fits every plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final

from discreet.accounting.events import Event, NonPrivate

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from discreet.core.world import World
    from discreet.stages.pipeline import Pipeline
    from discreet.stages.plan import Plan
    from discreet.stages.values import Released


class RunGuard(Protocol):
    """Checks a run at its start and before each release. `Analysis.guard` creates it. By default nothing is checked."""

    def begin(self, average: float | None, schedulers: Sequence[Any], views: int, world: World) -> None:
        """Refuse run settings that the certificate does not cover."""
        return

    def data(self, size: int) -> None:
        """Refuse a dataset with more records than the bound is proven for."""
        return

    def losses(self, losses: Tensor) -> None:
        """Check the losses of a micro-batch before they are used."""
        return

    def release(self) -> None:
        """Refuse a release that the certificate does not cover."""
        return

    def updated(self) -> None:
        """The parameters are those after a step, also of a checkpoint."""
        return

    def close(self) -> None:
        """Remove all hooks from the model."""
        return


@final
class NoGuard(RunGuard):
    """No checks: the certificate covers an observer who sees the parameters after every step."""


class Analysis(Protocol):
    """Derives the certificate of a plan. By default all stages are accepted and nothing is assumed or guarded."""

    @property
    def visible(self) -> bool:
        """Whether the parameters may be published before the run ends."""

    @property
    def composes(self) -> bool:
        """Whether further charged queries, such as tests of updates, may be composed with the run."""

    @property
    def covers_users(self) -> bool:
        """Whether the proof holds if users, each with one clipped mean gradient, stand for records."""
        return True

    def whole_run(self, plan: Plan) -> Event | None:
        """One event for the run, charged before the first release; None if each step is charged separately."""

    def check(self, stages: Pipeline) -> None:
        """Refuse stages that the proof does not cover."""
        return

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        """What the certificate assumes besides the plan. It is printed next to every epsilon."""
        return ()

    def guard(self, plan: Plan, model: nn.Module, optimizer: Optimizer) -> RunGuard:
        """Create the runtime checks of this plan. Refuses a model or optimizer that the proof does not cover."""
        return NoGuard()

    def updating(self, parameters: Sequence[Tensor], released: Released) -> AbstractContextManager[None]:
        """Called around the optimizer step on a release. By default the step may do anything with the release."""
        return nullcontext()


@final
@dataclass(frozen=True)
class Composition(Analysis):
    """Every release is charged, and all released values may be published.

    Guarantee: the epsilon of all releases together, under any post-processing.
    """

    visible: ClassVar[bool] = True
    composes: ClassVar[bool] = True

    def whole_run(self, plan: Plan) -> Event | None:
        return None


@final
@dataclass(frozen=True)
class Unproven(Analysis):
    """No proof is known: the run is charged as non-private, whatever its noise.

    reason  why no guarantee is known; it is printed next to the claim
    """

    visible: ClassVar[bool] = True
    composes: ClassVar[bool] = True  # epsilon is infinite with or without further queries
    reason: str

    def whole_run(self, plan: Plan) -> Event | None:
        return NonPrivate()

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return (f"no proven guarantee: {self.reason}",)
