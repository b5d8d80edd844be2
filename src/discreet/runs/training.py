"""Train from a config into a run directory, and resume after a crash."""

import contextlib
import dataclasses
import hashlib
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.core.errors import RunStopped
from discreet.core.files import replace_file, write_json, write_text
from discreet.core.randomness import SEEDED
from discreet.core.streams import Streams
from discreet.data import Task, build
from discreet.methods.dpsgd_dc.guard import fitting
from discreet.runs.config import RunConfig, learning_rate_factor
from discreet.runs.defaults import check_device, check_keeps_best, complete, every_of, load_task, settle
from discreet.runs.folder import RunFolder, read_json, resume_line, run_facts
from discreet.runs.paying import pay
from discreet.runs.public_records import load_public
from discreet.runs.results import (
    Listener,
    RunOutline,
    RunProgress,
    RunResult,
    curve_of,
    features_progress,
    result_from_json,
)
from discreet.runs.scoring import evaluated
from discreet.runs.statement import run_statement
from discreet.stages.plan import Plan
from discreet.training.checkpoint import keys_of
from discreet.training.noise_keys import check_not_restarted
from discreet.training.private import Private

TELL_EVERY = 30.0
"""Seconds after which the listener is told the epsilon so far, if no evaluation did."""


def train(
    config: RunConfig,
    *,
    on_start: Callable[[RunOutline], None] | None = None,
    on_progress: Listener | None = None,
    resume: bool = False,
) -> RunResult:
    """Train with these settings into a run directory; with `resume`, continue after the last charged step.

    A finished run is read, not repeated. Ctrl-C saves a checkpoint before it propagates. A run
    that ends early for any other reason, after it has spent, raises `RunStopped`; one that has spent nothing leaves no
    directory behind.
    """
    check_device(config.device)
    config = complete(config)

    def run() -> RunResult:
        task = load_task(config, features_progress(on_progress))
        return train_on(
            task,
            config,
            is_paid_once=config.budget is not None,
            on_start=on_start,
            on_progress=on_progress,
            resume=resume,
        )

    if config.budget is None:
        return run()
    folder, (_, plan) = RunFolder(config.out), settle(config, None)
    if resume:
        folder.check_begun()
    else:
        folder.check_new()
    what = f"train {config.method} into {config.out}"
    pay(config.budget, folder.directory, plan.charge(), plan.relation, what=what)
    try:
        return run()
    except RunStopped:
        raise
    except Exception as error:
        raise RunStopped(1, Path(config.budget), "the same command, which is not charged again") from error


def train_on(
    task: Task,
    config: RunConfig,
    *,
    on_start: Callable[[RunOutline], None] | None = None,
    on_progress: Listener | None = None,
    resume: bool = False,
    is_paid_once: bool = False,
) -> RunResult:
    """Like `train`, on records that have been read and paid for.

    is_paid_once  a budget file or a search has paid for the run, once: it may not be charged again
    """
    started = time.perf_counter()
    folder = RunFolder(config.out)
    is_new = not folder.directory.exists()
    config, plan = settle(config, task)
    check_keeps_best(config, plan, task)
    if resume:
        folder.check_begun()
        config.check_resumes(load_config(config.out))
        if folder.result.exists():
            return load_result(config.out)
    else:
        folder.check_new()
    with folder.held():  # before anything of the run is touched: another process may be training it
        if resume and folder.result.exists():
            return load_result(config.out)
        charged = folder.charges()
        part = _TrainingPart(config, task, plan, folder, on_progress)
        try:
            part.begin(resume)
            if is_paid_once:
                check_not_restarted(folder.ledger)
            if on_start is not None:
                on_start(part.outline())
            return part.complete(started)
        except Exception as error:
            spent = folder.charges()
            if spent > charged:
                raise RunStopped(spent, folder.ledger, resume_line(folder.directory)) from error
            if is_new and not spent:
                shutil.rmtree(folder.directory)
            raise
        finally:
            part.close()


def load_config(directory: str | Path) -> RunConfig:
    config = RunConfig.from_json(read_json(RunFolder(directory).run)["config"])
    return dataclasses.replace(config, out=str(directory))


def load_result(directory: str | Path) -> RunResult:
    folder = RunFolder(directory)
    text = folder.statement.read_text(encoding="utf-8") if folder.statement.exists() else ""
    return result_from_json(read_json(folder.result), directory=Path(directory), statement=text)


