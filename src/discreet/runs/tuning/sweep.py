"""The runs of a search, and the release of the best one."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch.utils.data import TensorDataset

from discreet.accounting.accountants import Certificate
from discreet.accounting.ledger import Ledger
from discreet.core import check
from discreet.core.command import command_line
from discreet.core.errors import RunStopped
from discreet.core.files import replace_file, write_json, write_text
from discreet.core.plain import digest, from_plain
from discreet.core.streams import Stream, Streams
from discreet.core.workers import run_jobs
from discreet.data import Task
from discreet.runs.config import RunConfig
from discreet.runs.defaults import load_task, settle
from discreet.runs.folder import RunFolder, read_json
from discreet.runs.making import make_model
from discreet.runs.paying import pay
from discreet.runs.scoring import Scored, accuracy_of, measure, right_predictions
from discreet.runs.statement import tune_statement
from discreet.runs.training import train_on
from discreet.runs.tuning.bill import TuneBill, TuneSettings, bill_of, candidate_config
from discreet.runs.tuning.hidden import HiddenDraw, HiddenFolder
from discreet.runs.tuning.space import Axis, LogRange, Setting, Space
from discreet.stages.unit import EachRecord, Unit
from discreet.stages.values import PrivateState
from discreet.training.owners import Owners

__all__ = ["LogRange", "TuneResult", "tune", "tune_with"]

Listener = Callable[[float], None]
"""Receives the seconds since the start. Nothing else about a search in progress may be shown."""

_SETTINGS: Final = "tune.json"
_HIDDEN: Final = "hidden"
_CHECKPOINT_EVERY: Final = 100
_RECORD: Final = EachRecord()


@final
@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What a search releases. K and the other candidates are shown only if the records are public.

    settings       of the chosen run
    score          its accuracy on the held-out records, from the noisy count, or on the public test records
    test_accuracy  on the test records, which are unprotected; None if there are none
    certified      of the whole search: the chosen model, its settings and its score
    candidates     (settings, score) of all candidates if the records are public; otherwise None
    unit           whom the certificate protects
    """

    settings: Mapping[str, Setting]
    score: float
    test_accuracy: float | None
    certified: Certificate
    noise: float
    runs: float
    shape: float
    held_out: float
    candidates: tuple[tuple[Mapping[str, Setting], float], ...] | None
    directory: Path
    unit: str = "record"

    def to_json(self) -> dict[str, Any]:
        held = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = None if self.candidates is None else [[dict(one), score] for one, score in self.candidates]
        own = {"settings": dict(self.settings), "certified": self.certified.to_json(), "candidates": shown}
        return {**held, **own, "directory": str(self.directory)}


def tune(
    config: RunConfig,
    space: Mapping[str, Sequence[Setting] | Axis],
    *,
    runs: float = 5.0,
    shape: float = 0.0,
    held_out: float = 0.1,
    workers: int | None = None,
    not_before: float = 0.0,
    on_progress: Listener | None = None,
) -> TuneResult:
    """Search `space` at random around `config`, whose epsilon pays for the whole search, the choice included.

    Repeat the call to resume. The arguments are those of `TuneSettings`.
    """
    settings = TuneSettings(
        config=config,
        space=Space.of(space),
        runs=runs,
        shape=shape,
        held_out=held_out,
        workers=workers,
        not_before=not_before,
    )
    return tune_with(settings, on_progress=on_progress)


def tune_with(settings: TuneSettings, *, on_progress: Listener | None = None) -> TuneResult:
    """Like `tune`, with settings that are complete.

    Guarantee: the search is one charge in its ledger (and in the budget file), written before the first record is read;
    K is drawn once; what is left in the directory is the chosen run.
    """
    out, bill = Path(settings.config.out), bill_of(settings)
    folder = RunFolder(out)
    with folder.held():
        begun = _begin(settings, out)
        sweep = _Sweep(settings, bill, folder, begun, on_progress or (lambda seconds: None))
        if folder.result.exists():
            sweep.hidden.forget()
            return _result_from_json(read_json(folder.result), out)
        budget = settings.config.budget
        if budget is not None:
            pay(budget, out, bill.charge, bill.relation, what=f"tune into {out}", unit=bill.unit)
        draw = sweep.charge()
        try:
            return sweep.complete(draw)
        except Exception as error:
            told = "the same command, which is not charged again"
            raise RunStopped(1, folder.ledger, told) from error


