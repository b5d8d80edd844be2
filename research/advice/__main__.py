"""Measure the advised settings: `python -m research.advice --out results/advice.json [--tasks adult,digits]`.

`--advised adult,digits` measures instead what `discreet advise` says to somebody with records of this kind, without the
preset of the dataset, at the budgets of results/records.json. `--choose image` tries settings on splits of the training
records, by which defaults are chosen.

Each task is trained with its settings at three budgets, and at epsilon 3 with one setting changed at a time. All data
is public and all runs are seeded. A task that the file already holds is kept unless it is named.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from discreet import runs
from discreet.core.command import package_versions
from discreet.core.files import write_json
from discreet.data import published_records
from discreet.runs.defaults import load_task, settle
from discreet.runs.planning.advisor import KINDS, RULES, Wanted, advise
from discreet.runs.reference import majority, without_privacy
from discreet.runs.training import train_on
from research.advice.choose import CHOICES, chosen
from research.advice.public_tables import adult_table

BUDGETS: Final = (1.0, 3.0, 8.0)
MIDDLE: Final = 3.0
RUNS: Final = {"digits": 5, "adult": 3, "reviews": 3}  # of the advised settings; digits has 360 test records
TASKS: Final = {
    "adult": {"data": "adult", "preset": "best"},
    "digits": {"data": "digits", "preset": "best"},
    "reviews": {"data": "reviews", "preset": "best"},
    "digits-network": {"data": "digits", "model": "cnn-digits"},
}


def trained(settings: dict[str, Any]) -> float:
    """The test accuracy of one seeded run."""
    with tempfile.TemporaryDirectory() as folder:
        config = runs.RunConfig(**settings, delta=1e-5, seed=0, out=f"{folder}/run", eval_every=10_000)
        return runs.train(config).test_accuracy


def changed(name: str, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings with one of them halved or doubled, or its clip a third or three times as large."""
    config = runs.RunConfig(**settings, epsilon=MIDDLE, delta=1e-5, seed=0, out="unused")
    told, _ = settle(config, load_task(config))
    assert told.batch is not None
    assert told.steps is not None
    assert told.learning_rate is not None
    clip, rate = dict(told.parameters)["clip"], told.learning_rate
    fixed = {"batch": told.batch, "steps": told.steps, "learning_rate": rate, "parameters": (("clip", clip),)}
    return {
        "batch / 2": fixed | {"batch": told.batch // 2},
        "batch * 2": fixed | {"batch": 2 * told.batch},
        "steps / 2": fixed | {"steps": told.steps // 2},
        "steps * 2": fixed | {"steps": 2 * told.steps},
        "clip / 3": fixed | {"parameters": (("clip", clip / 3),), "learning_rate": 3 * rate},
        "clip * 3": fixed | {"parameters": (("clip", 3 * clip),), "learning_rate": rate / 3},
        "learning rate / 2": fixed | {"learning_rate": rate / 2},
        "learning rate * 2": fixed | {"learning_rate": 2 * rate},
    }


def measured(name: str) -> dict[str, Any]:
    """One task: accuracies by budget, the effect of each change, and what they are read against."""
    settings: dict[str, Any] = dict(TASKS[name])
    config = runs.RunConfig(**settings, epsilon=MIDDLE, delta=1e-5, out="unused")
    task = load_task(runs.complete(config))
    told, plan = settle(config, task)
    found = {f"{epsilon:g}": trained({**settings, "epsilon": epsilon}) for epsilon in BUDGETS}
    near = {} if "network" in name else changed(name, settings)
    horizon = plan.horizon
    return {
        "kind": "network" if "network" in name else KINDS[settings["data"]],
        "data": settings["data"],
        "records": horizon.records,
        "settings": {"batch": told.batch, "steps": horizon.steps, "learning rate": told.learning_rate}
        | dict(told.parameters),
        "accuracy": found,
        "changed at epsilon 3": {
            change: trained({**settings, **values, "epsilon": MIDDLE}) for change, values in near.items()
        },
        "without privacy": without_privacy(dataclasses.replace(told), task, passes=20),
        "majority class": majority(task),
    }


def as_advised(data: str, epsilon: float, folder: Path) -> dict[str, Any]:
    """The settings of a run that the advice for the kind of a dataset gives."""
    kind, records = KINDS[data], published_records(data)
    assert records is not None
    found = advise(Wanted(records=records, epsilon=epsilon, delta=1e-5, data=kind))
    settings: dict[str, Any] = {"batch": found.batch, "steps": found.steps, "learning_rate": found.learning_rate}
    settings |= {"parameters": (("clip", found.clip),), "schedule": found.schedule, "average": found.average}
    settings |= {"momentum": found.momentum, "epsilon": epsilon, "delta": 1e-5}
    if kind == "table":
        return {**settings, **adult_table(folder), "records": records}
    if kind == "text":
        return {**settings, "data": data, "model": "head", "features": ("minilm",)}
    words = RULES[kind].flags.split()
    public = words[words.index("--public-records") + 1]
    features = (words[words.index("--features") + 1],)
    return {**settings, "data": data, "model": "head", "features": features, "public_records": public}


def advised(name: str) -> dict[str, Any]:
    """The accuracy of the advised settings beside the best known: for a dataset, or one record as fashion-mnist-3."""
    records = json.loads(Path("results/records.json").read_text(encoding="utf-8"))["records"]
    found = {}
    for record in (one for key, one in records.items() if name in (key, one["data"])):
        with tempfile.TemporaryDirectory() as folder:
            settings = as_advised(record["data"], record["epsilon"], Path(folder))
            task = load_task(runs.complete(runs.RunConfig(**settings, out=f"{folder}/run")))
            scores = []
            for seed in range(RUNS.get(name, 1)):
                config = runs.RunConfig(**settings, seed=seed, out=f"{folder}/{seed}", eval_every=10_000)
                scores.append(train_on(task, config).test_accuracy)
        shown = {key: settings[key] for key in ("batch", "steps", "learning_rate")} | dict(settings["parameters"])
        best = record["accuracy"]["mean"]
        found[f"{record['epsilon']:g}"] = {"settings": shown, "accuracy": scores, "best known": best}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--advised", default="")
    parser.add_argument("--choose", default="", help=", ".join(CHOICES))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    part, measurement, names = ("tasks", measured, asked.tasks)
    if asked.advised:
        part, measurement, names = ("advised", advised, asked.advised)
    elif asked.choose:
        part, measurement, names = ("chosen", chosen, asked.choose)
    for name in names.split(","):
        found = measurement(name)
        held = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
        held.setdefault(part, {})[name] = found
        print(name, json.dumps(held[part][name]), flush=True)
        versions = package_versions("discreet", "torch", "numpy")
        command = f"python -m research.advice {shlex.join(sys.argv[1:])}"
        write_json(asked.out, {**held, "command": command, "seed": 0, "versions": versions}, indent=1)


if __name__ == "__main__":
    main()
