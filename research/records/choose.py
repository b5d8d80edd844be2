"""Choose settings on a split of the training records: four fifths train, every fifth scores. No test record is used."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import final

import torch
from torch.utils.data import TensorDataset

from discreet.auditing.trainings import TrainingSetup, fit
from discreet.data import Task
from discreet.runs import RunConfig
from discreet.runs.scoring import measure


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting that was tried, and its accuracy on the held-out fifth."""

    clip: float
    reach: float
    steps: int
    batch: int
    accuracy: float
    seconds: float


def split(task: Task, *, fifth: int = 4) -> Task:
    """The training records of a task as a task of their own; one fifth of them scores."""
    x, y = task.train.tensors
    scored = torch.arange(len(y)) % 5 == fifth
    train, test = (TensorDataset(x[part], y[part]) for part in (~scored, scored))
    return dataclasses.replace(task, train=train, test=test, records=int((~scored).sum()))


def attempt(config: RunConfig, task: Task, *, clip: float, reach: float, steps: int, batch: int, seed: int) -> Trial:
    """Train with these settings on a split; seeded, which is not private: the benchmark is public."""
    started = time.process_time()
    changed = dataclasses.replace(
        config, parameters=(("clip", clip),), learning_rate=reach / clip, steps=steps, batch=batch, seed=seed
    )
    setup = TrainingSetup.of(changed, task=task)
    streams = setup.streams()
    model = setup.build(streams)
    fit(setup, model, task.train, streams=streams)
    accuracy = measure(model, task.test)[0]
    seconds = time.process_time() - started
    return Trial(clip=clip, reach=reach, steps=steps, batch=batch, accuracy=accuracy, seconds=round(seconds, 1))
