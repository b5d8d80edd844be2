"""The runs of a comparison: all rows with one seed, then with the next, so an interrupted comparison has every row."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from discreet import runs
from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.ledger import merge, read
from discreet.core import check
from discreet.core.command import package_versions
from discreet.core.files import write_json
from discreet.core.plain import digest, from_plain, plain
from discreet.core.relation import Neighbouring
from discreet.core.workers import failure_of, run_jobs
from discreet.data import DATASETS, build, parameters
from discreet.data.features import needs_public
from discreet.methods import METHODS
from discreet.runs.comparison import values
from discreet.runs.comparison.compare import SET_ASIDE, Candidate, CompareSettings, ComparisonProgress, Listener, Phase
from discreet.runs.comparison.kept_task import kept_task
from discreet.runs.comparison.values import Comparison, Excluded, Failure, MethodResult, Reference, TrainedRun
from discreet.runs.config import FREE_TO_CHANGE
from discreet.runs.defaults import features_of, records_of, settle
from discreet.runs.folder import read_json
from discreet.runs.paying import pay
from discreet.runs.reference import reference_rows
from discreet.runs.training import train_on
from discreet.stages.delta import check_delta
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon

_SHARED = (  # settings of a comparison that each of its runs has
    *("data", "data_dir", "download", "classes", "records", "public_data", "model", "epsilon", "delta"),
    *("batch", "epochs", "steps", "micro_batch", "eval_every", "accept_large_delta", "preset", "features"),
    *("schedule", "label", "schema", "test", "hold_out", "task", "unit", "per_user", "sample"),
)
_OWN = ("method", "parameters", "learning_rate", "momentum", "average")  # settings of a row
REFERENCES, NOT_RUN = "references.json", "not run yet"
MOST = 400  # the most changes that are kept of a schedule


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """A candidate with its completed settings and its plan, or why it has none.

    reason  why its settings do not make a plan
    unfit   why its plan, which is valid in itself, cannot be run on this task
    """

    candidate: Candidate
    config: runs.RunConfig
    plan: Plan | None = None
    reason: str = ""
    unfit: str = ""


def _samplers(rows: Iterable[_Row]) -> str:
    """How the ranked methods draw their batches; correlated noise has samplers of its own."""
    return " or ".join(
        dict.fromkeys(str(row.config.sampling) for row in rows if row.plan is not None and not row.unfit)
    )


@final
@dataclass(frozen=True, kw_only=True)
class _Job:
    index: int
    row: _Row
    seed: int | None
    directory: Path

    @property
    def config(self) -> runs.RunConfig:
        return dataclasses.replace(self.row.config, seed=self.seed, out=str(self.directory))


@final
class ComparisonRunner:
    """Calibrates every row once, then trains all rows, seed by seed.

    root                   the directory of the page
    task, horizon, shared  the data, the public numbers and the settings that all rows share
    """

    def __init__(self, settings: CompareSettings, listener: Listener, *, root: Path) -> None:
        self._settings, self._listener, self._root = settings, listener, root
        self._count = len(settings.chosen) * len(settings.keys)
        self.task = kept_task(settings, self._extracting)
        # Invalid shared settings are refused here, before anything is trained.
        shared = runs.complete(self._config(Candidate(method=settings.chosen[0].method)))
        self.shared = shared
        self.horizon = Horizon.of(
            records=records_of(shared, self.task), batch=shared.batch or 0, epochs=shared.epochs, steps=shared.steps
        )
        check_delta(settings.delta, self.horizon.records, accepted=settings.accept_large_delta)
        self._model = build(str(shared.model), shape=self.task.shape, classes=self.task.classes, seed=0)
        self._jobs: list[_Job] = []
        self._ordered: list[_Job] = []
        self._finished: dict[int, TrainedRun] = {}
        self._failed: dict[int, Failure] = {}
        self._notes: dict[int, str] = {}

    def comparison(self) -> Comparison:
        rows = [self._calibrated(place, row) for place, row in enumerate(self._settings.chosen)]
        pairs = itertools.product(self._settings.keys, [row for row in rows if not row.unfit])
        self._jobs = [
            _Job(index=index, row=row, seed=seed, directory=self._settings.out / row.candidate.name / key)
            for index, ((key, seed), row) in enumerate(pairs)
        ]
        ordered = [(job, order) for job in self._jobs if (order := self._order(job)) is not None]
        self._ordered = [job for job, _ in ordered]
        orders = [order for _, order in ordered]
        run_jobs(f"{__name__}:train_order", orders, self, workers=self._settings.workers, saves=True)
        return self._gathered(rows)

    def _calibrated(self, place: int, candidate: Candidate) -> _Row:
        self._tell(Phase.CALIBRATING, candidate.name, None, place)
        config, is_valid = self._config(candidate), False
        try:
            config = runs.complete(config)
            METHODS[config.method].recipe(**dict(config.parameters))
            is_valid = True  # from here on, a refusal is about this task or this budget
            config, plan = settle(config, self.task)
        except Exception as error:
            why, unfit = failure_of(error), is_valid and isinstance(error, check.Refused)
            return _Row(candidate=candidate, config=config, unfit=why if unfit else "", reason="" if unfit else why)
        return _Row(candidate=candidate, config=config, plan=plan)

    def _config(self, candidate: Candidate) -> runs.RunConfig:
        return config_of(self._settings, candidate)

    def _order(self, job: _Job) -> dict[str, Any] | None:
        """What is left to train, if anything. A finished run is read; a run with other settings is moved away."""
        plan, folder = job.row.plan, runs.RunFolder(job.directory)
        if plan is None:
            self._fail(job, job.row.reason)
            return None
        config = job.config
        begun = folder.run.exists() or folder.ledger.exists()
        if self._settings.finished_only and not (folder.result.exists() and _same(config, plan, folder)):
            self._fail(job, NOT_RUN)
            return None
        if begun and not _same(config, plan, folder):
            place, begun = _set_aside(job.directory, self._settings.out), False
            self._notes[job.index] = f"an earlier run with other settings was moved to {place}"
        if begun and folder.result.exists():
            self._take(job, Phase.REUSED)
            return None
        return {"config": config.to_json(), "resume": begun}

    def started(self, job: int) -> None:
        run = self._ordered[job]
        self._tell_run(Phase.TRAINING, run, steps=self.horizon.steps, note=self._notes.get(run.index, ""))

    def news(self, job: int, news: Any) -> None:
        run, at = self._ordered[job], runs.RunProgress(**news)
        accuracy = at.accuracy if at.averaged_accuracy is None else at.averaged_accuracy
        self._tell_run(Phase.TRAINING, run, step=at.step, steps=at.steps, epsilon=at.epsilon, accuracy=accuracy)

    def ended(self, job: int, result: Any, failure: Exception | None) -> None:
        if failure is None:
            self._take(self._ordered[job], Phase.FINISHED)
        else:
            self._fail(self._ordered[job], failure_of(failure))

    def _take(self, job: _Job, phase: Phase) -> None:
        try:
            run = self._finished_run(job)
        except Exception as error:
            self._fail(job, failure_of(error))
            return
        self._finished[job.index] = run
        self._tell_run(phase, job, step=run.steps, steps=run.steps, epsilon=run.epsilon, accuracy=run.accuracy)

    def _fail(self, job: _Job, why: str) -> None:
        self._failed[job.index] = Failure(seed=job.seed, reason=why)
        self._tell_run(Phase.FAILED, job, note=why)

    def _finished_run(self, job: _Job) -> TrainedRun:
        folder, result = runs.RunFolder(job.directory), runs.load_result(job.directory)
        proven = result.spent.certified
        epsilon, delta = self._settings.epsilon, self._settings.delta
        within, expected = proven.epsilon <= epsilon, f"a run within epsilon={epsilon:g} at delta={delta:g}"
        remedy = f"it spent more than the budget, so it is not ranked; {folder.directory} has its ledger"
        got = f"epsilon={proven.epsilon:g} at delta={proven.delta:g}"
        check.require(within and proven.delta == delta, expected, got, remedy)
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
            curve=tuple(values.Point(step=step, accuracy=value, epsilon=spent) for step, value, spent in result.curve),
            randomness=result.spent.statement,
            directory=folder.directory.relative_to(self._root).as_posix(),
            ledger=read(folder.ledger).digest,
            config=digest(_compared(job.config)),
        )

    def _extracting(self, name: str, done: int, total: int) -> None:
        self._tell(Phase.CALIBRATING, f"features {name}", None, 0, step=done, steps=total)

    def _tell_run(self, phase: Phase, job: _Job, **news: Any) -> None:
        self._tell(phase, job.row.candidate.name, job.seed, job.index, measure=self.task.predicts.measure, **news)

    def _tell(self, phase: Phase, name: str, seed: int | None, index: int, **news: Any) -> None:
        self._listener(ComparisonProgress(phase=phase, name=name, seed=seed, index=index, runs=self._count, **news))

    def _gathered(self, rows: list[_Row]) -> Comparison:
        of, task, shared, horizon = self._settings, self.task, self.shared, self.horizon
        return Comparison(
            data=of.data if of.data in DATASETS else task.name,
            model=str(shared.model),
            parameters=parameters(self._model),
            records=horizon.size.records,
            test_records=len(task.test),
            batch=horizon.size.batch,
            steps=horizon.steps,
            epsilon=of.epsilon,
            delta=of.delta,
            relation=str(shared.relation),
            sampling=_samplers(rows) or str(shared.sampling),
            seeds=of.seeds,
            repeats=len(of.keys),
            public=task.public,
            measure=task.predicts.measure,
            unit=shared.protected().name,
            sampled=shared.protected().sampled,
            entries=Comparison.ranked(self._entry(row) for row in rows if not row.unfit),
            excluded=_excluded(rows),
            together=together(self.ledgers, of.delta, str(shared.relation)),
            provenance=values.Provenance(
                command=of.command,
                created=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                versions=tuple(package_versions("discreet", "torch", "numpy", "scipy").items()),
                checksum=task.checksum,
                constants=task.constants,
            ),
        )

    def _entry(self, row: _Row) -> MethodResult:
        method, config = METHODS[row.candidate.method], row.config
        places = [job.index for job in self._jobs if job.row is row]
        return MethodResult(
            name=row.candidate.name,
            method=method.name,
            summary=method.summary,
            guarantee=method.guarantee,
            parameters=config.parameters,
            optimizer=config.optimizer or ("adam" if method.adam else "sgd"),
            learning_rate=config.learning_rate,
            average=config.average or None,
            given=row.candidate.given,
            course=values.PlanTimeline() if row.plan is None else timeline_of(row.plan),
            runs=tuple(self._finished[index] for index in places if index in self._finished),
            failures=tuple(self._failed[index] for index in places if index in self._failed),
        )

    def references(self) -> tuple[Reference, ...]:
        """The rows of no method, kept in a file, so that resuming does not train again."""
        horizon, file = self.horizon, self._settings.out / REFERENCES
        passes = horizon.steps * horizon.size.batch / horizon.size.records
        key = digest([_compared(self.shared)["model"], self.task.checksum, self.task.constants, passes])
        held = read_json(file) if file.is_file() else {}
        if held.get("digest") != key:
            if self._settings.finished_only:
                return ()
            found = reference_rows(self.shared, self.task, passes=passes)
            self._settings.out.mkdir(parents=True, exist_ok=True)
            write_json(file, {"digest": key, "references": plain(found)})
            return found
        rows: tuple[Reference, ...] = from_plain(tuple[Reference, ...], held["references"])
        return rows

    @property
    def ledgers(self) -> list[Path]:
        """The ledgers of all runs that started, failed ones included: their charges are spent."""
        every = (runs.RunFolder(job.directory).ledger for job in self._jobs)
        return [ledger for ledger in every if ledger.exists()]


def charge_runs(settings: CompareSettings) -> None:
    """Charge all runs of a comparison to the budget file, as one entry, before the records are read."""
    public = settings.tune_on is None
    remedy = "tune on the stand-in first and name the settings: the search reads the private records' shape"
    check.require(public, "--budget without --tune-on", f"--tune-on {settings.tune_on}", remedy)
    total, relation, unit = Charge(), None, "record"
    for epsilon in (settings.epsilon, *settings.others):
        at = settings.at(epsilon)
        for row in at.chosen:
            with contextlib.suppress(check.Refused):  # a row that cannot be planned is not trained
                _, plan = settle(config_of(at, row), None)
                total, relation = total + plan.charge() * len(at.keys), plan.relation
                unit = plan.unit.name
    if relation is not None:
        pay(str(settings.budget), settings.out, total, relation, what=f"compare into {settings.out}", unit=unit)


def config_of(settings: CompareSettings, candidate: Candidate) -> runs.RunConfig:
    """The run of one row."""
    shared = {name: getattr(settings, name) for name in _SHARED}
    own = {name: getattr(candidate, name) for name in _OWN}
    learns = METHODS[candidate.method].recipe().bounder.public_records > 0 or needs_public(features_of(settings))
    public = settings.public_records if learns else None
    return runs.RunConfig(out=str(settings.out / candidate.name), public_records=public, **own, **shared)


def train_order(order: dict[str, Any], tell: Callable[[Any], None]) -> None:
    config = runs.RunConfig.from_json(order["config"])
    task, told = kept_task(config), lambda news: tell(dataclasses.asdict(news))
    train_on(task, runs.complete(config), on_progress=told, resume=order["resume"])


def together(ledgers: list[Path], delta: float, relation: str) -> float | None:
    """The epsilon of publishing all runs; None where a ledger cannot be read."""
    with contextlib.suppress(check.Refused):
        return certify(merge(ledgers), delta=delta, relation=Neighbouring(relation)).epsilon
    return None


def _excluded(rows: list[_Row]) -> tuple[Excluded, ...]:
    """Rows that cannot be run on the task, and every method without a certificate."""
    unfit = [(row.candidate.name, METHODS[row.candidate.method], row.unfit) for row in rows if row.unfit]
    uncertified = [(method.name, method, "") for method in METHODS.values() if not method.certified]
    return tuple(Excluded(method=name, guarantee=m.guarantee, reason=why) for name, m, why in unfit + uncertified)


def _compared(config: runs.RunConfig) -> dict[str, object]:
    """The settings that decide what a run computes."""
    return {name: value for name, value in config.to_json().items() if name not in FREE_TO_CHANGE}


def _same(config: runs.RunConfig, plan: Plan, folder: runs.RunFolder) -> bool:
    try:
        begun = runs.load_config(config.out)
        planned = read_json(folder.plan)["digest"]
    except (check.Refused, KeyError):
        return False
    return digest(_compared(begun)) == digest(_compared(config)) and planned == plan.digest


def _set_aside(directory: Path, out: Path) -> Path:
    """Move a run away. It is never deleted, since its ledger records what was spent."""
    name = "-".join(directory.relative_to(out).parts)
    places = (out / SET_ASIDE / f"{name}-{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    place.parent.mkdir(parents=True, exist_ok=True)
    directory.rename(place)
    return place


def timeline_of(plan: Plan) -> values.PlanTimeline:
    """The noise, the share of active coordinates and the domain of a bound plan.

    >>> from discreet import methods
    >>> plan = methods.random_freeze(final_rate=0.5, cooling_epochs=2)
    >>> plan = plan.for_budget(epsilon=3.0, delta=1e-5, records=1000, batch=100, epochs=3)
    >>> [(step, round(share, 3)) for step, share in timeline_of(plan).density]
    [(0, 1.0), (10, 0.5)]
    """
    steps = plan.horizon.steps
    every = max(1, math.ceil(steps / MOST))
    diameter = plan.domain.diameter
    return values.PlanTimeline(
        noise=tuple(_changes((step, plan.noise_at(step)) for step in range(0, steps, every))),
        density=tuple(_changes(_densities(plan))),
        diameter=diameter if math.isfinite(diameter) else None,
        visible=plan.analysis.visible,
    )


def _densities(plan: Plan) -> Iterator[tuple[int, float]]:
    """The density of each epoch. A selection gives the mean over a run, so this takes differences."""
    horizon, before = plan.horizon, 0.0
    for start in range(0, horizon.steps, horizon.steps_per_epoch):
        stop = min(start + horizon.steps_per_epoch, horizon.steps)
        active = plan.selection.density(dataclasses.replace(horizon, steps=stop)) * stop
        yield start, (active - before) / (stop - start)
        before = active


def _changes(pairs: Iterable[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    last: float | None = None
    for step, value in pairs:
        if last is None or not math.isclose(value, last, rel_tol=1e-9):
            yield step, value
            last = value
