"""Comparisons without training, for the page."""

from __future__ import annotations

import dataclasses
import math
import random
from types import MappingProxyType

from discreet.methods import METHODS
from discreet.runs.audit_rows import AuditRow
from discreet.runs.comparison.values import (
    BudgetResult,
    Comparison,
    Excluded,
    Failure,
    MethodResult,
    PlanTimeline,
    Point,
    Provenance,
    TrainedRun,
    TunedSetting,
    TuningSummary,
)

FINAL = {
    "dp-sgd": 0.934,
    "dp-adam": 0.951,
    "auto-s": 0.942,
    "psac": 0.945,
    "per-layer": 0.913,
    "adaptive-quantile": 0.938,
}


def run(name: str, seed: int | None, *, steps: int = 120, epsilon: float = 2.996, **fields: object) -> TrainedRun:
    """A learning curve that rises to about the method's final accuracy."""
    chance = random.Random(f"{name} {seed}")
    final, speed = FINAL.get(name, 0.9) + chance.gauss(0, 0.006), chance.uniform(0.05, 0.09)
    curve = []
    for step in range(6, steps + 1, 6):
        accuracy = final - (final - 0.1) * math.exp(-speed * step) + chance.gauss(0, 0.004)
        curve.append(Point(step=step, accuracy=round(accuracy * 360) / 360, epsilon=epsilon * math.sqrt(step / steps)))
    made = TrainedRun(
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


def entry(name: str, /, seeds: tuple[int | None, ...] = (0, 1, 2), **fields: object) -> MethodResult:
    method = METHODS[name]
    made = MethodResult(
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


def comparison(entries: tuple[MethodResult, ...] | None = None, **fields: object) -> Comparison:
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


def full() -> Comparison:
    """Three budgets, masks, a decaying noise, a bounded domain, a row of one point, an audit and a search."""
    steady = PlanTimeline(noise=((0, 2.913),), density=((0, 1.0),))
    masked = PlanTimeline(noise=((0, 2.913),), density=tuple((6 * e, 1 - 0.045 * e) for e in range(20)))
    decaying = PlanTimeline(noise=tuple((6 * e, 4 / (e + 1) ** 0.25) for e in range(20)), density=((0, 1.0),))
    bounded = PlanTimeline(noise=((0, 5.0),), density=((0, 1.0),), diameter=2.5, visible=False)
    last = run("dpsgd-dc", 0)
    courses = {"random-freeze": masked, "d2p-sgd": decaying}
    names = (*FINAL, *courses)
    rows = [entry(name, course=courses.get(name, steady)) for name in names]
    only = dataclasses.replace(last, curve=last.curve[-1:])
    rows.append(entry("dp-sgd", name="last-iterate", course=bounded, runs=(only,)))
    others = tuple(
        BudgetResult(epsilon=epsilon, repeats=1, entries=tuple(_shifted(row, drop) for row in rows))
        for epsilon, drop in ((1.0, 0.08), (8.0, -0.02))
    )
    truth = (
        AuditRow(
            method="dp-sgd",
            parameters=MappingProxyType({"noise": 1.0, "delta": 0.01}),
            certified=2.32,
            claimed=None,
            analytic=None,
            audited=2.067,
            confidence=0.999,
        ),
        AuditRow(
            method="GeoDP as published",
            parameters=MappingProxyType({"beta": 1, "how": "one step"}),
            certified=math.inf,
            claimed=4.85,
            analytic=249.0,
            audited=7.81,
            confidence=0.999,
        ),
    )
    unfit = Excluded(
        method="dpsgd-gc", guarantee="certified: last iterate", reason="Expected full batches, got Poisson."
    )
    tuned = TuningSummary(
        data="digits",
        model="cnn-digits",
        trials=42,
        records=1149,
        held_out=288,
        choices=(TunedSetting(name="dp-sgd", settings="clip 0.2, sgd, learning rate 4", score=0.94),),
    )
    return comparison(
        tuple(rows),
        others=others,
        truth=truth,
        truth_source="truth-table.json",
        tuned=tuned,
        excluded=(unfit, Excluded(method="geodp", guarantee="no proven guarantee")),
    )


def _shifted(row: MethodResult, drop: float) -> MethodResult:
    """The first run of a row, at another budget."""
    one = dataclasses.replace(row.runs[0], accuracy=row.runs[0].accuracy - drop)
    return dataclasses.replace(row, runs=(one,))


HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "' onmouseover='window.hacked = 1",
    "</style></svg><b>&amp;{{ 7 * 7 }}{% raw %}",
    "javascript:window.hacked=1 \x00 \ud800 \u202e",
)


def hostile() -> Comparison:
    """Every string that could come from outside is an attack."""
    one, two, three, four, five = HOSTILE
    one_run = run("dp-sgd", 0, accountant=one, assumptions=(two,), randomness=three)
    one_run = dataclasses.replace(one_run, directory=four, ledger=five, config=one)
    row = entry(
        "dp-sgd",
        runs=(one_run,),
        name=one,
        summary=two,
        guarantee=three,
        parameters=((four, one), (two, 1.0)),
        optimizer=five,
        failures=(Failure(seed=7, reason=one), Failure(seed=None, reason=two)),
    )
    provenance = Provenance(
        command=one, created=two, versions=((three, four), (five, one)), checksum=two, constants=three
    )
    found = comparison((row, entry("psac", name=two)), provenance=provenance)
    return dataclasses.replace(
        found, data=one, model=two, sampling=three, relation=four, excluded=(Excluded(method=one, guarantee=two),)
    )
