"""Observe the releases of a real run: stages that pass on what they see and change nothing."""

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
    from discreet.stages.clipping import Query
    from discreet.stages.context import StepContext
    from discreet.stages.noise import Mechanism
    from discreet.stages.sampling import Horizon
    from discreet.stages.values import BoundedSum, Released

Listener = Callable[["Released", float, "StepContext"], None]
"""Receives every release, its noise standard deviation and its step, before the update."""

OnNoise = Callable[[list["Tensor"], list["Tensor"], list[float], "StepContext"], None]
"""Receives the sums of a step, the noisy sums, and the standard deviations of the noise."""


@final
@dataclass(frozen=True)
class ObservedSelection:
    """A selection that passes each release to a listener; stages, mechanism, noise and update are unchanged."""

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
    """The same stages with a listener for releases; the original plan gives the cost."""
    observed = ObservedSelection(plan.selection, listener)
    return dataclasses.replace(plan, selection=observed, analysis=Composition(), claims=None)


@final
class ObservedMechanism:
    """A mechanism that passes its input and output to a listener: an attacker who knows both worlds knows the sums."""

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
        self._listener(exact, [value.clone() for value in noisy], [query.std(noise) for query in queries], context)
        return noisy


def observing_noise(plan: Plan, listener: OnNoise) -> Plan:
    """The same stages with a listener for the sums before and after noise."""
    observed = ObservedMechanism(plan.mechanism, listener)
    return dataclasses.replace(plan, mechanism=observed, analysis=Composition(), claims=None)


def active_in(released: Released) -> Tensor:
    """Which coordinates are active in this release, as a flat tensor."""
    active = torch.ones(released.layout.size)
    if released.mask is not None:
        released.mask.apply_(released.layout.views(active))
    return active.bool()