@final
class _TrainingPart:
    """One part of a run: from its start or a resume to its end or the next crash."""

    def __init__(self, config: RunConfig, task: Task, plan: Plan, folder: RunFolder, listener: Listener | None) -> None:
        self._config, self._task, self._plan, self._folder = config, task, plan, folder
        self._listener = listener
        self._eval_every, self._save_every = every_of(config, plan)
        self._seen, self._resumes = 0, 0
        self._last: RunProgress | None = None
        self._scores: dict[str, float] = {}
        self._told = time.monotonic()
        self._private: Private | None = None

    def begin(self, resume: bool) -> None:
        """Write the files of a new run or check those of the old one, and build what can release."""
        folder, has_checkpoint = self._folder, False
        if resume:
            has_checkpoint = folder.begun()
            folder.read_metrics()  # refused before anything is spent
        else:
            folder.check_new()
            write_json(folder.plan, {**self._plan.to_json(), "digest": self._plan.digest})
            write_json(folder.run, run_facts(self._config, self._task))
        self._private = self._bind(folder.checkpoint if has_checkpoint else None)
        self._seen = self.private.progress.step
        if has_checkpoint:
            folder.mend_metrics()
        self.private.save(folder.checkpoint)  # before the first charge: a charged run has a checkpoint

    def complete(self, started: float) -> RunResult:
        """Run every remaining step and write the results; Ctrl-C saves a checkpoint first."""
        try:
            self._loop()
            return self._finish(time.perf_counter() - started)
        except KeyboardInterrupt:
            if self.private.settled:  # otherwise the last checkpoint is kept, and the ledger has what came after
                self.private.save(self._folder.checkpoint)
            raise

    def close(self) -> None:
        """Release the ledger's lock, also if the run did not begin, so that this process can resume it."""
        if self._private is not None:
            self._private.close()

    @property
    def private(self) -> Private:
        assert self._private is not None
        return self._private

    def _bind(self, checkpoint: Path | None) -> Private:
        """Create the random streams and store their fingerprints before anything is built that can release."""
        config, streams = self._config, self._note_start()
        model = make_model(config, self._task, self._plan, streams)
        return Private(
            model,
            make_optimizer(config, model),
            self._plan,
            self._task.train,
            micro_batch=config.micro_batch,
            device=config.device,
            average=config.average or None,
            ledger=self._folder.ledger,
            streams=streams,
            resume=checkpoint,
            public=load_public(config, self._plan, self._task),
            unit=self._task.owners,
        )

    def _note_start(self) -> Streams:
        facts, seed = read_json(self._folder.run), self._config.seed
        self._resumes = number = len(facts["starts"])
        streams = Streams.from_os() if seed is None else Streams.seeded(_seed_of(seed, number))
        facts["starts"].append({"start": number, **keys_of(streams)})
        facts["randomness"] = SEEDED if facts.get("randomness") == SEEDED else streams.statement
        write_json(self._folder.run, facts)
        return streams

    def _loop(self) -> None:
        private, losses = self.private, self._task.predicts.losses
        for x, y in private:
            scale_learning_rate(private, self._config)
            private.step(losses(private.model(x), y))
            self._tick()
        self._tick()

    def _tick(self) -> None:
        step, steps = self.private.progress.step, self._plan.horizon.steps
        if step == self._seen or not self.private.settled:
            return
        due = step // self._eval_every > self._seen // self._eval_every and self._plan.analysis.visible
        due = due or step == steps  # if iterates must stay hidden, only the last one is evaluated
        save = step // self._save_every > self._seen // self._save_every
        self._seen = step
        if save or step == steps:  # before it is evaluated: after a crash no older iterate is shown beside it
            self.private.save(self._folder.checkpoint)
        news = self._evaluate() if due else self._progress(step, steps)
        if self._listener is not None:
            self._listener(news)

    def _progress(self, step: int, steps: int) -> RunProgress:
        if self._listener is None or time.monotonic() < self._told + TELL_EVERY:
            return RunProgress(step=step, steps=steps)
        self._told = time.monotonic()
        spent = self.private.spent()
        return RunProgress(step=step, steps=steps, epsilon=spent.certified.epsilon, seeded=spent.seeded)

    def outline(self) -> RunOutline:
        """What is about to be done."""
        config, plan, begun = self._config, self._plan, self.private.progress.step
        return RunOutline(
            method=config.method,
            data=config.data,
            model=str(config.model),
            parameters=sum(p.numel() for p in self.private.model.parameters() if p.requires_grad),
            steps=plan.horizon.steps,
            begun=begun,
            plan=plan.outline,
            epsilon=plan.certificate().epsilon,
        )

    def _evaluate(self) -> RunProgress:
        private, step, spent = self.private, self.private.progress.step, self.private.spent()
        self._scores, loss = self._measured(self._task.test)
        accuracy, averaged = self._main, None
        if private.average is not None:
            with private.averaged():
                self._scores, loss = self._measured(self._task.test)
            averaged = self._main
        epsilon = spent.certified.epsilon
        values: dict[str, Any] = {
            "step": step,
            "test_accuracy": accuracy,
            "test_accuracy_averaged": averaged,
            "epsilon": epsilon if math.isfinite(epsilon) else "inf",
            "delta": self._plan.delta,
        }
        if self._config.public_data:
            scores, train_loss = self._measured(self._task.train)
            losses = {"train_loss": train_loss, "test_loss": loss}
            values |= {
                "train_accuracy": scores[self._task.predicts.measure]
            }  # JSON has no NaN: a model that diverged has no loss
            values |= {name: value if math.isfinite(value) else None for name, value in losses.items()}
        self._folder.add_metrics(**values)
        if self._config.keep_best:
            self._keep_best(accuracy if averaged is None else averaged)
        self._last = RunProgress(
            step=step,
            steps=self._plan.horizon.steps,
            accuracy=accuracy,
            averaged_accuracy=averaged,
            measure=self._task.predicts.measure,
            epsilon=epsilon,
            seeded=spent.seeded,
        )
        return self._last

    def _measured(self, data: TensorDataset) -> tuple[dict[str, float], float]:
        return evaluated(self.private.model, data, self._task.predicts, self._config.device)

    @property
    def _main(self) -> float:
        """The score of the last evaluation that runs are ranked by."""
        return self._scores[self._task.predicts.measure]

    def _keep_best(self, accuracy: float) -> None:
        """Keep the parameters if no evaluation was better. The test records are public, so the choice is free."""
        file = self._folder.best
        if not file.exists() or accuracy > torch.load(file, weights_only=True)["accuracy"]:
            kept = {"accuracy": accuracy, "step": self.private.progress.step, "weights": self._weights()}
            kept |= {"scores": self._scores}
            replace_file(file, lambda stream: torch.save(kept, stream))

    def _weights(self) -> dict[str, Any]:
        private = self.private
        with private.averaged() if private.average is not None else contextlib.nullcontext():
            return {name: value.detach().cpu().clone() for name, value in private.model.state_dict().items()}

    def _finish(self, seconds: float) -> RunResult:
        """Write the model, the statement and the result, in this order: a result means that every file is there."""
        private, folder = self.private, self._folder
        private.save(folder.checkpoint)
        # A run that is resumed with no steps left holds an older model than the last metrics describe.
        last = self._last
        if last is None or last.step != private.progress.step:
            last = self._evaluate()
        weights = self._weights()
        if self._config.keep_best:
            best = torch.load(folder.best, weights_only=True)
            weights, kept, self._scores = best["weights"], best["accuracy"], best.get("scores", {})
            averaged = None if last.averaged_accuracy is None else kept
            last = dataclasses.replace(last, accuracy=kept, averaged_accuracy=averaged)
        assert last.accuracy is not None
        replace_file(folder.model, lambda file: torch.save(weights, file))
        spent = private.spent()
        text = run_statement(self._config, self._plan, self._task, spent, self._resumes)
        write_text(folder.statement, text)
        result = RunResult(
            method=self._config.method,
            data=self._config.data,
            accuracy=last.accuracy,
            averaged_accuracy=last.averaged_accuracy,
            measure=self._task.predicts.measure,
            scores=tuple(self._scores.items()) if len(self._scores) > 1 else (),
            spent=spent,
            seconds=round(seconds, 1),
            steps=private.progress.step,
            lost=private.progress.step - private.updates,
            resumes=self._resumes,
            curve=curve_of(folder.read_metrics()),
            statement=text,
            directory=folder.directory,
        )
        write_json(folder.result, result.to_json())
        return result


