"""The search for learning rate and clip before a comparison: on public stand-in data, never on the private records.

The trials are a comparison of their own, on four fifths of the stand-in's training records and scored on the rest:
test records take no part. So trials resume, run side by side, and fail as rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.core import check
from discreet.methods import METHODS
from discreet.runs.comparison.candidates import Candidate
from discreet.runs.comparison.values import Choice, Comparison, Entry, Tuned, settings_in_words
from discreet.runs.comparison.values import Setting as Value
from discreet.runs.search import Grid, Setting

if TYPE_CHECKING:
    from discreet.data import Task
    from discreet.runs.comparison.compare import CompareSettings, Listener

FOLDER = "tuning"
LONGEST = 300
"""Steps of a trial at most."""
SEED = 20_000
"""Of all trials: public data, and a seed that comparisons do not use by default."""
_KEPT, _OF = 4, 5


def search(
    settings: CompareSettings, listener: Listener, grid: Grid | None = None
) -> tuple[CompareSettings, Tuned]:
    """The settings with the rows that scored best, and what was tried.

    Guarantee: no trial sees a record of `settings.data` unless these are public, so nothing is to be charged.
    """
    from discreet.runs.comparison.rounds import Rounds

    check_stand_in(settings)
    target = Rounds(settings.at(settings.epsilon), listener, root=settings.out)
    stand_in, place = _load(settings), settings.out / FOLDER
    held = _split(stand_in, place / "stand-in.npz")
    fits = (stand_in.shape, stand_in.classes) == (target.task.shape, target.task.classes)
    trials = {row.name: _trials(row, settings, grid or Grid()) for row in settings.chosen}
    trial_settings = dataclasses.replace(
        settings,
        out=place,
        others=(),
        tune_on=None,
        truth=None,
        data=str(held.path),
        data_dir=None,
        download=False,
        classes=stand_in.classes,
        records=held.records,
        public_data=True,
        model=target.shared.model if fits else _usual_model(settings),
        batch=int(min(target.horizon.size.batch, held.records // 4)),
        epochs=None,
        steps=min(target.horizon.steps, LONGEST),
        rows=tuple(trial for row in trials.values() for trial in row),
        seeds=(SEED,),
    )
    found = Rounds(trial_settings, listener, root=place).comparison()
    scores = {entry.name: entry for entry in found.entries}
    best = {name: _best([scores[t.name] for t in row if t.name in scores]) for name, row in trials.items()}
    rows = tuple(_with(row, best[row.name]) for row in settings.chosen)
    return dataclasses.replace(settings, rows=rows), _told(str(settings.tune_on), found, best, held)


def check_stand_in(settings: CompareSettings) -> None:
    """Refuse to tune on the private records themselves: each trial would be a release that nobody pays for."""
    from discreet import data as tasks

    assert settings.tune_on is not None
    same = settings.tune_on == settings.data or (
        settings.data.endswith(".npz")
        and settings.tune_on.endswith(".npz")
        and Path(settings.tune_on).resolve() == Path(settings.data).resolve()
    )
    public = settings.data in tasks.DATASETS or settings.public_data
    check.require(
        not same or public,
        "public stand-in data to tune on",
        f"{settings.tune_on}, the private records",
        "every trial on them would cost privacy: name a published dataset, e.g. --tune-on digits",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Split:
    """The stand-in's file, and how many of its records train and score."""

    path: Path
    records: int
    held_out: int


def _split(task: Task, path: Path) -> _Split:
    """Every fifth training record scores, the others train; the same file each time."""
    import numpy as np

    x, y = (tensor.numpy() for tensor in task.train.tensors)
    scored = np.arange(len(y)) % _OF == _KEPT
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name("stand-in.partial.npz")
        np.savez(partial, x_train=x[~scored], y_train=y[~scored], x_test=x[scored], y_test=y[scored])
        partial.replace(path)
    held_out = int(scored.sum())
    return _Split(path=path, records=len(y) - held_out, held_out=held_out)


def _usual_model(settings: CompareSettings) -> str:
    """For a stand-in of another shape, on which the comparison's model cannot run."""
    from discreet.runs.defaults import defaults_for

    return defaults_for(str(settings.tune_on)).model


def _load(settings: CompareSettings) -> Task:
    from discreet import data as tasks

    name = str(settings.tune_on)
    if name.endswith(".npz"):
        return tasks.load(name, classes=settings.classes, public=True)
    return tasks.load(name, data_dir=settings.data_dir, download=settings.download)


def _trials(row: Candidate, settings: CompareSettings, grid: Grid) -> tuple[Candidate, ...]:
    """The grid around a row, with the momentum and the average that the row will run with."""
    from discreet import runs
    from discreet.runs.defaults import defaults_for

    usual = defaults_for(settings.data)
    completed = runs.complete(
        runs.RunConfig(
            out="unused",
            data=settings.data,
            method=row.method,
            parameters=row.parameters,
            epsilon=settings.epsilon,
            delta=settings.delta,
        )
    )
    parameters, adam = dict(completed.parameters), METHODS[row.method].adam
    bound = METHODS[row.method].recipe(**parameters).queries(1.0)[0].sensitivity
    start = row.learning_rate or (usual.adam_rate if adam else usual.reach / bound)
    points = grid.around(learning_rate=start, clip=parameters.get("clip"), adaptive=adam)
    return tuple(
        Candidate(
            method=row.method,
            name=f"{row.name}.{number}",
            parameters=_parameters(parameters, point),
            learning_rate=point.learning_rate,
            momentum=usual.momentum if row.momentum is None else row.momentum,
            average=usual.average if row.average is None else row.average,
        )
        for number, point in enumerate(points, start=1)
    )


def _parameters(parameters: Mapping[str, Value], point: Setting) -> tuple[tuple[str, Value], ...]:
    changed = parameters if point.clip is None else {**parameters, "clip": point.clip}
    return tuple(sorted(changed.items()))


def _best(trials: list[Entry]) -> Entry | None:
    """The finished trial with the best score; the earlier one of equals."""
    finished = [trial for trial in trials if trial.accuracy is not None]
    return max(finished, key=lambda trial: trial.accuracy.mean if trial.accuracy else 0.0, default=None)


def _with(row: Candidate, best: Entry | None) -> Candidate:
    if best is None:
        return row
    return dataclasses.replace(row, parameters=best.parameters, learning_rate=best.learning_rate)


def _told(data: str, found: Comparison, best: dict[str, Entry | None], held: _Split) -> Tuned:
    choices = (
        Choice(name=name, settings=settings_in_words(entry), score=entry.accuracy.mean)
        for name, entry in best.items()
        if entry is not None and entry.accuracy is not None
    )
    return Tuned(
        data=data,
        model=found.model,
        trials=sum(len(entry.runs) for entry in found.entries),
        records=held.records,
        held_out=held.held_out,
        choices=tuple(choices),
    )
