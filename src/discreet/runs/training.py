"""Training from a config to a run directory, and going on after a crash."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from discreet import data as tasks
from discreet.core.command import command_line
from discreet.core.streams import Streams
from discreet.methods.dpsgd_dc.guard import fitting
from discreet.runs.config import RunConfig
from discreet.runs.defaults import complete, every_of, settle
from discreet.runs.folder import RunFolder, read_json, write_json, write_text, write_weights
from discreet.runs.results import Point, RunProgress, RunResult, result_from_json
from discreet.runs.statement import run_statement
from discreet.stages.plan import Plan
from discreet.training.checkpoint import keys_of
from discreet.training.private import Private

Listener = Callable[[RunProgress], None]
_EVALUATED_AT_ONCE = 2048


def train(config: RunConfig, *, on_progress: Listener | None = None, resume: bool = False) -> RunResult:
    """Train as `config` says and leave a run directory; with `resume`, go on after every charged step.

    A run that finished already is read, not run again. Ctrl-C saves a checkpoint before it is passed on.
    """
    started = time.perf_counter()
    folder = RunFolder(config.out)
    config = complete(config)
    task = _task(config)
    config, plan = settle(config, task)
    going_on = False
    if resume:
        going_on = folder.begun()
        config.check_resumes(load_config(config.out))
        if folder.result.exists():
            return load_result(config.out)
    else:
        folder.create()
        write_json(folder.plan, {**plan.to_json(), "digest": plan.digest})
        write_json(folder.run, _run_facts(config, task))
    run = _Run(config, task, plan, folder, on_progress)
    run.bind(going_on)
    try:
        run.loop()
        return run.finish(time.perf_counter() - started)
    except KeyboardInterrupt:
        if run.private.settled:  # else the last checkpoint stands, and the ledger knows what came after
            run.private.save(folder.checkpoint)
        raise
    finally:
        run.private.close()


def load_config(directory: str | Path) -> RunConfig:
    """The settings of the run in this directory."""
    config = RunConfig.from_json(read_json(RunFolder(directory).run)["config"])
    return dataclasses.replace(config, out=str(directory))


def load_result(directory: str | Path) -> RunResult:
    """The result of a finished run in this directory."""
    folder = RunFolder(directory)
    text = folder.statement.read_text(encoding="utf-8") if folder.statement.exists() else ""
    return result_from_json(read_json(folder.result), directory=Path(directory), statement=text)


@final
class _Run:
    """One stretch of a run, from its start or from a resume to its end or to the next crash."""

    def __init__(
        self, config: RunConfig, task: tasks.Task, plan: Plan, folder: RunFolder, listener: Listener | None
    ) -> None:
        self._config, self._task, self._plan, self._folder = config, task, plan, folder
        self._listener = listener
        self._eval_every, self._save_every = every_of(config, plan)
        self._seen, self._resumes = 0, 0
        self._last: RunProgress | None = None

    def bind(self, going_on: bool) -> None:
        """Key the randomness, note its fingerprints on disk, and only then build what can release."""
        config, folder = self._config, self._folder
        streams = self._note_start()
        model = tasks.build(
            str(config.model),
            shape=self._task.shape,
            classes=self._task.classes,
            seed=int(streams.init.uniform64(1)[0] >> 1),
        )
        model = fitting(model, self._plan).to(config.device)
        self.private = Private(
            model,
            make_optimizer(config, model),
            self._plan,
            self._task.train,
            micro_batch=config.micro_batch,
            device=config.device,
            average=config.average or None,
            ledger=folder.ledger,
            streams=streams,
            resume=folder.checkpoint if going_on else None,
        )
        self._seen = self.private.progress.step
        if going_on:
            folder.mend_metrics()
        self.private.save(
            folder.checkpoint
        )  # before the first charge: no ledger with charges lacks a checkpoint

    def _note_start(self) -> Streams:
        facts = read_json(self._folder.run)
        number = len(facts["starts"])
        seed = self._config.seed
        streams = Streams.from_os() if seed is None else Streams.seeded(_seed_of(seed, number))
        facts["starts"].append({"start": number, **keys_of(streams)})
        facts["randomness"] = streams.statement
        write_json(self._folder.run, facts)
        self._resumes = number
        return streams

    def loop(self) -> None:
        """All steps that are left."""
        private, model = self.private, self.private.model
        for x, y in private:
            self._keep_reach()
            private.step(F.cross_entropy(model(x), y, reduction="none"))
            self._tick()
        self._tick()

    def _keep_reach(self) -> None:
        """SGD's learning rate over a bound that adapts: a record moves the model as far as at the start.

        The scale is public. Without this, larger gradients raise the bound, the bound raises the noise, and the
        noise makes the gradients larger still.
        """
        assert self._config.learning_rate is not None
        if self._config.optimizer == "sgd":
            for group in self.private.optimizer.param_groups:
                group["lr"] = self._config.learning_rate / self.private.progress.scale

    def _tick(self) -> None:
        """After each step: tell, evaluate and save where that is due."""
        step, steps = self.private.progress.step, self._plan.known_horizon.steps
        if step == self._seen or not self.private.settled:
            return
        due = step // self._eval_every > self._seen // self._eval_every and self._plan.analysis.visible
        due = due or step == steps  # where iterates stay hidden, the last one alone is looked at
        save = step // self._save_every > self._seen // self._save_every
        self._seen = step
        if save or step == steps:  # before it is looked at: after a crash no older iterate is shown beside it
            self.private.save(self._folder.checkpoint)
        news = self._evaluate() if due else RunProgress(step=step, steps=steps)
        if self._listener is not None:
            self._listener(news)

    def _evaluate(self) -> RunProgress:
        private, test = self.private, self._task.test
        step, steps = private.progress.step, self._plan.known_horizon.steps
        accuracy, loss = measure(private.model, test, self._config.device)
        averaged = None
        if private.average is not None:
            with private.averaged():
                averaged, loss = measure(private.model, test, self._config.device)
        epsilon = private.spent().certified.epsilon
        values: dict[str, Any] = {
            "step": step,
            "test_accuracy": accuracy,
            "test_accuracy_averaged": averaged,
            "epsilon": epsilon if math.isfinite(epsilon) else "inf",
            "delta": self._plan.known_delta,
        }
        if self._config.public_data:
            right, train_loss = measure(private.model, self._task.train, self._config.device)
            values |= {"train_accuracy": right, "train_loss": _finite(train_loss), "test_loss": _finite(loss)}
        self._folder.add_metrics(**values)
        self._last = RunProgress(
            step=step, steps=steps, accuracy=accuracy, averaged_accuracy=averaged, epsilon=epsilon
        )
        return self._last

    def finish(self, seconds: float) -> RunResult:
        """Publish the model, the statement and the result, in this order: a result says that all is there."""
        private, folder = self.private, self._folder
        private.save(folder.checkpoint)
        # A resumed run with nothing left to do holds an older model than the last metrics are about.
        last = (
            self._last
            if self._last is not None and self._last.step == private.progress.step
            else self._evaluate()
        )
        assert last.accuracy is not None
        with private.averaged() if private.average is not None else contextlib.nullcontext():
            weights = {
                name: value.detach().cpu().clone() for name, value in private.model.state_dict().items()
            }
        write_weights(folder.model, weights)
        spent = private.spent()
        text = run_statement(self._config, self._plan, self._task, spent, self._resumes)
        write_text(folder.statement, text)
        result = RunResult(
            method=self._config.method,
            data=self._config.data,
            accuracy=last.accuracy,
            averaged_accuracy=last.averaged_accuracy,
            spent=spent,
            seconds=round(seconds, 1),
            steps=private.progress.step,
            lost=private.progress.step - private.updates,
            resumes=self._resumes,
            curve=_curve(folder.read_metrics()),
            statement=text,
            directory=folder.directory,
        )
        write_json(folder.result, result.to_json())
        return result


@torch.no_grad()
def measure(model: nn.Module, data: TensorDataset, device: str = "cpu") -> tuple[float, float]:
    """The share of records whose largest score is their label's, and the mean cross-entropy."""
    was_training, right, total = model.training, 0, 0.0
    model.eval()
    x, y = data.tensors
    for some, labels in zip(x.split(_EVALUATED_AT_ONCE), y.split(_EVALUATED_AT_ONCE), strict=True):
        scores = model(some.to(device)).cpu()
        right += int((scores.argmax(1) == labels).sum())
        total -= scores.double().log_softmax(1).gather(1, labels[:, None]).sum().item()
    model.train(was_training)
    return right / max(len(y), 1), total / max(len(y), 1)


