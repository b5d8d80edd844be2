"""Measure a record: five runs with the operating system's randomness, each with its cost."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from discreet import runs
from discreet.auditing.trainings import log_probabilities
from discreet.core.peak_memory import peak_bytes, restart_peak
from discreet.core.plain import digest, plain
from discreet.data import Task, build
from discreet.runs.comparison.values import Estimate
from discreet.runs.defaults import load_task
from discreet.runs.presets import Defaults, usual
from discreet.runs.reference import majority, without_privacy
from research.records.choose import attempt, split
from research.records.records import DELTA, RUNS, Record

Values = dict[str, Any]


def config_of(record: Record, out: Path) -> runs.RunConfig:
    return runs.RunConfig(
        data=record.data,
        preset=record.preset,
        epsilon=record.epsilon,
        delta=DELTA,
        micro_batch=record.micro_batch,
        out=str(out),
    )


def settings_of(record: Record) -> Defaults:
    return usual(config_of(record, Path("unused")))


def key_of(record: Record) -> str:
    """What the runs of a record belong to: its settings, and the revision of its features."""
    return digest(settings_of(record)) + (f" revision {record.revision}" if record.revision > 1 else "")


def tried(record: Record, trials: list[Values]) -> Iterator[Values]:
    """The trials of the grid that are missing, on a split of the training records; the test records are not used."""
    config, known = runs.complete(config_of(record, Path("unused"))), settings_of(record)
    assert known.steps is not None
    missing = [pair for pair in record.grid if pair not in [(trial["clip"], trial["reach"]) for trial in trials]]
    part = split(load_task(config)) if missing else None
    for clip, reach in missing:
        assert part is not None
        yield plain(attempt(config, part, clip=clip, reach=reach, steps=known.steps, batch=known.batch, seed=0))


def measured(record: Record, held: Values, folder: Path, others: Iterable[Values]) -> Values:
    """The record with one run more, or with its references after the last; runs of other settings are dropped."""
    settings, key = settings_of(record), key_of(record)
    if held.get("digest") != key:
        held = {**{name: held[name] for name in ("choice",) if name in held}, "digest": key, "runs": []}
    number = len(held["runs"]) + 1
    if number <= RUNS:
        held = {**held, "runs": [*held["runs"], _run(record, folder / record.name / f"os-{number}")]}
    elif "majority" not in held:
        held = {**held, **_references(settings, runs.complete(config_of(record, folder)), others)}
    accuracies = [run["accuracy"] for run in held["runs"]]
    summary = {"settings": plain(settings), "accuracy": plain(Estimate.of(accuracies)), "command": record.command()}
    if record.auc:
        summary["auc"] = plain(Estimate.of([run["auc"] for run in held["runs"]]))
    facts = {"data": record.data, "preset": record.preset, "epsilon": record.epsilon, "delta": DELTA}
    facts |= {"target": record.target, "published": plain(record.published)}
    return {**held, **facts, **summary}


def _references(settings: Defaults, config: runs.RunConfig, others: Iterable[Values]) -> Values:
    """The rows that do not depend on the budget; another record on the same features has the same ones."""
    names = ("majority", "without_privacy")
    for other in others:
        same = other.get("data") == config.data and other["settings"]["features"] == list(settings.features)
        if same and all(name in other for name in names):
            return {name: other[name] for name in names}
    task = load_task(config)
    passes = (settings.steps or 1) * settings.batch / (task.records or len(task.train))
    return {"majority": majority(task), "without_privacy": without_privacy(config, task, passes=passes)}


def one_run(record: Record, folder: Path, held: Values) -> Values:
    """One run of a preset at another budget; a run of the same settings is kept."""
    key = key_of(record)
    if held.get("digest") == key:
        return held
    facts = {"data": record.data, "preset": record.preset, "epsilon": record.epsilon, "digest": key}
    return {**facts, "run": _run(record, folder / record.name / "os-1")}


def _run(record: Record, out: Path) -> Values:
    if out.exists():  # an unfinished run, or one of another day
        shutil.rmtree(out)
    config = config_of(record, out)
    config = dataclasses.replace(config, eval_every=settings_of(record).steps)  # the test records are read once
    restart_peak()
    before = time.process_time()
    result = runs.train(config)
    seconds = time.process_time() - before
    values: Values = {
        "accuracy": result.test_accuracy,
        "epsilon": result.spent.certified.epsilon,
        "accountant": result.spent.certified.accountant,
        "randomness": result.spent.statement,
        "cpu_seconds": round(seconds, 1),
        "peak_megabytes": round((peak_bytes() or 0) / 2**20),
    }
    if record.auc:
        values["auc"] = _auc(config, load_task(runs.complete(config)), out)
    return values


def _auc(config: runs.RunConfig, task: Task, out: Path) -> float:
    from sklearn.metrics import roc_auc_score

    model = build(str(runs.complete(config).model), shape=task.shape, classes=task.classes)
    model.load_state_dict(torch.load(runs.RunFolder(out).model, weights_only=True))
    x, y = task.test.tensors
    return float(roc_auc_score(y.numpy(), log_probabilities(model, x)[:, 1].numpy()))
