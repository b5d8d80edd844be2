"""The runs of a comparison, one round for each seed, so that an interrupted comparison has every row."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import final

from discreet import runs, tasks
from discreet.accounting import certify, merge, read
from discreet.core import check
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.methods import METHODS
from discreet.plan import Plan
from discreet.report.compare import CompareSettings, Listener, Phase, Progress
from discreet.report.defaults import SET_ASIDE, Candidate
from discreet.report.values import Comparison, Entry, Excluded, Failure, Point, Provenance, Run
from discreet.runs.config import FREE_TO_CHANGE
from discreet.runs.defaults import learning_rate_of, records_of
from discreet.stages.sampling import Horizon

_PACKAGES = ("discreet", "torch", "numpy", "scipy", "dp-accounting")
_LONGEST_REASON = 300


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """A candidate with its completed settings and its plan, or why it has none."""

    candidate: Candidate
    config: runs.RunConfig
    plan: Plan | None
    reason: str = ""


@final
class Rounds:
    """Calibrates every row once, then trains them all seed by seed."""

    def __init__(self, settings: CompareSettings, listener: Listener) -> None:
        self._settings, self._listener = settings, listener
        self._task = _task(settings)
        # Shared settings that do not fit are refused here, before anything is trained.
        shared = runs.complete(self._config(Candidate(method=settings.chosen[0].method)))
        self._shared = shared
        self._horizon = Horizon.of(
            records=records_of(shared, self._task),
            batch=shared.batch or 0,
            epochs=shared.epochs,
            steps=shared.steps,
        )
        self._model = tasks.build(
            str(shared.model), shape=self._task.shape, classes=self._task.classes, seed=0
        )
        self._count = len(settings.chosen) * len(settings.keys)
        self._finished: dict[str, list[Run]] = {row.name: [] for row in settings.chosen}
        self._failed: dict[str, list[Failure]] = {row.name: [] for row in settings.chosen}
        self._ledgers: list[Path] = []

    def comparison(self) -> Comparison:
        """Run everything and gather it."""
        rows = [self._calibrated(place, row) for place, row in enumerate(self._settings.chosen)]
        pairs = itertools.product(self._settings.keys, rows)
        for index, ((key, seed), row) in enumerate(pairs):
            self._run(row, key, seed, index)
        return self._gathered(rows)

    # -- one row, one run ------------------------------------------------------------------------------

    def _calibrated(self, place: int, candidate: Candidate) -> _Row:
        self._tell(Phase.CALIBRATING, candidate.name, None, place)
        config = self._config(candidate)
        try:
            config = runs.complete(config)
            plan = runs.plan_of(config, self._task)
            rate = learning_rate_of(config, plan)
            config = dataclasses.replace(config, learning_rate=rate)
            return _Row(candidate=candidate, config=config, plan=plan)
        except Exception as error:
            return _Row(candidate=candidate, config=config, plan=None, reason=_reason(error))

    def _config(self, candidate: Candidate) -> runs.RunConfig:
        of = self._settings
        return runs.RunConfig(
            out=str(of.out / candidate.name),
            data=of.data,
            data_dir=of.data_dir,
            download=of.download,
            classes=of.classes,
            records=of.records,
            public_data=of.public_data,
            model=of.model,
            method=candidate.method,
            parameters=candidate.parameters,
            epsilon=of.epsilon,
            delta=of.delta,
            batch=of.batch,
            epochs=of.epochs,
            steps=of.steps,
            learning_rate=candidate.learning_rate,
            momentum=candidate.momentum,
            average=candidate.average,
            micro_batch=of.micro_batch,
        )

    def _run(self, row: _Row, key: str, seed: int | None, index: int) -> None:
        name, directory = row.candidate.name, self._settings.out / row.candidate.name / key
        try:
            if row.plan is None:
                check.refuse("a plan within the budget", row.reason, "change its settings or leave it out")
            config = dataclasses.replace(row.config, seed=seed, out=str(directory))
            result, phase = self._result(config, row.plan, seed, name, index)
            run = self._finished_run(result, config, row.plan, seed)
        except Exception as error:
            reason = row.reason or _reason(error)
            self._failed[name].append(Failure(seed=seed, reason=reason))
            self._tell(Phase.FAILED, name, seed, index, note=reason)
        else:
            self._finished[name].append(run)
            self._tell(
                phase,
                name,
                seed,
                index,
                step=run.steps,
                steps=run.steps,
                epsilon=run.epsilon,
                accuracy=run.accuracy,
            )
        finally:
            ledger = runs.RunFolder(directory).ledger
            if ledger.exists():  # also of a run that failed: what it charged is spent
                self._ledgers.append(ledger)

    def _result(
        self, config: runs.RunConfig, plan: Plan, seed: int | None, name: str, index: int
    ) -> tuple[runs.RunResult, Phase]:
        folder = runs.RunFolder(config.out)
        begun = folder.run.exists() or folder.ledger.exists()
        note = ""
        if begun and not _same(config, plan, folder):
            note = f"another run was here; it is in {_set_aside(folder.directory, self._settings.out)} now"
            begun = False
        if begun and folder.result.exists():
            return runs.load_result(config.out), Phase.REUSED
        steps = plan.known_horizon.steps
        self._tell(Phase.TRAINING, name, seed, index, steps=steps, note=note)

        def follow(news: runs.Progress) -> None:
            accuracy = news.accuracy if news.averaged_accuracy is None else news.averaged_accuracy
            self._tell(
                Phase.TRAINING,
                *(name, seed, index),
                step=news.step,
                steps=news.steps,
                epsilon=news.epsilon,
                accuracy=accuracy,
            )

        return runs.train(config, on_progress=follow, resume=begun), Phase.FINISHED

    def _finished_run(
        self, result: runs.RunResult, config: runs.RunConfig, plan: Plan, seed: int | None
    ) -> Run:
        folder = runs.RunFolder(config.out)
        proven = result.spent.certified
        check.require(
            proven.epsilon <= self._settings.epsilon and proven.delta == self._settings.delta,
            f"a run within epsilon={self._settings.epsilon:g} at delta={self._settings.delta:g}",
            f"epsilon={proven.epsilon:g} at delta={proven.delta:g}",
            f"it spent more than planned, so it is not ranked; {folder.directory} has its ledger",
        )
        return Run(
            seed=seed,
            accuracy=result.test_accuracy,
            epsilon=proven.epsilon,
            claimed=result.spent.claimed,
            accountant=proven.accountant,
            assumptions=proven.assumptions,
            steps=result.steps,
            seconds=result.seconds,
            noise=plan.noise,
            curve=tuple(
                Point(step=step, accuracy=value, epsilon=spent) for step, value, spent in result.curve
            ),
            randomness=result.spent.statement,
            directory=folder.directory.relative_to(self._settings.out).as_posix(),
            ledger=read(folder.ledger).digest,
            config=digest(_compared(config)),
        )

    def _tell(self, phase: Phase, name: str, seed: int | None, index: int, **news: object) -> None:
        progress = Progress(phase=phase, name=name, seed=seed, index=index, runs=self._count)
        self._listener(dataclasses.replace(progress, **news))  # type: ignore[arg-type]

    # -- the whole -------------------------------------------------------------------------------------

    def _gathered(self, rows: list[_Row]) -> Comparison:
        of, task, shared, horizon = self._settings, self._task, self._shared, self._horizon
        return Comparison(
            data=of.data if of.data in tasks.DATASETS else task.name,
            model=str(shared.model),
            parameters=tasks.parameters(self._model),
            records=horizon.known_records,
            test_records=len(task.test),
            batch=horizon.known_batch,
            steps=horizon.steps,
            epsilon=of.epsilon,
            delta=of.delta,
            relation=str(shared.relation),
            sampling=shared.sampling,
            seeds=of.seeds,
            repeats=len(of.keys),
            public=task.public,
            entries=Comparison.ranked(self._entry(row) for row in rows),
            excluded=tuple(
                Excluded(method=method.name, guarantee=method.guarantee)
                for method in METHODS.values()
                if not method.certified
            ),
            together=self._together(),
            provenance=Provenance(
                command=of.command,
                created=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                versions=(
                    ("python", platform.python_version()),
                    *((name, version(name)) for name in _PACKAGES),
                ),
                checksum=task.checksum,
                constants=task.constants,
            ),
        )

    def _entry(self, row: _Row) -> Entry:
        method, name, config = METHODS[row.candidate.method], row.candidate.name, row.config
        return Entry(
            name=name,
            method=method.name,
            summary=method.summary,
            guarantee=method.guarantee,
            parameters=config.parameters,
            optimizer=config.optimizer or ("adam" if method.adam else "sgd"),
            learning_rate=config.learning_rate,
            average=config.average or None,
            given=row.candidate.given,
            runs=tuple(self._finished[name]),
            failures=tuple(self._failed[name]),
        )

    def _together(self) -> float | None:
        """What all runs cost who would show them all; None where a ledger cannot be read."""
        with contextlib.suppress(check.Refused):
            relation = Neighbouring(self._shared.relation)
            return certify(merge(self._ledgers), delta=self._settings.delta, relation=relation).epsilon
        return None


def _task(of: CompareSettings) -> tasks.Task:
    if of.data.endswith(".npz"):
        return tasks.load(of.data, classes=of.classes, records=of.records, public=of.public_data)
    return tasks.load(of.data, data_dir=of.data_dir, download=of.download, classes=of.classes)


def _compared(config: runs.RunConfig) -> dict[str, object]:
    """The settings that make a run what it is."""
    return {name: value for name, value in config.to_json().items() if name not in FREE_TO_CHANGE}


def _same(config: runs.RunConfig, plan: Plan, folder: runs.RunFolder) -> bool:
    """Whether the run that is there has these settings and this plan."""
    try:
        begun = runs.load_config(config.out)
        planned = runs.folder.read_json(folder.plan)["digest"]
    except (check.Refused, KeyError):
        return False
    return digest(_compared(begun)) == digest(_compared(config)) and planned == plan.digest


def _set_aside(directory: Path, out: Path) -> Path:
    """Move a run out of the way; its ledger says what was spent, so it is never deleted."""
    name = "-".join(directory.relative_to(out).parts)
    places = (out / SET_ASIDE / f"{name}-{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    place.parent.mkdir(parents=True, exist_ok=True)
    directory.rename(place)
    return place


def _reason(error: Exception) -> str:
    """One line; validators' messages stand as they are."""
    first = (str(error).splitlines() or [""])[0][:_LONGEST_REASON]
    return first if isinstance(error, check.Refused) else f"{type(error).__name__}: {first}"
