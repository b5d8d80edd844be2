"""Heads and optimizers at one certified epsilon: `python -m research.heads [PROBLEM ...]`.

Every way of training tries four settings or more on a split of the training records (four fifths train, every fifth
scores), with one fixed seed. The best one is then run three or five times with the operating system's randomness, and
the test records are read. Rerun the command to resume. It writes results/heads.json and docs/heads.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from discreet import data, features
from discreet.core import check
from discreet.core.command import package_versions
from discreet.core.files import write_json, write_text
from discreet.core.plain import plain
from discreet.core.streams import Streams
from discreet.data import Task
from discreet.runs.comparison.values import Estimate
from discreet.runs.presets import DEFAULTS, PRESETS, Defaults
from discreet.runs.scoring import measure
from research.heads.page import page
from research.heads.ways import HEADS, NETWORKS, Problem, Setting, Way
from research.records.choose import split

FILE: Final = Path("results/heads.json")
PAGE: Final = Path("docs/heads.md")

Values = dict[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Ways to train on one dataset, at one epsilon, from the settings of its preset or of the data; `runs` of each."""

    data: str
    epsilon: float
    ways: tuple[Way, ...]
    known: Defaults
    runs: int = 5

    @property
    def name(self) -> str:
        return f"{self.data}-{self.epsilon:g}-{self.known.model}"

    def load(self) -> Task:
        task, known = data.load(self.data), self.known
        public = data.load(known.public_records) if known.public_records else None
        return features.extract(task, known.features, public=public) if known.features else task


def _preset(data: str, epsilon: float, name: str = "best") -> Defaults:
    (preset,) = (one for one in PRESETS if (one.name, one.data) == (name, data))
    return preset.at(epsilon)


# A quarter of the preset's records: the comparison is of ways, and two cores have to carry it.
_SHORT_FASHION: Final = dataclasses.replace(_preset("fashion-mnist", 1.0, "fast"), batch=4096, steps=120)
COMPARISONS: Final = (
    Comparison(data="adult", epsilon=1.0, ways=HEADS, known=_preset("adult", 1.0)),
    Comparison(data="digits", epsilon=3.0, ways=HEADS, known=_preset("digits", 3.0)),
    Comparison(data="fashion-mnist", epsilon=1.0, ways=HEADS[:6], known=_SHORT_FASHION, runs=3),
    Comparison(data="digits", epsilon=3.0, ways=NETWORKS, known=DEFAULTS["digits"], runs=3),
)


def main() -> None:
    known = {one.name: one for one in COMPARISONS}
    names = sys.argv[1:] or list(known)
    unknown = [name for name in names if name not in known]
    check.require(not unknown, f"problems of {', '.join(known)}", ", ".join(unknown), "choose some of these")
    for comparison in (known[name] for name in names):
        problem = Problem(task=comparison.load(), epsilon=comparison.epsilon, known=comparison.known)
        part = dataclasses.replace(problem, task=split(problem.task))
        for way in comparison.ways:
            _measure(comparison, way, problem, part)
            write_text(PAGE, page(_read()))  # a command that is stopped leaves the page of what there is


def _measure(comparison: Comparison, way: Way, problem: Problem, part: Problem) -> None:
    """The trials and the runs of a way that are missing."""

    grid = [dict(setting) for setting in way.grid(comparison.known)]

    def held() -> Values:
        found: Values = _read()["problems"].get(comparison.name, {}).get("ways", {}).get(way.name, {})
        return {"about": way.about, "trials": [], "runs": [], **found}

    for setting in grid:
        if setting not in [trial["setting"] for trial in held()["trials"]]:
            trial = {"setting": setting, **_run(way, part, setting, Streams.seeded(0))}
            _write(comparison, way, {**held(), "trials": [*held()["trials"], trial]})
    best = max(held()["trials"], key=lambda trial: trial["accuracy"])["setting"]
    if held().get("chosen", best) != best:  # a later trial was better
        _write(comparison, way, {**held(), "runs": []})
    for _ in range(len(held()["runs"]), comparison.runs):
        runs = [*held()["runs"], _run(way, problem, best, Streams.from_os())]
        accuracy = plain(Estimate.of([run["accuracy"] for run in runs]))
        _write(comparison, way, {**held(), "chosen": best, "runs": runs, "accuracy": accuracy})


def _run(way: Way, problem: Problem, setting: Setting, streams: Streams) -> Values:
    before = time.process_time()
    trained = way.train(problem, setting, streams)
    seconds = round(time.process_time() - before, 1)
    accuracy = measure(trained.model, problem.task.test)[0]
    print(problem.task.name, way.name, dict(setting), f"{100 * accuracy:.2f} %", f"{seconds} s", flush=True)
    return {"accuracy": accuracy, "epsilon": trained.epsilon, "cpu_seconds": seconds}


def _read() -> Values:
    held: Values = json.loads(FILE.read_text()) if FILE.is_file() else {}
    return {"format": "discreet.heads/1", "problems": {}, **held}


def _write(comparison: Comparison, way: Way, values: Values) -> None:
    held, known = _read(), comparison.known
    facts = {"data": comparison.data, "epsilon": comparison.epsilon, "model": known.model}
    facts |= {"features": list(known.features), "batch": known.batch, "steps": known.steps}
    ways = held["problems"].get(comparison.name, {}).get("ways", {})
    one = {**facts, "ways": {**ways, way.name: values}}
    versions = package_versions("discreet", "torch", "numpy", "scipy")
    problems = {**held["problems"], comparison.name: one}
    write_json(FILE, {**held, "command": "python -m research.heads", "versions": versions, "problems": problems})


if __name__ == "__main__":
    main()
