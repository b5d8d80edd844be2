"""DiceSGD (paper 004), Appendix B.1: the bias of clipping, also on a regression with heavy-tailed gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet import methods
from discreet.core.streams import Streams
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.training.private import Private
from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Figure, Outcome, Row, Status, mean_and_error

DELTA = 1e-5
Losses = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True)
class Huber:
    """The example of Appendix B.1: C' = ceil(C) + 1, C' records at -1 and one at C', gradients cut at C'; optimum 0."""

    clip: float

    @property
    def slope(self) -> int:
        """C'."""
        return math.ceil(self.clip) + 1

    def data(self) -> TensorDataset:
        places = torch.tensor([-1.0] * self.slope + [float(self.slope)])
        return TensorDataset(torch.ones(len(places), 1), places)

    def losses(self, outputs: Tensor, places: Tensor) -> Tensor:
        """C' |u| - C'^2/2 beyond C', u^2/2 within."""
        return nn.functional.huber_loss(outputs, places, reduction="none", delta=float(self.slope))


def settled(recipe: Recipe, problem: Huber, *, steps: int = 400, learning_rate: float = 0.1) -> float:
    """The parameter at which the recipe converges on the example, without noise, on full batches, from 0.5."""
    data = problem.data()
    horizon = Horizon.of(records=len(data), batch=len(data), steps=steps)
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 0.5)
    plan = recipe.bind(noise=0.0, horizon=horizon, delta=DELTA)
    distances = _distances(plan, net, data, problem.losses, learning_rate, seed=0, optimum=torch.zeros(1))
    return float(net.weight.detach()) if distances else math.nan


@final
@dataclass(frozen=True)
class Regression:
    """Least squares with an intercept; the noise of the labels is lognormal: skewed, heavy-tailed, of mean 0."""

    records: int = 2000
    size: int = 10
    spread: float = 1.25

    def data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(2311)
        x = torch.randn(self.records, self.size, generator=generator)
        drawn = torch.randn(self.records, generator=generator)
        noise = (self.spread * drawn).exp() - math.exp(self.spread**2 / 2)
        return TensorDataset(x, x.sum(1) / math.sqrt(self.size) + noise)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square() / 2

    def optimum(self) -> Tensor:
        """Weights, then intercept, by the normal equations."""
        x, y = self.data().tensors
        rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
        solution: Tensor = torch.linalg.lstsq(rows, y.double().unsqueeze(1)).solution
        return solution.flatten()