def _finite(loss: float) -> float | None:
    """A loss as JSON takes it: a model that diverged has none."""
    return loss if math.isfinite(loss) else None


def accuracy_of(model: nn.Module, data: TensorDataset, device: str = "cpu") -> float:
    """The share of records whose largest score is their label's."""
    return measure(model, data, device)[0]


def _curve(metrics: list[dict[str, Any]]) -> tuple[Point, ...]:
    """One point a step; a later evaluation of the same step replaces an earlier one."""
    points = {}
    for values in metrics:
        averaged = values["test_accuracy_averaged"]
        accuracy = values["test_accuracy"] if averaged is None else averaged
        points[values["step"]] = (values["step"], accuracy, float(values["epsilon"]))
    return tuple(points[step] for step in sorted(points))


def _task(config: RunConfig) -> tasks.Task:
    if config.data.endswith(".npz"):
        return tasks.load(
            config.data, classes=config.classes, records=config.records, public=config.public_data
        )
    return tasks.load(config.data, data_dir=config.data_dir, download=config.download, classes=config.classes)


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a config with a learning rate names."""
    assert config.learning_rate is not None
    assert config.momentum is not None
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        model.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def _seed_of(seed: int, start: int) -> int:
    """The seed of a start: a resumed run must not draw the noise of the part before."""
    if start == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"resume {start} of {seed}".encode()).digest()[:16], "big")


def _run_facts(config: RunConfig, task: tasks.Task) -> dict[str, Any]:
    return {
        "config": config.to_json(),
        "command": command_line(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("discreet", "torch", "numpy", "scipy")},
        },
        "data": {
            "name": task.name,
            "checksum": task.checksum,
            "constants": task.constants,
            "records": config.records if config.records is not None else task.records,
        },
        "seed": config.seed,
        "starts": [],
    }
