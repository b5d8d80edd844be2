"""Train from a config into a run directory, and resume after a crash."""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import torch
from torch.utils.data import TensorDataset

from discreet.core.errors import RunStopped
from discreet.core.files import replace_file, write_json, write_text
from discreet.core.interrupts import HeldInterrupt
from discreet.core.launch import starts
from discreet.core.randomness import SEEDED
from discreet.core.streams import Streams
from discreet.core.world import World, joined
from discreet.data import Task
from discreet.runs.config import RunConfig
from discreet.runs.defaults import check_device, check_keeps_best, complete, every_of, load_task, settle
from discreet.runs.folder import RunFolder, read_json, resume_line, run_facts
from discreet.runs.making import make_model, make_optimizer, scale_learning_rate, seed_of
from discreet.runs.paying import pay
from discreet.runs.public_records import load_public
from discreet.runs.results import (
    Listener,
    RunOutline,
    RunProgress,
    RunResult,
    curve_of,
    features_progress,
    known_to_all,
    result_from_json,
)
from discreet.runs.scoring import evaluated
from discreet.runs.statement import run_statement
from discreet.stages.plan import Plan
from discreet.training.checkpoint import keys_of
from discreet.training.draws import own_part
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

    Under torchrun, each process trains on its own part of the records, and the first writes the directory. If torchrun
    starts the processes again, they resume the run.
    """
    check_device(config.device)
    with joined(config.device) as world:
        restarted = world.from_first(lambda: starts() > 0 and RunFolder(config.out).run.is_file())
        return _train(complete(config), world, on_start, on_progress, resume=resume or restarted)


def _train(
    config: RunConfig,
    world: World,
    on_start: Callable[[RunOutline], None] | None,
    on_progress: Listener | None,
    *,
    resume: bool,
) -> RunResult:
    def run() -> RunResult:
        task, once = load_task(config, features_progress(on_progress)), config.budget is not None
        return train_on(task, config, is_paid_once=once, on_start=on_start, on_progress=on_progress, resume=resume)

    if config.budget is None:
        return run()
    folder, budget, (_, plan) = RunFolder(config.out), config.budget, settle(config, None)

    def paid() -> None:
        folder.check_begun() if resume else folder.check_new()
        what = f"train {config.method} into {config.out}"
        pay(budget, folder.directory, plan.charge(), plan.relation, what=what, unit=plan.unit.name)

    world.from_first(paid)
    try:
        return run()
    except RunStopped:
        raise
    except Exception as error:
        raise RunStopped(1, Path(budget), folder.repeat_line()) from error


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
    started, world = time.perf_counter(), World.current()
    folder = RunFolder(config.out)
    is_new = not folder.directory.exists()
    config, plan = settle(config, task)
    check_keeps_best(config, plan, task)
    with contextlib.ExitStack() as held:

        def opened() -> bool:
            """Lock the run first, and say whether it has ended."""
            if resume:
                folder.check_begun()
                config.check_resumes(load_config(config.out))
            else:
                folder.check_new()
            if not (resume and folder.result.exists()):
                held.enter_context(folder.held())
            return resume and folder.result.exists()  # now that no other process is training it

        if world.from_first(opened):
            return known_to_all(world, lambda: load_result(config.out))
        charged = folder.charges() if world.is_first else 0
        part = _TrainingPart(config, task, plan, folder, on_progress, world)
        try:
            part.begin(resume)
            if is_paid_once:
                world.from_first(lambda: check_not_restarted(folder.ledger))
            if on_start is not None:
                on_start(part.outline())
            return part.complete(started)
        except Exception as error:
            if not world.is_first:
                raise
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

    def __init__(
        self, config: RunConfig, task: Task, plan: Plan, folder: RunFolder, listener: Listener | None, world: World
    ) -> None:
        self._config, self._task, self._plan, self._folder = config, task, plan, folder
        self._listener, self._world = listener, world
        self._eval_every, self._save_every = every_of(config, plan)
        self._seen, self._resumes = 0, 0
        self._last: RunProgress | None = None
        self._scores: dict[str, float] = {}
        self._told = time.monotonic()
        self._private: Private | None = None

    def begin(self, resume: bool) -> None:
        """Write the files of a new run or check those of the old one, and build what can release."""
        folder = self._folder
        has_checkpoint, self._resumes = self._world.from_first(lambda: self._files(resume))
        self._private = self._bind(folder.checkpoint if has_checkpoint else None)
        self._seen = self.private.progress.step
        if has_checkpoint and self._world.is_first:
            folder.mend_metrics()
        self.private.save(folder.checkpoint)
        self._world.wait_for_first()  # before the first charge: a charged run has a checkpoint

    def _files(self, resume: bool) -> tuple[bool, int]:
        """Whether the run has a checkpoint, and how often it was started before."""
        folder, has_checkpoint = self._folder, False
        if resume:
            has_checkpoint = folder.begun()
            folder.read_metrics()  # refused before anything is spent
        else:
            folder.check_new()
            write_json(folder.plan, {**self._plan.to_json(), "digest": self._plan.digest})
            write_json(folder.run, run_facts(self._config, self._task))
        return has_checkpoint, len(read_json(folder.run)["starts"])

    def complete(self, started: float) -> RunResult:
        """Run every remaining step and write the results; Ctrl-C saves a checkpoint first."""
        try:
            self._loop()
            return known_to_all(self._world, lambda: self._finish(time.perf_counter() - started))
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
            own_part(self._task.train),
            micro_batch=config.micro_batch,
            device=config.device,
            average=config.average or None,
            ledger=self._folder.ledger,
            streams=streams,
            resume=checkpoint,
            public=load_public(config, self._plan, self._task),
            unit=self._task.owners,
            fixed_rows=config.fixed_rows,
        )

    def _note_start(self) -> Streams:
        seed, number = self._config.seed, self._resumes
        streams = Streams.from_os() if seed is None else Streams.seeded(seed_of(seed, number))
        keys = keys_of(streams, self._world)

        def note() -> None:
            facts = read_json(self._folder.run)
            facts["starts"].append({"start": number, "processes": self._world.size, **keys})
            facts["randomness"] = SEEDED if facts.get("randomness") == SEEDED else streams.statement
            write_json(self._folder.run, facts)

        self._world.from_first(note)
        return streams

    def _loop(self) -> None:
        private, losses = self.private, self._task.predicts.losses
        # Ctrl-C before the end of an update would lose it. Processes that wait for each other must not hold it back.
        with HeldInterrupt(self._world.size == 1) as interrupt:
            for x, y in private:
                scale_learning_rate(private, self._config)
                private.step(losses(private.model(x), y))
                self._tick()
                interrupt.check()
            self._tick()

    def _tick(self) -> None:
        step, steps = self.private.progress.step, self._plan.horizon.steps
        if step == self._seen or not self.private.settled:
            return
        due = step // self._eval_every > self._seen // self._eval_every and self._plan.analysis.visible
        due = due or step == steps  # if iterates must stay hidden, only the last one is evaluated
        due = due and self._world.is_first
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
            losses = {"train_loss": train_loss, "test_loss": loss}  # JSON has no NaN: none of a model that diverged
            values["train_accuracy"] = scores[self._task.predicts.measure]
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
        private, folder, last = self.private, self._folder, self._last
        private.save(folder.checkpoint)
        # A run that is resumed with no steps left holds an older model than the last metrics describe.
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