def make_model(config: RunConfig, task: Task, plan: Plan, streams: Streams) -> nn.Module:
    seed = int(streams.init.uniform64(1)[0] >> 1)
    model = build(str(config.model), shape=task.shape, classes=task.classes, seed=seed)
    return fitting(model, plan).to(config.device)


def scale_learning_rate(private: Private, config: RunConfig) -> None:
    """Set the learning rate of the next step by its schedule; with SGD, divide by the scale of an adaptive clip.

    The scale is public. A clipped record then moves the model as far as at the start. Without this, larger gradients
    raise the clipping norm, the clipping norm raises the noise, and the noise makes the gradients larger still.
    """
    if config.learning_rate is None:
        return
    factor = learning_rate_factor(config.schedule or "constant", private.progress.step / private.plan.horizon.steps)
    for group in private.optimizer.param_groups:
        group["lr"] = config.learning_rate * factor / (private.progress.scale if config.optimizer == "sgd" else 1.0)


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    assert config.learning_rate is not None
    assert config.momentum is not None
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=config.momentum, weight_decay=decay)


def _seed_of(seed: int, start: int) -> int:
    """The seed of each start: a resumed run must not draw the noise of an earlier part again."""
    if start == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"resume {start} of {seed}".encode()).digest()[:16], "big")
