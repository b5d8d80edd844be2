"""Random freeze (paper 001), Figures 1 and 2: what freezing does to the error of a gradient, and to norms."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import torch
from torch import Tensor

from discreet import methods
from discreet.core.streams import Stream, Streams
from discreet.methods.random_freeze.masks import subset
from discreet.stages.recipe import Recipe
from discreet.training.private import Private
from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Figure, Outcome, Row, Status
from research.reproductions.freeze_looks import (
    BATCH,
    CLIP,
    PER_EPOCH,
    RATE,
    SETTING,
    active_at,
    complete,
    frame,
    record_gradients,
    walk,
)

RATES: Final = tuple(rate / 10 for rate in range(10))
EDGES: Final = tuple(10 ** (k / 8) for k in range(-24, 17))
"""Of the histograms of norms."""


def errors(
    gradients: Tensor, *, rate: float, noise: float, draws: int, stream: Stream
) -> tuple[float, float]:
    """E |true - estimate|^2 of the mean of clipped gradients, without noise (signal loss) and with it (MSE).

    Over batches of the records given (squared bias plus variance / BATCH), and over masks drawn from `stream`.
    """
    size, true, lost = gradients.shape[1], gradients.mean(0), []
    for draw in range(draws if rate else 1):
        active = subset(stream.at(draw), max(1, round((1 - rate) * size)), size).to(gradients.dtype)
        norms = gradients.square().mv(active).sqrt()
        weights = (CLIP / norms.clamp(min=1e-12)).clamp(max=1.0)
        mean = active * (weights @ gradients) / len(gradients)
        variance = (weights * norms).square().mean() - mean.square().sum()
        lost.append(float((true - mean).square().sum() + variance / BATCH))
    signal = math.fsum(lost) / len(lost)
    return signal, signal + (1 - rate) * (CLIP * noise / BATCH) ** 2 * size


def figure_1(bench: Bench) -> Outcome:
    """Signal loss and mean square error of the gradient against the freeze rate, at three stages of training."""
    epochs, count = (4, 300) if bench.quick else (80, 1000)
    stages = {1: "after 1 epoch", epochs // 2: f"after {epochs // 2}", epochs: f"after {epochs}"}
    seed = bench.seeds[0]

    def compute() -> dict[str, Any]:
        plan = complete(methods.dp_sgd(clip=CLIP), epochs)
        noise, found = plan.noise, {}

        def visit(private: Private, step: int) -> None:
            stage = stages.get(step // PER_EPOCH)
            if stage is not None and stage not in found:
                gradients, stream = record_gradients(private.model, count), Streams.seeded(seed).mask
                found[stage] = [
                    errors(gradients, rate=rate, noise=noise, draws=3, stream=stream) for rate in RATES
                ]

        walk(plan, seed, visit)
        return found

    found = bench.remember({"figure": "freeze-1", "epochs": epochs, "records": count, "seed": seed}, compute)
    signal, mse = (
        [
            Curve(
                name=stage, x=RATES, y=tuple(found[stage][0][which] - value[which] for value in found[stage])
            )
            for stage in stages.values()
        ]
        for which in (0, 1)
    )
    better = [curve.y[-1] > 0 for curve in mse]
    worse = all(curve.y[-1] < 0 for curve in signal)
    status = Status.REPRODUCED if worse and all(better) else Status.PARTLY if any(better) else Status.NOT
    ends = "; ".join(f"{a.y[-1]:+.2g} and {b.y[-1]:+.2g} {a.name}" for a, b in zip(signal, mse, strict=True))
    return Outcome(
        unit="squared length of the error of the mean gradient",
        rows=tuple(
            Row(setting=f"{what}, none less 0.9, {curve.name}", ours=curve.y[-1])
            for what, curves in (("signal loss", signal), ("MSE", mse))
            for curve in curves
        ),
        status=status,
        summary=f"No freeze less freeze 0.9, signal loss and MSE: {ends}. The paper's curves: all - and all +.",
        figures=(
            frame("signal", "Signal loss, no freeze less freeze", "freeze rate", "difference", signal),
            frame("mse", "MSE, no freeze less freeze", "freeze rate", "difference", mse),
        ),
        guesses=(
            SETTING,
            "The true gradient is that of the records looked at. The clip of Figure 1 is not stated.",
        ),
    )


def figure_2(bench: Bench) -> Outcome:
    """Norms of records' gradients with and without freezing, in the first, the middle and the last epoch."""
    epochs, count = (4, 300) if bench.quick else (40, 1000)
    stages = {0: "first epoch", epochs // 2: f"epoch {epochs // 2 + 1}", epochs - 1: f"epoch {epochs}"}
    recipes = {
        "no freeze": methods.dp_sgd(clip=CLIP),
        "random freeze": methods.random_freeze(clip=CLIP, final_rate=RATE, cooling_epochs=epochs),
    }
    held = {name: _norms(bench, name, recipe, epochs, count, stages) for name, recipe in recipes.items()}
    rows: list[Row] = []
    figures: list[Figure] = []
    for index, stage in enumerate(stages.values()):
        curves = []
        for name in recipes:
            norms = torch.tensor(held[name][stage])
            spread = float(norms.clamp(min=1e-6).log10().std())
            note = f"median norm {float(norms.median()):.3f}, deviation of log10 {spread:.2f}"
            clipped = 100 * float((norms > CLIP).double().mean())
            rows.append(Row(setting=f"{name}, {stage}", ours=clipped, note=note))
            curves.append(_histogram(name, norms))
        figures.append(frame(f"norms-{index}", stage, "norm", "records", curves, logarithmic=True))
    without, frozen = rows[-2].ours, rows[-1].ours
    assert without is not None
    assert frozen is not None
    return Outcome(
        unit="records whose gradient is longer than the clip, %",
        rows=tuple(rows),
        status=Status.REPRODUCED if frozen < without else Status.NOT,
        summary=(
            f"In the last epoch {frozen:.1f} % of records are clipped with freezing at 0.9, {without:.1f} % without; "
            "in the first epoch the two are the same. The paper shows the same shift, without numbers."
        ),
        figures=tuple(figures),
        guesses=(SETTING,),
    )


def _norms(
    bench: Bench, name: str, recipe: Recipe, epochs: int, count: int, stages: dict[int, str]
) -> dict[str, Any]:
    """The norms that are clipped, of `count` records at each stage of a run."""
    seed = bench.seeds[0]

    def compute() -> dict[str, Any]:
        found: dict[str, Any] = {}

        def visit(private: Private, step: int) -> None:
            stage = stages.get(step // PER_EPOCH)
            if stage is not None and stage not in found:
                active = active_at(private, step).float()
                found[stage] = record_gradients(private.model, count).square().mv(active).sqrt().tolist()

        walk(complete(recipe, epochs), seed, visit)
        return found

    key = {"figure": "freeze-2", "epochs": epochs, "records": count, "seed": seed, "of": name}
    return bench.remember(key, compute)


def _histogram(name: str, norms: Tensor) -> Curve:
    heights = torch.histogram(norms, torch.tensor(EDGES)).hist.tolist()
    middles = [math.sqrt(low * high) for low, high in itertools.pairwise(EDGES)]
    shown = [(x, y) for x, y in zip(middles, heights, strict=True) if y]
    return Curve(name=name, x=tuple(x for x, _ in shown), y=tuple(y for _, y in shown))
