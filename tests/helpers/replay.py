"""Record and replay: the same run on neighbouring data, with everything that was released held fixed.

Given the same releases, nothing but the sums inside the mechanism may depend on the records. So a run on D is recorded,
a run on D' is fed the recorded releases, and then
    control flow   charges, masks, scales, noise, memory and parameters are equal, bit for bit
    sensitivity    every sum differs by no more than its query declares
No randomness decides, and no trial is needed: a deterministic test of what the certificate rests on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from discreet.accounting.events import Event, NonPrivate, Release
from discreet.core import check
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.layout import Layout
from discreet.methods.dicesgd.stages import ErrorFeedback
from discreet.stages.analysis import Analysis, Composition, NoGuard, RunGuard
from discreet.stages.clipping import Query
from discreet.stages.noise import Mechanism
from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan
from discreet.stages.values import BoundedSum, StepContext
from discreet.training.step import PrivateStep, RunState

_ROUNDING = 1e-5  # relative: sums are float32
_SEED = 5


@final
@dataclass
class Recording:
    """One run: what is public, step by step, and beside it the sums that the mechanism saw."""

    public: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[list[Tensor]] = field(default_factory=list)
    sums: list[list[Tensor]] = field(default_factory=list)
    bounds: list[list[float]] = field(default_factory=list)
    drawn: list[list[Tensor]] = field(default_factory=list)
    reaches: list[float] = field(default_factory=list)


@final
class Tape(Mechanism):
    """A mechanism that notes what it is given; with a recording, it gives back what was released there."""

    def __init__(self, inner: Mechanism, notes: Recording, released: Recording | None) -> None:
        self._inner, self._notes, self._released = inner, notes, released

    def event(self, queries: Sequence[Query], noise: float) -> Release | NonPrivate:
        return self._inner.event(queries, noise)

    def check(self, layout: Layout) -> None:
        self._inner.check(layout)

    def prepare(self, context: StepContext) -> None:
        self._inner.prepare(context)

    @property
    def is_independent(self) -> bool:
        return self._inner.is_independent

    @property
    def in_parts(self) -> bool:
        return self._inner.in_parts

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        index = len(self._notes.outputs)
        self._notes.sums.append([total.value.clone() for total in sums])
        self._notes.bounds.append([query.sensitivity for query in queries])
        self._notes.public.append({"queries": tuple(queries), "noise": noise, "step": context.step})
        # The mechanism runs in any case: what it keeps from step to step is part of what is compared.
        noisy = self._inner.release(sums, queries, noise, context)
        self._notes.drawn.append([value.clone() for value in noisy])
        self._notes.reaches.append(_reach(self._inner, queries, context))
        if self._released is not None:
            noisy = [value.clone() for value in self._released.outputs[index]]
        self._notes.outputs.append([value.clone() for value in noisy])
        return noisy


def _reach(mechanism: Mechanism, queries: Sequence[Query], context: StepContext) -> float:
    """How far one record may move what is released, noise aside, where the mechanism remembers; else no bound."""
    if not isinstance(mechanism, ErrorFeedback):
        return math.inf
    return queries[0].sensitivity + 2 * context.batch * mechanism.clip


@final
@dataclass(frozen=True)
class _PricedAs(Analysis):
    """The analysis of another plan: that of the plan whose mechanism is on tape."""

    plan: Plan

    @property
    def visible(self) -> bool:
        return self.plan.analysis.visible

    @property
    def composes(self) -> bool:
        return self.plan.analysis.composes

    def check(self, stages: Pipeline) -> None:
        """It was checked with its own mechanism."""

    def whole_run(self, plan: Plan) -> Event | None:
        return self.plan.analysis.whole_run(self.plan)

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        return self.plan.analysis.assumptions(self.plan)

    def guard(self, plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> RunGuard:
        return NoGuard()


def run(
    plan: Plan,
    data: tuple[Tensor, Tensor],
    *,
    start: int = 0,
    released: Recording | None = None,
    make: Callable[[], nn.Module] | None = None,
) -> Recording:
    """The plan's steps from `start` on, all records in each; releases are drawn, or those of a recording."""
    notes = Recording()
    tape = Tape(plan.mechanism, notes, released)
    priced = plan.analysis if isinstance(plan.analysis, Composition) else _PricedAs(plan)
    taped = plan.using(mechanism=tape, analysis=priced)
    net, progress, streams = (make or _model)(), RunState(step=start), Streams.seeded(_SEED)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
    engine = Engine(net)
    x, y = data
    try:
        for _ in range(start, plan.horizon.steps):
            charged: list[Event] = []
            batch = PrivateStep(taped, engine, progress, streams, _onto(charged), World.current())
            if len(x):
                engine.begin(len(x))
                batch.add(nn.functional.cross_entropy(net(x), y, reduction="none"))
            given = batch.release()
            for parameter, gradient in zip(net.parameters(), given.views(), strict=True):
                parameter.grad = gradient.to(parameter.dtype)
            optimizer.step()
            optimizer.zero_grad()
            notes.public[-1] |= {
                "charged": tuple(charged),
                "scale": progress.scale,
                "released": given.value.clone(),
                "active": None if given.mask is None else _active(given.mask, given.layout.shapes),
                "memory": {key: value.clone() for key, value in progress.memory.items()},
                "weights": torch.cat([p.detach().reshape(-1) for p in net.parameters()]),
            }
    finally:
        engine.close()
    return notes