def _distances(
    plan: Plan, net: nn.Module, data: TensorDataset, losses: Losses, learning_rate: float, *, seed: int, optimum: Tensor
) -> list[float]:
    """The distance to the optimum after each step of a private run."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    private = Private(net, optimizer, plan, data, streams=Streams.seeded(seed))
    found: list[float] = []
    try:
        for x, y in private:
            private.step(losses(net(x).squeeze(1), y))
            place = torch.cat([p.detach().flatten() for p in net.parameters()]).double()
            found.append(float((place - optimum).norm()))
    finally:
        private.close()
    return found


# -- the experiment -------------------------------------------------------------------------------------------

_POINTS: tuple[tuple[str, Recipe, float | None, float], ...] = (
    ("clipped SGD, C = 0.2", methods.dp_sgd(clip=0.2), 2 / 2.2, -0.9),
    ("DiceSGD, C1 = C2 = 0.2", methods.dicesgd(clip=0.2, feedback_clip=0.2), 0.0, 0.0),
    ("two-level, 0.2 + 0.8", methods.two_level(clip=0.2, residual=0.8), None, -0.5),
    ("two-level, 0.2 + 1.8", methods.two_level(clip=0.2, residual=1.8), None, 0.0),
)

_METHODS: tuple[tuple[str, Recipe, bool], ...] = (
    ("clipped SGD, C = 1", methods.dp_sgd(clip=1.0), False),
    ("clipped SGD, C = 30", methods.dp_sgd(clip=30.0), False),
    ("DiceSGD, C1 = C2 = 1, claimed noise", methods.dicesgd(), True),
    ("DiceSGD, C1 = C2 = 1, certified noise", methods.dicesgd(), False),
    ("two-level, 1 + 29", methods.two_level(clip=1.0, residual=29.0), False),
)


def bias(bench: Bench) -> Outcome:
    """Appendix B.1 and the heavy-tailed regression."""
    rows = [
        Row(
            setting=f"B.1, {name}, stationary point",
            paper=paper,
            ours=_remembered_point(bench, name, recipe),
            note=f"by hand: {point:g}",
        )
        for name, recipe, paper, point in _POINTS
    ]
    exact = all(abs((row.ours or 0.0) - point) < 1e-3 for row, (*_, point) in zip(rows, _POINTS, strict=True))
    quiet, without = _regressions(bench, epsilon=None)
    loud, with_noise = _regressions(bench, epsilon=2.0)
    title = "Heavy-tailed regression: distance to the optimum"
    figures = tuple(
        Figure(name=name, title=f"{title}, {words}", x_label="step", y_label="distance", curves=curves, log_y=True)
        for name, words, curves in (
            ("dice-bias-quiet", "no noise", without),
            ("dice-bias-noise", "epsilon 2 as certified, or as claimed", with_noise),
        )
    )
    return Outcome(
        unit="stationary point, or distance to the optimum at the end",
        rows=(*rows, *quiet, *loud),
        figures=figures,
        status=Status.REPRODUCED if exact else Status.PARTLY,
        summary=_summary(rows, quiet, loud, exact),
        guesses=("The paper prints C'/(C'+C) for clipped SGD's stationary point; its own example gives -1 + C/C'.",),
    )


def _summary(rows: list[Row], quiet: list[Row], loud: list[Row], exact: bool) -> str:
    points = ", ".join(f"{row.ours:.3f}" for row in rows)
    still = ", ".join(f"{row.ours:.2f}" for row in quiet if row.ours is not None)
    noisy = ", ".join(f"{row.ours:.2f}" for row in loud if row.ours is not None)
    return (
        f"Stationary points {points} ({'as' if exact else 'NOT as'} computed by hand). Heavy-tailed regression, "
        f"distance at the end without noise {still}, at epsilon 2 {noisy}, in the order of the rows."
    )


def _remembered_point(bench: Bench, name: str, recipe: Recipe) -> float:
    key = {"dice-bias": name, "plan": recipe.to_json()}
    return float(bench.remember(key, lambda: {"at": settled(recipe, Huber(clip=0.2))})["at"])


def _regressions(bench: Bench, *, epsilon: float | None) -> tuple[list[Row], tuple[Curve, ...]]:
    """The final distance to the optimum and its curve for each method, with the noise for epsilon or without noise."""
    rows, curves = [], []
    for name, recipe, to_claim in _METHODS:
        if epsilon is None and to_claim:
            continue  # without noise both are one
        runs = [_remembered_run(bench, recipe, epsilon, to_claim, seed) for seed in bench.seeds]
        mean, error = mean_and_error(tuple(tail_mean(run["distances"]) for run in runs))
        words = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
        rows.append(
            Row(
                setting=f"regression, {name.split(', c')[0] if epsilon is None else name}, {words}",
                ours=mean,
                spread=error,
                seeds=len(runs),
                certified=math.inf if runs[0]["certified"] is None else runs[0]["certified"],
                claimed=runs[0]["claimed"],
            )
        )
        first = runs[0]["distances"]
        every = max(1, len(first) // 100)
        curves.append(Curve(name=name, x=tuple(map(float, range(1, len(first) + 1)))[::every], y=tuple(first)[::every]))
    return rows, tuple(curves)


def tail_mean(distances: list[float]) -> float:
    """The mean over the last tenth of a run."""
    last = distances[-max(1, len(distances) // 10) :]
    return math.fsum(last) / len(last)


def _remembered_run(bench: Bench, recipe: Recipe, epsilon: float | None, to_claim: bool, seed: int) -> dict[str, Any]:
    key: dict[str, Any] = {"dice-regression": recipe.to_json(), "epsilon": epsilon, "claim": to_claim, "seed": seed}
    key["steps"] = steps = 150 if bench.quick else 600
    return bench.remember(key, lambda: _regression_run(recipe, epsilon, to_claim, seed, steps))


def _regression_run(recipe: Recipe, epsilon: float | None, to_claim: bool, seed: int, steps: int) -> dict[str, Any]:
    problem = Regression()
    data = problem.data()
    horizon = Horizon.of(records=problem.records, batch=200, steps=steps)
    if epsilon is None:
        plan = recipe.bind(noise=0.0, horizon=horizon, delta=DELTA)
    else:
        calibrated = recipe.for_claim if to_claim else recipe.for_horizon
        plan = calibrated(epsilon=epsilon, delta=DELTA, horizon=horizon)
    net = nn.Linear(problem.size, 1)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    distances = _distances(plan, net, data, problem.losses, 0.1, seed=seed, optimum=problem.optimum())
    claim = plan.charge().claimed
    certified = plan.certificate().epsilon
    return {
        "distances": [min(value, 1e12) if math.isfinite(value) else 1e12 for value in distances],
        "certified": certified if math.isfinite(certified) else None,
        "claimed": None if claim is None or epsilon is None else claim.epsilon(DELTA),
    }
