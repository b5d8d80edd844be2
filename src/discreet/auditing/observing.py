"""Seeing what a run releases, from inside the real run: an observer in the place of the plan's selection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, final

import torch

from discreet.stages.analysis import Composition
from discreet.stages.plan import Plan
from discreet.stages.selection import Frozen, Order, Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.accounting.events import NonPrivate, Release
    from discreet.engine.layout import Layout, Mask
    from discreet.stages.bounding import Query
    from discreet.stages.context import StepContext
    from discreet.stages.mechanism import Mechanism
    from discreet.stages.sampling import Horizon
    from discreet.stages.values import BoundedSum, Released

Listener = Callable[["Released", float, "StepContext"], None]
"""Told every release, the noise on each of its coordinates, and when; before the parameters move."""

OnNoise = Callable[[list["Tensor"], list["Tensor"], list[float], "StepContext"], None]
"""Told the sums of a step, the same with noise, and the noise's deviations."""


@final
@dataclass(frozen=True)
class ObservedSelection:
    """A selection that also tells each release: stages, mechanism, noise and update are untouched."""

    inner: Selection
    listener: InitVar[Listener]

    def __post_init__(self, listener: Listener) -> None:
        object.__setattr__(self, "_listener", listener)

    @property
    def order(self) -> Order:
        return self.inner.order

    @property
    def frozen(self) -> Frozen:
        return self.inner.frozen

    @property
    def takes_all(self) -> bool:
        return self.inner.takes_all

    def mask(self, context: StepContext) -> Mask | None:
        return self.inner.mask(context)

    def observe(self, released: Released, std: float, context: StepContext) -> None:
        listener: Listener = object.__getattribute__(self, "_listener")
        listener(released, std, context)
        self.inner.observe(released, std, context)

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        return self.inner.density(horizon, baseline_epochs=baseline_epochs)


def observing_releases(plan: Plan, listener: Listener) -> Plan:
    """The same stages, whose releases are told to `listener`; what they cost is for the plan itself to say."""
    return dataclasses.replace(
        plan, selection=ObservedSelection(plan.selection, listener), analysis=Composition(), claims=None
    )


@final
class ObservedMechanism:
    """A mechanism that also tells what goes in and what comes out: an attacker who knows both worlds knows the sums."""

    def __init__(self, inner: Mechanism, listener: OnNoise) -> None:
        self._inner, self._listener = inner, listener

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        return self._inner.event(queries, noise)

    def check(self, layout: Layout) -> None:
        self._inner.check(layout)

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        exact = [total.value.clone() for total in sums]  # a mechanism overwrites what it is given
        noisy = self._inner.release(sums, queries, noise, context)
        self._listener(
            exact, [value.clone() for value in noisy], [query.std(noise) for query in queries], context
        )
        return noisy


def observing_noise(plan: Plan, listener: OnNoise) -> Plan:
    """The same stages, whose sums before and after the noise are told to `listener`."""
    return dataclasses.replace(
        plan, mechanism=ObservedMechanism(plan.mechanism, listener), analysis=Composition(), claims=None
    )


def active_in(released: Released) -> Tensor:
    """Which coordinates take part in this release, flat."""
    active = torch.ones(released.layout.size)
    if released.mask is not None:
        released.mask.apply_(released.layout.views(active))
    return active.bool()
