"""Comparisons without training, for the page."""

from __future__ import annotations

import dataclasses
import math
import random

from discreet.methods import METHODS
from discreet.report import Comparison, Entry, Excluded, Failure, Point, Provenance, Run

FINAL = {
    "dp-sgd": 0.934,
    "dp-adam": 0.951,
    "auto-s": 0.942,
    "psac": 0.945,
    "per-layer": 0.913,
    "adaptive-quantile": 0.938,
}


def run(name: str, seed: int | None, *, steps: int = 120, epsilon: float = 2.996, **fields: object) -> Run:
    """A learning curve that rises to about the method's final accuracy."""
    chance = random.Random(f"{name} {seed}")
    final, speed = FINAL.get(name, 0.9) + chance.gauss(0, 0.006), chance.uniform(0.05, 0.09)
    curve = []
    for step in range(6, steps + 1, 6):
        accuracy = final - (final - 0.1) * math.exp(-speed * step) + chance.gauss(0, 0.004)
        curve.append(
            Point(step=step, accuracy=round(accuracy * 360) / 360, epsilon=epsilon * math.sqrt(step / steps))
        )
    made = Run(
        seed=seed,
        accuracy=curve[-1].accuracy,
        epsilon=epsilon,
        claimed=None,
        accountant="PLD",
        assumptions=("each record is sampled independently",),
        steps=steps,
        seconds=chance.uniform(6, 9),
        noise=2.913,
        curve=tuple(curve),
        randomness="keyed by the operating system" if seed is None else "seeded: not private",
        directory=f"{name}/{seed}",
        ledger="ab12" * 16,
        config="cd34" * 16,
    )
    return dataclasses.replace(made, **fields)


def entry(name: str, /, seeds: tuple[int | None, ...] = (0, 1, 2), **fields: object) -> Entry:
    method = METHODS[name]
    made = Entry(
        name=name,
        method=name,
        summary=method.summary,
        guarantee=method.guarantee,
        parameters=(("clip", 0.2),),
        optimizer="adam" if method.adam else "sgd",
        learning_rate=0.01 if method.adam else 10.0,
        average=0.9,
        runs=tuple(run(name, seed) for seed in seeds),
    )
    return dataclasses.replace(made, **fields)


def comparison(entries: tuple[Entry, ...] | None = None, **fields: object) -> Comparison:
    """Six methods, three seeds, one budget."""
    made = Comparison(
        data="digits",
        model="cnn-digits",
        parameters=14_698,
        records=1437,
        test_records=360,
        batch=256,
        steps=120,
        epsilon=3.0,
        delta=1e-5,
        relation="add/remove",
        sampling="poisson",
        seeds=(0, 1, 2),
        repeats=3,
        public=True,
        entries=Comparison.ranked(entries or tuple(entry(name) for name in FINAL)),
        excluded=(),
        together=13.72,
        provenance=Provenance(
            command="discreet compare --data digits --epsilon 3 --delta 1e-5 --out runs/compare",
            created="2026-11-15 20:00 UTC",
            versions=(("python", "3.11.7"), ("discreet", "0.1.0"), ("torch", "2.13.0")),
            checksum="8f26b2bd" * 8,
            constants="x / 16, the format's largest value",
        ),
    )
    return dataclasses.replace(made, **fields)


def failing() -> Comparison:
    """One row that failed throughout, one that lost a seed, one method without a certificate."""
    lost = entry("psac", (0, 1), failures=(Failure(seed=2, reason="OSError: no space left on device"),))
    refused = "Expected clip > 0, got clip=-1. Remedy: the clip bounds each record's norm."
    broken = entry("per-layer", (), failures=tuple(Failure(seed=seed, reason=refused) for seed in (0, 1, 2)))
    rest = tuple(entry(name) for name in ("dp-sgd", "dp-adam"))
    excluded = (Excluded(method="geodp", guarantee="claimed only: no proof for the direction"),)
    return comparison((*rest, lost, broken), excluded=excluded)