def _begin(settings: TuneSettings, out: Path) -> float:
    """Write the settings, or check that a resumed search has the same; the time of the first start.

    A search that has drawn nothing yet, such as one that its budget refused, may begin again with others.
    """
    file, ours = out / _SETTINGS, settings.to_json()
    if file.exists() and (RunFolder(out).ledger.exists() or (out / _HIDDEN).exists()):
        held = read_json(file)
        same = digest(held["settings"]) == digest(ours)
        remedy = "repeat the command with its settings, or choose another directory"
        check.require(same, f"the settings of the search in {out}", "others", remedy)
        return float(held["started"])
    RunFolder(out).check_new()
    started = time.time()
    write_json(file, {"settings": ours, "started": started, "command": command_line()})
    return started


@final
class _Sweep:
    """One search, from its charge to its release. As a listener of jobs it forwards the elapsed time alone."""

    def __init__(
        self, settings: TuneSettings, bill: TuneBill, folder: RunFolder, begun: float, listener: Listener
    ) -> None:
        self._settings, self._bill, self._folder, self._begun = settings, bill, folder, begun
        self._listener = listener
        self._failure: Exception | None = None
        self.hidden = HiddenFolder(folder.directory / _HIDDEN)

    def charge(self) -> PrivateState:
        """Draw K, then charge the search, both once."""
        ledger, event = self._folder.ledger, self._bill.event
        charged = ledger.exists() and self._folder.charges() > 0
        draw = self.hidden.begin(self._bill.law, self._settings.space, charged=charged)
        header = {
            "relation": str(self._bill.relation),
            "delta": self._bill.certificate.delta,
            "plan": digest(self._settings.to_json()),
            "seeded": False,
            **({} if self._bill.unit == "record" else {"unit": self._bill.unit}),
        }
        opened = Ledger.resume(ledger, planned=lambda _: event) if ledger.exists() else Ledger.create(ledger, header)
        with opened as writer:
            if writer.length == 0:
                writer.append(event, step=0)
        return draw

    def complete(self, draw: PrivateState) -> TuneResult:
        """Train and score what is left of the candidates, then release the best."""
        held: HiddenDraw = draw.reveal_to_mechanism()
        left = [index for index in range(len(held.settings)) if self.hidden.score(index) is None]
        orders = [self._order(held, index) for index in left]
        run_jobs(f"{__name__}:train_candidate", orders, self, workers=self._settings.workers, saves=True)
        if self._failure is not None:
            self.hidden.keep_reason(self._failure)  # a message may name the candidate, and with it how many there are
            remedy = f"read {self.hidden.reason}, which is for you alone, and rerun the command"
            check.refuse("every candidate to be trained", "one that could not be", remedy)
        scores = [self.hidden.score(index) or {} for index in range(len(held.settings))]
        best = max(range(len(scores)), key=lambda index: (scores[index]["score"], held.ties[index]))
        while time.time() < self._begun + self._settings.not_before:
            time.sleep(min(1.0, max(0.0, self._begun + self._settings.not_before - time.time())))
        return self._release(held, best, [float(score["score"]) for score in scores])

    def _order(self, held: HiddenDraw, index: int) -> dict[str, Any]:
        config = candidate_config(self._settings, self._bill, held.settings[index], str(self.hidden.run(index)))
        config = dataclasses.replace(config, eval_every=10**9, checkpoint_every=_CHECKPOINT_EVERY, public_data=False)
        return {
            "config": config.to_json(),
            "task": self._settings.config.to_json(),
            "index": index,
            "hidden": str(self.hidden.directory),
            "held_out": self._settings.held_out,
            "sigma": self._bill.sigma,
            "split": held.split.hex(),
        }

    def started(self, job: int) -> None:
        self._tell()

    def news(self, job: int, news: Any) -> None:
        self._tell()

    def ended(self, job: int, result: Any, failure: Exception | None) -> None:
        if failure is not None and self._failure is None:
            self._failure = failure
        self._tell()

    def _tell(self) -> None:
        self._listener(time.time() - self._begun)

    def _release(self, held: HiddenDraw, best: int, scores: list[float]) -> TuneResult:
        """Write the chosen model, the statement and the result, in this order; then delete what was hidden."""
        settings, bill, folder = self._settings, self._bill, self._folder
        weights = RunFolder(self.hidden.run(best)).model.read_bytes()
        replace_file(folder.model, lambda file: file.write(weights))
        task = load_task(settings.config)
        config = candidate_config(settings, bill, held.settings[best], str(folder.directory))
        chosen, plan = settle(config, task)
        model = make_model(chosen, task, plan, Streams.from_os())
        model.load_state_dict(torch.load(folder.model, weights_only=True))
        accuracy = measure(model, task.test, chosen.device)[0] if len(task.test) else None
        of_score = [self._accuracy(score) for score in scores]
        shown = tuple(zip(held.settings, of_score, strict=True)) if task.public else None
        result = TuneResult(
            settings=held.settings[best],
            score=of_score[best],
            test_accuracy=accuracy,
            certified=bill.certificate,
            noise=plan.noise,
            runs=settings.runs,
            shape=settings.shape,
            held_out=settings.held_out,
            candidates=shown,
            directory=folder.directory,
            unit=bill.unit,
        )
        write_text(folder.statement, tune_statement(plan, task, settings, bill, result))
        write_json(folder.run, {"config": dataclasses.replace(chosen, records=settings.config.records).to_json()})
        write_json(folder.result, result.to_json())
        self.hidden.forget()
        return result

    def _accuracy(self, score: float) -> float:
        if not self._settings.held_out:
            return score
        records = self._bill.records
        return accuracy_of(score, records * self._settings.held_out / (1 - self._settings.held_out))