def _onto(charged: list[Event]) -> Callable[[Event, int], None]:
    return lambda event, step: charged.append(event)


def compare(one: Recording, other: Recording) -> float:
    """Refuse runs that differ in what is public; return the largest share of a declared sensitivity that was used."""
    check.require(
        len(one.public) == len(other.public),
        "as many releases on both data",
        f"{len(one.public)} and {len(other.public)}",
        "a step may not depend on the records",
    )
    for step, (own, theirs) in enumerate(zip(one.public, other.public, strict=True)):
        for key, value in own.items():
            check.require(
                _equal(value, theirs.get(key)),
                f"the same {key} at step {step} on neighbouring data",
                "another one",
                "it depends on the records without a mechanism in between",
            )
    worst = 0.0
    for sums, others, bounds in zip(one.sums, other.sums, one.bounds, strict=True):
        for mine, its, bound in zip(sums, others, bounds, strict=True):
            moved = float((mine.double() - its.double()).norm())
            worst = max(worst, moved / bound if math.isfinite(moved) else math.inf)
    for drawn, again, reach in zip(one.drawn, other.drawn, one.reaches, strict=True):  # under the same noise
        moved = max(float((a.double() - b.double()).norm()) for a, b in zip(drawn, again, strict=True))
        check.require(
            moved <= reach * (1 + _ROUNDING),
            "a release that one record moves by no more than its clip and twice that of the error",
            f"{moved / reach:.3f} times as much",
            "the error is fed back without its bound",
        )
    check.require(
        worst <= 1 + _ROUNDING,
        "sums that one record moves by no more than their sensitivity",
        f"{worst:.3f} times as much",
        "the bounder's weights are wrong",
    )
    return worst


def leave_one_out(plan: Plan, *, start: int = 0, make: Callable[[], nn.Module] | None = None) -> float:
    """Record on hard records, replay without each of them in turn; the largest share of a sensitivity that was used."""
    x, y = _records()
    whole = run(plan, (x, y), start=start, make=make)
    shares = []
    for record in range(len(x)):
        kept = torch.arange(len(x)) != record
        shares.append(compare(whole, run(plan, (x[kept], y[kept]), start=start, released=whole, make=make)))
    return max(shares)


def _records() -> tuple[Tensor, Tensor]:
    """Records that are hard to bound: a copy, a huge one, a zero, one that is not finite."""
    generator = torch.Generator().manual_seed(_SEED)
    x = torch.randn(7, 4, generator=generator)
    x[1] = x[0]
    x[2] *= 1e6
    x[3] = 0.0
    x[4, 0] = math.nan
    return x, (torch.arange(7) % 2).long()


def _model() -> nn.Module:
    generator = torch.Generator().manual_seed(_SEED)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net


def _active(mask: Any, shapes: Sequence[tuple[int, ...]]) -> Tensor:
    views = [torch.ones(shape) for shape in shapes]
    mask.apply_(views)
    return torch.cat([view.reshape(-1) for view in views])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_equal(value, other[key]) for key, value in one.items())
        )
    return bool(one == other)
