"""The files of a run directory, and how they are written.

plan.json              the plan, public
run.json               config, versions, command, data, fingerprints of the keys
metrics.jsonl          public values over steps
ledger.jsonl           every charge, written before its release
checkpoint/state.pt    released parameters, to resume from
checkpoint/best.pt     the parameters of the best evaluation so far, if the run keeps them
checkpoint/lock        held by the training process; it is free once that process has ended
model.pt               the released weights, a state dict without code
result.json            the outcome
privacy-statement.md   the privacy statement of the release
"""

import contextlib
import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from discreet.accounting.ledger import lock
from discreet.core import check
from discreet.core.command import command_line, package_versions
from discreet.core.files import write_text
from discreet.data import Task
from discreet.runs.config import RunConfig


@final
class RunFolder:
    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.plan = self.directory / "plan.json"
        self.run = self.directory / "run.json"
        self.metrics = self.directory / "metrics.jsonl"
        self.ledger = self.directory / "ledger.jsonl"
        self.checkpoint = self.directory / "checkpoint" / "state.pt"
        self.lock = self.directory / "checkpoint" / "lock"
        self.model = self.directory / "model.pt"
        self.best = self.directory / "checkpoint" / "best.pt"
        self.result = self.directory / "result.json"
        self.statement = self.directory / "privacy-statement.md"

    def check_new(self) -> None:
        is_new, got = not self.run.exists() and not self.ledger.exists(), f"{self.directory}, which holds one"
        check.require(is_new, "a directory without a run", got, "resume that run, or choose another directory")

    def check_begun(self) -> None:
        remedy = "name the directory that `discreet train` wrote (--out), or train without resume to start one"
        check.require(self.run.is_file(), "the directory of a run", f"no {self.run}", remedy)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run for this process until the block or the process ends; creates the directory."""
        self.lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace") or "another"
            os.close(descriptor)
            remedy = "wait for it or end it, then resume"
            check.refuse("a run that no process is writing", f"{self.directory}, which process {holder} holds", remedy)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
            yield
        finally:
            os.close(descriptor)

    def charges(self) -> int:
        """The number of charges in the ledger, including a torn last line; call it under the lock."""
        content = self.ledger.read_bytes() if self.ledger.exists() else b""
        return max(0, content.count(b"\n") + (not content.endswith(b"\n")) - 1)

    def repeat_line(self) -> str:
        """How to go on with a run that a budget file has paid for; `train` refuses a directory that holds a run."""
        return resume_line(self.directory) if self.run.is_file() else "the same command, which is not charged again"

    def begun(self) -> bool:
        """Whether a run started here that may have been charged; call it under the lock.

        The first checkpoint is written before the first charge. Without it nothing was charged, and a ledger that
        holds only its header is removed.
        """
        if self.checkpoint.is_file():
            return True
        if self.ledger.exists():
            with open(self.ledger, "rb+") as file:
                lock(self.ledger, file.fileno())  # a writer that knows nothing of the run's own lock
                charges = file.read().partition(b"\n")[2]
                got = "a ledger with charges and no checkpoint"
                remedy = "restore the checkpoint; without it the run cannot be resumed, and its charges stay spent"
                check.require(not charges, f"the checkpoint {self.checkpoint}", got, remedy)
                self.ledger.unlink()
        return False

    def add_metrics(self, **values: Any) -> None:
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines; a last line that a crash cut short is skipped, any other fault is refused."""
        lines = self.metrics.read_bytes().split(b"\n") if self.metrics.exists() else []
        return [self._metrics_line(number, line) for number, line in enumerate(lines[:-1], 1)]

    def _metrics_line(self, number: int, line: bytes) -> dict[str, Any]:
        expected = f"line {number} of {self.metrics} to hold step, accuracies and epsilon"
        remedy = f"delete the line, or the file, which only draws the curve; then: {resume_line(self.directory)}"
        try:
            values: dict[str, Any] = json.loads(line)
            point = (values["step"], values["test_accuracy"], values["test_accuracy_averaged"] or 0.0)
            is_point = all(isinstance(value, (int, float)) for value in point) and float(values["epsilon"]) >= 0
        except (ValueError, KeyError, TypeError):
            is_point = False
        if not is_point:
            check.damaged(expected, f"{line[:60]!r}", remedy)
        return values

    def mend_metrics(self) -> None:
        """Remove a last line that a crash cut short."""
        whole = "".join(json.dumps(values) + "\n" for values in self.read_metrics())
        write_text(self.metrics, whole)


def resume_line(directory: Path) -> str:
    return f"discreet resume {shlex.quote(str(directory))}"


def read_json(path: Path) -> dict[str, Any]:
    check.require(path.is_file(), f"the file {path}", "none", "name the directory of a run")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        check.refuse(f"{path} to be JSON", error, "restore the file")
    check.require(isinstance(value, dict), f"{path} to be a JSON object", type(value).__name__, "restore the file")
    return dict(value)


def run_facts(config: RunConfig, task: Task) -> dict[str, Any]:
    """What run.json holds at the start: settings, versions, and public facts about the data."""
    return {
        "config": config.to_json(),
        "command": command_line(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": package_versions("discreet", "torch", "numpy", "scipy"),
        "data": {
            "name": task.name,
            "checksum": task.checksum,
            "constants": task.constants,
            "records": config.records if config.records is not None else task.records,
        },
        "seed": config.seed,
        "starts": [],
    }
