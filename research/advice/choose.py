"""Choose defaults on splits of the training records: four fifths train, one fifth scores. No test record is used."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from torch.utils.data import TensorDataset

from discreet import runs
from discreet.data import Task
from discreet.runs.defaults import load_task
from discreet.runs.training import train_on
from research.advice.public_tables import adult_table
from research.records.choose import split

EPSILON: Final = 3.0
FIFTHS: Final = (2, 3, 4)


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings of a task, and what is tried around them.

    settings  as `RunConfig` takes them
    changes   the values that are tried for each setting: `clip`, `reach` (learning rate times clip) and fields of
              `RunConfig`
    records   how many of the training records are used; None: all
    """

    settings: dict[str, Any]
    changes: dict[str, tuple[Any, ...]]
    records: int | None = None

    def grid(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*self.changes.values()):
            yield dict(zip(self.changes, values, strict=True))


_NUMBERS: Final = {"clip": (0.5, 1.0, 2.0, 4.0), "reach": (0.65, 1.3, 2.6, 5.2)}  # reach: times the columns

CHOICES: Final = {
    "digits-network": Choice(
        settings={"data": "digits"},
        changes={
            "model": ("cnn-digits", "mlp"),
            "batch": (256, 512),
            "steps": (150, 300),
            "average": (0.97,),
            "clip": (0.2,),
            "reach": (0.8,),
        },
    ),
    "image": Choice(
        settings={"data": "digits", "preset": "best"},
        changes={
            "public_records": ("cifar10", "mnist", "fashion-mnist"),
            "clip": (0.1, 0.3),
            "reach": (1.25, 2.5, 5.0),
        },
    ),
    "adult-hours": Choice(settings={"label": "hours-per-week"}, changes=_NUMBERS),
    "adult-age": Choice(settings={"label": "age"}, changes=_NUMBERS),
} | {
    f"{name}-{records}": Choice(settings={"label": label}, changes=changes, records=records)
    for name, label, changes in (
        ("adult-income", "income", {"clip": (0.3,), "reach": (2.0, 5.0, 12.0, 30.0)}),
        ("adult-age", "age", {"clip": (4.0,), "reach": (0.65, 1.3, 2.6, 5.2)}),
    )
    for records in (1500, 6000)
}


def chosen(name: str) -> dict[str, Any]:
    """Every setting of the grid with its score on each fifth, and the one with the best mean."""
    choice = CHOICES[name]
    with tempfile.TemporaryDirectory() as folder:
        trials = [{**values, "scores": scores} for values, scores in _tried(choice, Path(folder))]
    best = max(trials, key=lambda trial: sum(trial["scores"]))
    return {"settings": choice.settings, "epsilon": EPSILON, "fifths": FIFTHS, "trials": trials, "best": best}


def _tried(choice: Choice, folder: Path) -> Iterator[tuple[dict[str, Any], list[float]]]:
    """Settings and their scores on each fifth, seeded: the records are public."""
    shared = {"epsilon": EPSILON, "delta": 1e-5, "out": "unused", **choice.settings}
    columns, tasks = 1, {}
    if "label" in shared:  # a public table
        shared |= {**adult_table(folder, label=shared["label"]), "records": 1}
        if shared["label"] != "income":
            shared["task"] = "regression"
            columns = len(json.loads(shared["schema"])) - 1
    for values in choice.grid():
        fields = {name: value for name, value in values.items() if name not in ("clip", "reach")}
        public, clip = values.get("public_records"), values["clip"]
        rate = values["reach"] / columns / clip
        config = runs.RunConfig(**shared, **fields, parameters=(("clip", clip),), learning_rate=rate)
        if public not in tasks:
            tasks[public] = _first(load_task(runs.complete(config)), choice.records)
        scores = []
        for fifth in FIFTHS:
            part = split(tasks[public], fifth=fifth)
            own = part.records if "label" in shared else None
            out = f"{tempfile.mkdtemp(dir=folder)}/run"
            one = dataclasses.replace(config, records=own, seed=fifth, out=out, eval_every=10_000)
            scores.append(train_on(part, one).test_accuracy)
        print(values, [round(score, 4) for score in scores], flush=True)
        yield values, scores


def _first(task: Task, records: int | None) -> Task:
    x, y = task.train.tensors
    return dataclasses.replace(task, train=TensorDataset(x[:records], y[:records]))
