"""Random freeze (paper 001), Figure 3: how often a coordinate is frozen, at random or by rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from discreet import methods
from discreet.accounting.events import NonPrivate
from discreet.engine.layout import Layout, Mask
from discreet.methods.random_freeze.selection import RandomFreeze, RankedFreeze
from discreet.stages.clipping import Query
from discreet.stages.noise import GaussianNoise, Mechanism
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from discreet.stages.selection import Frozen, Order, Selection
from discreet.stages.values import BoundedSum, PrivateState, Released, StepContext
from discreet.training.private import Private
from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Outcome, Row, Status
from research.reproductions.random_freeze.observed_run import (
    CLIP,
    PER_EPOCH,
    RATE,
    SETTING,
    active_at,
    complete,
    frame,
    walk,
)

EXACT: Final = "freeze-figure-3.exact"


@final
@dataclass(frozen=True)
class LeakyNoise(Mechanism):
    """Gaussian noise that gives the ranking the exact sum, for comparison. No guarantee."""

    def event(self, queries: Sequence[Query], noise: float) -> NonPrivate:
        """No guarantee: epsilon is infinite."""
        return NonPrivate()

    def check(self, layout: Layout) -> None:
        """Accepts any model."""

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        """The noisy sums; the exact sum is kept in the secrets of the run."""
        context.secrets[EXACT] = PrivateState(sums[0].value.clone())
        return GaussianNoise().release(sums, queries, noise, context)


@final
@dataclass(frozen=True)
class RankedWithoutNoise(Selection):
    """Ranked freeze by exact sums, and zero on frozen coordinates, for comparison. No guarantee."""

    ranked: RankedFreeze

    @property
    def order(self) -> Order:
        return self.ranked.order

    @property
    def frozen(self) -> Frozen:
        return self.ranked.frozen

    @property
    def takes_all(self) -> bool:
        return self.ranked.takes_all

    def mask(self, context: StepContext) -> Mask | None:
        return self.ranked.mask(context)

    def observe(self, released: Released, std: float, context: StepContext) -> None:
        exact: Tensor = context.secrets[EXACT].reveal_to_mechanism()
        self.ranked.observe(Released.on(context.mask, exact, context.layout, context.batch), 0.0, context)

    def density(self, horizon: Horizon, *, baseline_epochs: int | None = None) -> float:
        return self.ranked.density(horizon, baseline_epochs=baseline_epochs)


def figure_3(bench: Bench) -> Outcome:
    """In how many epochs each coordinate was frozen: at random, ranked, and ranked without noise."""
    epochs = 10 if bench.quick else 100
    cooling = epochs * 4 // 5
    dense = complete(methods.dp_sgd(clip=CLIP), epochs)
    random, ranked = (kind(final_rate=RATE, cooling_epochs=cooling) for kind in (RandomFreeze, RankedFreeze))
    assert isinstance(ranked, RankedFreeze)
    exact = dataclasses.replace(dense, selection=RankedWithoutNoise(ranked), mechanism=LeakyNoise())
    plans = {
        "random": dataclasses.replace(dense, selection=random),
        "ranked": dataclasses.replace(dense, selection=ranked),
        "ranked without noise": exact,
    }
    found = {name: _histogram(bench, name, plan, epochs) for name, plan in plans.items()}
    near, far = (_apart(found[name], found["random"]) for name in ("ranked", "ranked without noise"))
    times = tuple(float(epoch) for epoch in range(epochs + 1))
    curves = [Curve(name=name, x=times, y=tuple(own)) for name, own in found.items()]
    return Outcome(
        unit="standard deviation of the number of epochs in which a coordinate is frozen",
        rows=tuple(Row(setting=name, ours=_deviation(own)) for name, own in found.items()),
        status=Status.REPRODUCED if near < min(0.05, far) else Status.NOT,
        summary=(
            f"Total variation from the histogram of random freezing: ranked {near:.2f}, ranked without noise {far:.2f} "
            f"({epochs} epochs). The paper's histograms of random and ranked freezing coincide: noise does the ranking."
        ),
        figures=(frame("histogram", "How often a coordinate is frozen", "epochs", "coordinates", curves),),
        guesses=(
            SETTING,
            "Ranked without noise: exact sums where active, zero where frozen, so that what is frozen stays so. The "
            "paper says only 'excluding noise'.",
        ),
    )


def _histogram(bench: Bench, name: str, plan: Plan, epochs: int) -> list[float]:
    """How many coordinates were frozen in 0, 1, ... of the epochs."""
    seed = bench.seeds[0]

    def compute() -> dict[str, Any]:
        frozen: dict[int, Tensor] = {}

        def visit(private: Private, step: int) -> None:
            epoch = max(step - 1, 0) // PER_EPOCH
            if epoch not in frozen:
                frozen[epoch] = (~active_at(private, epoch * PER_EPOCH)).to(torch.uint8)

        walk(plan, seed, visit)
        total = torch.stack(list(frozen.values())).sum(0)
        return {"histogram": torch.bincount(total, minlength=epochs + 1).tolist()}

    key = {"figure": "freeze-3", "epochs": epochs, "seed": seed, "of": name}
    return [float(count) for count in bench.remember(key, compute)["histogram"]]


def _deviation(histogram: Iterable[float]) -> float:
    counts = torch.tensor(list(histogram), dtype=torch.float64)
    times = torch.arange(len(counts), dtype=torch.float64)
    mean = (counts @ times) / counts.sum()
    return float(((counts @ (times - mean).square()) / counts.sum()).sqrt())


def _apart(one: Iterable[float], other: Iterable[float]) -> float:
    """Total variation distance of two histograms.

    >>> _apart([1, 1], [2, 0])
    0.5
    """
    a, b = (torch.tensor(list(own), dtype=torch.float64) for own in (one, other))
    return float((a / a.sum() - b / b.sum()).abs().sum() / 2)