def train_candidate(order: Mapping[str, Any], tell: Callable[[Any], None]) -> None:
    """Train one candidate on its part of the records and keep its score; nothing of it is shown."""
    hidden = HiddenFolder(Path(order["hidden"]))
    config, index = RunConfig.from_json(order["config"]), int(order["index"])
    whole = load_task(RunConfig.from_json(order["task"]))
    task, scoring = split_task(whole, order["held_out"], bytes.fromhex(order["split"]), config.protected())
    folder = RunFolder(config.out)
    train_on(task, config, on_progress=lambda news: tell(None), resume=folder.run.is_file(), is_paid_once=True)
    hidden.keep_score(index, {"score": _score(config, task, scoring, order["sigma"])})


def _score(config: RunConfig, task: Task, scoring: Scored, sigma: float) -> float:
    """The noisy count of a trained run; with sigma = 0, its accuracy on public records."""
    chosen, plan = settle(config, task)
    streams = Streams.from_os()
    model = make_model(chosen, task, plan, streams)
    model.load_state_dict(torch.load(RunFolder(config.out).model, weights_only=True))
    right = right_predictions(model, scoring.data, chosen.device)
    return scoring.noisy_count(right, sigma, streams.noise) if sigma else float(right.double().mean())


def score_of(config: RunConfig, task: Task, scoring: Scored, sigma: float, records: float) -> float:
    """The accuracy of a trained run on private records, by `CountQuery(sigma)`; `records` is their public number."""
    check.positive("a score on private records needs noise", sigma=sigma)
    return accuracy_of(_score(config, task, scoring, sigma), records)


def split_task(task: Task, share: float, split: bytes, unit: Unit = _RECORD) -> tuple[Task, Scored]:
    """The training part and the records that score: each record, or user, joins one of them by its own secret coin."""
    if share == 0:
        remedy = "hold out private records instead: held_out=0.1"
        check.require(len(task.test) > 0, "public test records to score on", "none", remedy)
        return task, Scored(task.test)
    x, y = task.train.tensors
    coins, names = Stream(split, name="split", replayable=True), task.owners
    held, owners = torch.zeros(len(y), dtype=torch.bool), None
    if names is None:
        held = torch.from_numpy(coins.bernoulli(len(y), share))
    else:
        users = Owners(names)
        for user in np.flatnonzero(coins.bernoulli(len(users), share)).tolist():
            held[users.records_of(user)] = True
        owners = Owners(tuple(compress(names, held.tolist())))
        names = tuple(compress(names, (~held).tolist()))
    training = TensorDataset(x[~held], y[~held])
    left = dataclasses.replace(task, train=training, test=TensorDataset(x[:0], y[:0]), owners=names, test_owners=None)
    return left, Scored(TensorDataset(x[held], y[held]), owners, unit)


def _result_from_json(body: dict[str, Any], directory: Path) -> TuneResult:
    shown = body["candidates"]
    candidates = None if shown is None else tuple((one, float(score)) for one, score in shown)
    own = {"certified": from_plain(Certificate, body["certified"]), "candidates": candidates, "directory": directory}
    return TuneResult(**{**body, **own})
