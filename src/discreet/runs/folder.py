"""A run directory: where each file lies, and writes that a crash cannot tear.

plan.json              the plan, public
run.json               config, versions, command, data, keys' fingerprints
metrics.jsonl          public values over steps
ledger.jsonl           every charge, written before its release
checkpoint/state.pt    released iterates, to go on from
model.pt               the released weights, a state dict without code
result.json            the outcome
privacy-statement.md   what a user attaches to a release
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from discreet.core import check
from discreet.training.checkpoint import replace_file


@final
class RunFolder:
    """The files of one run."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.plan = self.directory / "plan.json"
        self.run = self.directory / "run.json"
        self.metrics = self.directory / "metrics.jsonl"
        self.ledger = self.directory / "ledger.jsonl"
        self.checkpoint = self.directory / "checkpoint" / "state.pt"
        self.model = self.directory / "model.pt"
        self.result = self.directory / "result.json"
        self.statement = self.directory / "privacy-statement.md"

    def create(self) -> None:
        """Make the directory; one that holds a run is refused."""
        check.require(
            not self.run.exists() and not self.ledger.exists(),
            "a directory without a run",
            f"{self.directory}, which holds one",
            "resume that run, or choose another directory",
        )
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)

    def begun(self) -> bool:
        """Whether a run began here that may have been charged; refuses a directory without any run.

        The first checkpoint is on disk before the first charge. Without it nothing was charged, and the
        header of a ledger that may be there is taken away.
        """
        check.require(
            self.run.is_file(),
            "a directory with a run to resume",
            f"no {self.run}",
            "train without resume to begin one",
        )
        if self.checkpoint.is_file():
            return True
        content = self.ledger.read_bytes() if self.ledger.exists() else b""
        head, _, charges = content.partition(b"\n")
        check.require(
            not charges,
            f"the checkpoint {self.checkpoint}",
            "a ledger with charges and no checkpoint",
            "restore the checkpoint; without it the charges are spent and the run cannot go on",
        )
        if head or content or self.ledger.exists():
            self.ledger.unlink()
        return False

    def add_metrics(self, **values: Any) -> None:
        """One line of public values."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every whole line; what a crash cut short is left out."""
        lines = self.metrics.read_text(encoding="utf-8").split("\n") if self.metrics.exists() else []
        return [json.loads(line) for line in lines[:-1] if line.startswith("{") and line.endswith("}")]

    def mend_metrics(self) -> None:
        """Drop a last line that a crash cut short."""
        whole = "".join(json.dumps(values) + "\n" for values in self.read_metrics())
        replace_file(self.metrics, lambda file: file.write(whole.encode()))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file at once."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run."""
    check.require(path.is_file(), f"the file {path}", "none", "name the directory of a run")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        check.refuse(f"{path} to be JSON", error, "restore the file")
    check.require(
        isinstance(value, dict), f"{path} to be a JSON object", type(value).__name__, "restore the file"
    )
    return dict(value)


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once."""
    replace_file(path, lambda file: file.write(text.encode()))


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Replace a file of tensors at once; it loads with `torch.load(path, weights_only=True)`."""
    replace_file(path, lambda file: torch.save(weights, file))
