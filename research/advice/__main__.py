"""Measure the advised settings: `python -m research.advice --out results/advice.json [--tasks adult,digits]`.

Each task is trained with its settings at three budgets, and at epsilon 3 with one setting changed at a time. All data
is public and all runs are seeded. A task that the file already holds is kept unless it is named.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from discreet import runs
from discreet.core.command import command_line, package_versions
from discreet.core.files import write_json
from discreet.runs.defaults import load_task, settle
from discreet.runs.planning.advisor import KINDS
from discreet.runs.reference import majority, without_privacy

BUDGETS: Final = (1.0, 3.0, 8.0)
MIDDLE: Final = 3.0
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    held = json.loads(asked.out.read_text(encoding="utf-8"))["tasks"] if asked.out.exists() else {}
    for name in asked.tasks.split(","):
        held[name] = measured(name)
        print(name, json.dumps(held[name]), flush=True)
        versions = package_versions("discreet", "torch", "numpy")
        write_json(asked.out, {"command": command_line(), "seed": 0, "versions": versions, "tasks": held}, indent=1)


if __name__ == "__main__":
    main()
