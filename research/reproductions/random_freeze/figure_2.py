"""Random freeze (paper 001), Figure 2: what freezing does to the norms of per-record gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import torch
from torch import Tensor

from discreet import methods
from discreet.stages.plan import Recipe
from discreet.training.private import Private
from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Figure, Outcome, Row, Status
from research.reproductions.random_freeze.observed_run import (
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

EDGES: Final = tuple(10 ** (k / 8) for k in range(-24, 17))
"""Bin edges of the histograms of norms."""


def figure_2(bench: Bench) -> Outcome:
    """Norms of per-record gradients with and without freezing, in the first, the middle and the last epoch."""
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


def _norms(bench: Bench, name: str, recipe: Recipe, epochs: int, count: int, stages: dict[int, str]) -> dict[str, Any]:
    """The norms before clipping of `count` records at each stage of a run."""
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
