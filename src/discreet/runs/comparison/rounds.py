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

from discreet import data as tasks
from discreet import runs
from discreet.accounting import certify, merge, read
from discreet.core import check
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.methods import METHODS
from discreet.runs.comparison.candidates import Candidate
from discreet.runs.comparison.compare import CompareSettings, ComparisonProgress, Listener, Phase
from discreet.runs.comparison.courses import course_of
from discreet.runs.comparison.earlier import compared, same, set_aside
from discreet.runs.comparison.values import (
    Comparison,
    Course,
    Entry,
    Excluded,
    Failure,
    Point,
    Provenance,
    TrainedRun,
)
from discreet.runs.comparison.worker import reason
from discreet.runs.comparison.worker_pool import TrainingOrder, carry_out
from discreet.runs.defaults import records_of, settle
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon

_PACKAGES = ("discreet", "torch", "numpy", "scipy")


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """A candidate with its completed settings and its plan, or why it has none.

    reason  why its settings are no plan at all
    unfit   why its plan, which is sound in itself, cannot be run on this task
    """

    candidate: Candidate
    config: runs.RunConfig
    plan: Plan | None
    reason: str = ""
    unfit: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class _Job:
    """One run of a row."""

    index: int
    row: _Row
    seed: int | None
    directory: Path

    @property
    def config(self) -> runs.RunConfig:
        return dataclasses.replace(self.row.config, seed=self.seed, out=str(self.directory))


