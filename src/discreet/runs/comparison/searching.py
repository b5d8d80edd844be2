"""The search for learning rate and clipping norm before a comparison, on public stand-in data.

The trials are a comparison of their own: they train on four fifths of the stand-in's training records and are scored on
the rest. Test records are not used. So trials can be resumed, run in parallel, and fail one by one.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from discreet import runs
from discreet.core import check
from discreet.core.files import replace_file
from discreet.core.own_files import is_own, require_classes
from discreet.core.plain import from_plain
from discreet.data import DATASETS, Task
from discreet.methods import METHODS
from discreet.runs.comparison.compare import Candidate, CompareSettings, Listener
from discreet.runs.comparison.runner import ComparisonRunner
from discreet.runs.comparison.values import FORMAT, MethodResult, TunedSetting, TuningSummary, settings_in_words
from discreet.runs.defaults import features_of, load_task, public_of, usual_learning_rate
from discreet.runs.folder import read_json
from discreet.runs.presets import defaults_for, usual

FOLDER, STAND_IN = "tuning", "stand-in.npz"
# Of stand-in data, which have no owners.
_NO_TABLE: dict[str, Any] = dict.fromkeys(("label", "schema", "test", "hold_out", "task", "unit", "per_user"))
LONGEST = 300  # the most steps of a trial
SEED = 20_000  # the seed of all trials, which use public data; comparisons do not use it by default
# Factors on the learning rate and the clipping norm, the likeliest first: a search with fewer trials takes the first.
RATES, CLIPS = (1.0, 2.0, 0.5), (1.0, 4.0)
MORE_RATES = (1.0, 2.0, 0.5, 4.0, 0.25, 0.125)  # of methods without a clipping norm: as many trials


def search(settings: CompareSettings, listener: Listener) -> tuple[CompareSettings, TuningSummary]:
    """The settings with the best rows, and a summary of the trials.

    Guarantee: no trial uses a record of `settings.data` unless these are public, so nothing is charged.
    """
    check_stand_in(settings)
    place = settings.out / FOLDER
    target = ComparisonRunner(settings.at(settings.epsilon), listener, root=settings.out)
    public = _on_stand_in(settings)
    stand_in = load_task(public)
    records, held_out = _split(stand_in, place / STAND_IN)
    trials = {row.name: _trials(row, settings) for row in settings.chosen}
    rows = tuple(trial for row in trials.values() for trial in row)
    trial_settings = _for_trials(settings, target, public, stand_in, records=records, rows=rows)
    found = ComparisonRunner(trial_settings, listener, root=place).comparison()
    best: dict[str, MethodResult] = {}
    for result in found.finished:  # they are ranked
        best.setdefault(result.name.rpartition(".")[0], result)
    chosen = tuple(_tuned(row, best.get(row.name)) for row in settings.chosen)
    summary = TuningSummary(
        data=public.data,
        model=found.model,
        trials=sum(len(entry.runs) for entry in found.entries),
        records=records,
        held_out=held_out,
        choices=tuple(
            TunedSetting(name=name, settings=settings_in_words(entry), score=entry.accuracy.mean)
            for name in trials
            if (entry := best.get(name)) is not None and entry.accuracy is not None
        ),
    )
    return dataclasses.replace(settings, rows=chosen), summary


def found_before(settings: CompareSettings) -> tuple[CompareSettings, TuningSummary]:
    """The settings that the search of an earlier comparison chose, by its report, and the summary of its trials.

    Guarantee: like `search`, it reads no record; a search on the private records is refused.
    """
    assert settings.tuned_in is not None
    report = read_json(settings.tuned_in)
    held, remedy = report.get("tuned"), "name the report.json of a comparison with --tune-on"
    check.require(report.get("format") == FORMAT, f"a report of format {FORMAT}", f"{settings.tuned_in}", remedy)
    check.require(bool(held), "a comparison that searched its settings", f"none in {settings.tuned_in}", remedy)
    tuned: TuningSummary = from_plain(TuningSummary, held)
    check_stand_in(dataclasses.replace(settings, tune_on=tuned.data, tuned_in=None))
    entries = {entry["name"]: entry for entry in report["entries"]}
    known = {choice.name for choice in tuned.choices} & entries.keys()
    missing = [row.name for row in settings.chosen if row.name not in known]
    remedy = "name the others with --methods, or search anew with --tune-on"
    check.require(not missing, f"settings for {', '.join(missing)}", f"none in {settings.tuned_in}", remedy)
    rows = tuple(_as_before(row, entries[row.name]) for row in settings.chosen)
    return dataclasses.replace(settings, rows=rows), tuned


def _as_before(row: Candidate, entry: Mapping[str, Any]) -> Candidate:
    parameters = tuple((str(name), _setting(value)) for name, value in entry["parameters"])
    return dataclasses.replace(row, parameters=parameters, learning_rate=float(entry["learning_rate"]))


def _setting(value: Any) -> Any:
    """A setting as it was before it was written: JSON has no tuples."""
    return tuple(map(_setting, value)) if isinstance(value, list) else value


def _tuned(row: Candidate, best: MethodResult | None) -> Candidate:
    if best is None:
        return row
    return dataclasses.replace(row, parameters=best.parameters, learning_rate=best.learning_rate)


def _on_stand_in(settings: CompareSettings) -> CompareSettings:
    """The comparison on the stand-in data, with the features of the private records."""
    data = str(settings.tune_on)
    return dataclasses.replace(
        settings,
        data=data,
        classes=settings.classes if data.endswith(".npz") else None,
        records=None,
        public_data=True,
        preset=None,
        **_NO_TABLE,
        features=features_of(settings),
        public_records=public_of(settings),
    )


def _for_trials(
    settings: CompareSettings,
    target: ComparisonRunner,
    public: CompareSettings,
    stand_in: Task,
    *,
    records: int,
    rows: tuple[Candidate, ...],
) -> CompareSettings:
    """The comparison of all trials, on the file that `_split` wrote."""
    place = settings.out / FOLDER
    fits = (stand_in.shape, stand_in.classes) == (target.task.shape, target.task.classes)
    takes_any_width = bool(public.features)  # a head
    return dataclasses.replace(
        settings,
        out=place,
        others=(),
        tune_on=None,
        truth=None,
        data=str(place / STAND_IN),
        **_NO_TABLE,
        preset=None,
        features=(),
        schedule=settings.schedule or usual(settings).schedule,
        data_dir=None,
        download=False,
        classes=stand_in.classes,
        records=records,
        public_data=True,
        model=target.shared.model if fits or takes_any_width else defaults_for(public.data).model,
        batch=int(min(target.horizon.size.batch, records // 4)),
        epochs=None,
        steps=min(target.horizon.steps, LONGEST),
        rows=rows,
        seeds=(SEED,),
        accept_large_delta=settings.accept_large_delta or settings.delta >= 1 / records,  # they are public
    )


def check_stand_in(settings: CompareSettings) -> None:
    """Refuse to tune on the private records: each trial would be a release that is not charged."""
    assert settings.tune_on is not None
    require_classes(settings.task, "--tune-on")
    both = (settings.tune_on, settings.data)
    files = all(map(is_own, both))
    same = len(set(both)) == 1 or (files and len({Path(name).resolve() for name in both}) == 1)
    public = settings.data in DATASETS or settings.public_data
    got = f"{settings.tune_on}, the private records"
    remedy = "every trial on them would cost privacy: name a published dataset, e.g. --tune-on digits"
    check.require(not same or public, "public stand-in data to tune on", got, remedy)


def _split(task: Task, path: Path) -> tuple[int, int]:
    """Write every fifth training record as a test record and the others for training; how many train and score.

    The file is the same each time.
    """
    x, y = (tensor.numpy() for tensor in task.train.tensors)
    scored = np.arange(len(y)) % 5 == 4
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {"x_train": x[~scored], "y_train": y[~scored], "x_test": x[scored], "y_test": y[scored]}
        replace_file(path, lambda file: np.savez(file, **arrays))
    return int((~scored).sum()), int(scored.sum())


def _trials(row: Candidate, settings: CompareSettings) -> tuple[Candidate, ...]:
    """The grid around a row, with the momentum and the average that the row will run with."""
    known = usual(settings)
    config = runs.complete(
        runs.RunConfig(
            out="unused",
            data=settings.data,
            epsilon=settings.epsilon,
            delta=settings.delta,
            records=settings.records,
            preset=settings.preset,
            method=row.method,
            parameters=row.parameters,
        )
    )
    parameters, method = dict(config.parameters), METHODS[row.method]
    bounder = method.recipe(**parameters).bounder
    start = row.learning_rate or usual_learning_rate(known, bounder, adam=method.adam)
    clip = parameters.get("clip")
    factors = itertools.product((1.0,), MORE_RATES) if clip is None else itertools.product(CLIPS, RATES)
    return tuple(
        Candidate(
            method=row.method,
            name=f"{row.name}.{number}",
            parameters=tuple(sorted((parameters if clip is None else {**parameters, "clip": clip * wider}).items())),
            # SGD's rate falls as the clip grows: a clipped record moves the model as far. Adam's stays.
            learning_rate=start * faster / (1.0 if method.adam or clip is None else wider),
            momentum=known.momentum if row.momentum is None else row.momentum,
            average=known.average if row.average is None else row.average,
        )
        for number, (wider, faster) in enumerate(itertools.islice(factors, settings.trials), start=1)
    )