@final
class Rounds:
    """Calibrates every row once, then trains them all seed by seed.

    root                   where the page will be
    task, horizon, shared  the data, the public numbers and the settings that all rows have in common
    """

    def __init__(self, settings: CompareSettings, listener: Listener, *, root: Path) -> None:
        self._settings, self._listener, self._root = settings, listener, root
        self.task = _task(settings)
        # Shared settings that do not fit are refused here, before anything is trained.
        shared = runs.complete(self._config(Candidate(method=settings.chosen[0].method)))
        self.shared = shared
        self.horizon = Horizon.of(
            records=records_of(shared, self.task),
            batch=shared.batch or 0,
            epochs=shared.epochs,
            steps=shared.steps,
        )
        self._model = tasks.build(str(shared.model), shape=self.task.shape, classes=self.task.classes, seed=0)
        self._count = len(settings.chosen) * len(settings.keys)
        self._jobs: list[_Job] = []
        self._finished: dict[int, TrainedRun] = {}
        self._failed: dict[int, Failure] = {}
        self._notes: dict[int, str] = {}

    def comparison(self) -> Comparison:
        """Run everything and gather it."""
        rows = [self._calibrated(place, row) for place, row in enumerate(self._settings.chosen)]
        pairs = itertools.product(self._settings.keys, [row for row in rows if not row.unfit])
        self._jobs = [
            _Job(index=index, row=row, seed=seed, directory=self._settings.out / row.candidate.name / key)
            for index, ((key, seed), row) in enumerate(pairs)
        ]
        orders = [order for job in self._jobs if (order := self._order(job)) is not None]
        carry_out(orders, self, self._settings.workers)
        return self._gathered(rows)

    # -- one row, one run ------------------------------------------------------------------------------

    def _calibrated(self, place: int, candidate: Candidate) -> _Row:
        self._listener(
            ComparisonProgress(
                phase=Phase.CALIBRATING, name=candidate.name, seed=None, index=place, runs=self._count
            )
        )
        config = self._config(candidate)
        try:
            config = runs.complete(config)
            METHODS[config.method].recipe(**dict(config.parameters))
        except Exception as error:
            return _Row(candidate=candidate, config=config, plan=None, reason=reason(error))
        try:
            config, plan = settle(config, self.task)
        except (
            check.Refused
        ) as error:  # the recipe is sound: it is this task, or this budget, that it refuses
            return _Row(candidate=candidate, config=config, plan=None, unfit=reason(error))
        except Exception as error:
            return _Row(candidate=candidate, config=config, plan=None, reason=reason(error))
        return _Row(candidate=candidate, config=config, plan=plan)

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
            eval_every=of.eval_every,
        )

    def _order(self, job: _Job) -> TrainingOrder | None:
        """What is left to train, if anything; a finished run is read, another run is moved out of the way."""
        plan, folder = job.row.plan, runs.RunFolder(job.directory)
        if plan is None:
            self._fail(job, job.row.reason)
            return None
        config = job.config
        begun = folder.run.exists() or folder.ledger.exists()
        if begun and not same(config, plan, folder):
            self._notes[job.index] = (
                f"another run was here; it is in {set_aside(job.directory, self._settings.out)}"
            )
            begun = False
        if begun and folder.result.exists():
            self._take(job, Phase.REUSED)
            return None
        return TrainingOrder(index=job.index, config=config, resume=begun)

    def started(self, order: TrainingOrder) -> None:
        """A run is being trained."""
        job = self._jobs[order.index]
        self._tell(Phase.TRAINING, job, steps=self.horizon.steps, note=self._notes.get(order.index, ""))

    def news(self, order: TrainingOrder, news: runs.RunProgress) -> None:
        """A step was taken."""
        told = {"step": news.step, "steps": news.steps, "epsilon": news.epsilon}
        accuracy = news.accuracy if news.averaged_accuracy is None else news.averaged_accuracy
        self._tell(Phase.TRAINING, self._jobs[order.index], **told, accuracy=accuracy)

    def ended(self, order: TrainingOrder, why: str) -> None:
        """A run is over, finished unless `why` says something."""
        job = self._jobs[order.index]
        if why:
            self._fail(job, why)
        else:
            self._take(job, Phase.FINISHED)

    def _take(self, job: _Job, phase: Phase) -> None:
        try:
            run = self._finished_run(job)
        except Exception as error:
            self._fail(job, reason(error))
            return
        self._finished[job.index] = run
        self._tell(phase, job, step=run.steps, steps=run.steps, epsilon=run.epsilon, accuracy=run.accuracy)

    def _fail(self, job: _Job, why: str) -> None:
        self._failed[job.index] = Failure(seed=job.seed, reason=why)
        self._tell(Phase.FAILED, job, note=why)

    def _finished_run(self, job: _Job) -> TrainedRun:
        folder, result = runs.RunFolder(job.directory), runs.load_result(job.directory)
        proven = result.spent.certified
        check.require(
            proven.epsilon <= self._settings.epsilon and proven.delta == self._settings.delta,
            f"a run within epsilon={self._settings.epsilon:g} at delta={self._settings.delta:g}",
            f"epsilon={proven.epsilon:g} at delta={proven.delta:g}",
            f"it spent more than planned, so it is not ranked; {folder.directory} has its ledger",
        )
        return TrainedRun(
            seed=job.seed,
            accuracy=result.test_accuracy,
            epsilon=proven.epsilon,
            claimed=result.spent.claimed,
            accountant=proven.accountant,
            assumptions=proven.assumptions,
            steps=result.steps,
            seconds=result.seconds,
            noise=None if job.row.plan is None else job.row.plan.noise,
            curve=tuple(
                Point(step=step, accuracy=value, epsilon=spent) for step, value, spent in result.curve
            ),
            randomness=result.spent.statement,
            directory=folder.directory.relative_to(self._root).as_posix(),
            ledger=read(folder.ledger).digest,
            config=digest(compared(job.config)),
        )

    def _tell(self, phase: Phase, job: _Job, **news: object) -> None:
        name, seed = job.row.candidate.name, job.seed
        progress = ComparisonProgress(phase=phase, name=name, seed=seed, index=job.index, runs=self._count)
        self._listener(dataclasses.replace(progress, **news))  # type: ignore[arg-type]

    # -- the whole -------------------------------------------------------------------------------------

    def _gathered(self, rows: list[_Row]) -> Comparison:
        of, task, shared, horizon = self._settings, self.task, self.shared, self.horizon
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
            entries=Comparison.ranked(self._entry(row) for row in rows if not row.unfit),
            excluded=_excluded(rows),
            together=together(self.ledgers, of.delta, str(shared.relation)),
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
        method, config = METHODS[row.candidate.method], row.config
        places = [job.index for job in self._jobs if job.row is row]
        return Entry(
            name=row.candidate.name,
            method=method.name,
            summary=method.summary,
            guarantee=method.guarantee,
            parameters=config.parameters,
            optimizer=config.optimizer or ("adam" if method.adam else "sgd"),
            learning_rate=config.learning_rate,
            average=config.average or None,
            given=row.candidate.given,
            course=Course() if row.plan is None else course_of(row.plan),
            runs=tuple(self._finished[index] for index in places if index in self._finished),
            failures=tuple(self._failed[index] for index in places if index in self._failed),
        )

    @property
    def ledgers(self) -> list[Path]:
        """Of all runs that began; of failed ones too: what they charged is spent."""
        every = (runs.RunFolder(job.directory).ledger for job in self._jobs)
        return [ledger for ledger in every if ledger.exists()]


def together(ledgers: list[Path], delta: float, relation: str) -> float | None:
    """What all runs cost who would show them all; None where a ledger cannot be read."""
    with contextlib.suppress(check.Refused):
        return certify(merge(ledgers), delta=delta, relation=Neighbouring(relation)).epsilon
    return None


def _excluded(rows: list[_Row]) -> tuple[Excluded, ...]:
    """Rows that do not fit the task, and every method without a certificate."""
    unfit = [
        Excluded(
            method=row.candidate.name,
            guarantee=METHODS[row.candidate.method].guarantee,
            reason=row.unfit,
        )
        for row in rows
        if row.unfit
    ]
    uncertified = [method for method in METHODS.values() if not method.certified]
    return (*unfit, *(Excluded(method=m.name, guarantee=m.guarantee) for m in uncertified))


def _task(of: CompareSettings) -> tasks.Task:
    if of.data.endswith(".npz"):
        return tasks.load(of.data, classes=of.classes, records=of.records, public=of.public_data)
    return tasks.load(of.data, data_dir=of.data_dir, download=of.download, classes=of.classes)
