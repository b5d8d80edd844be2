"""Playing the rows of a truth table: several at once, each kept as soon as it is made."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import discreet
from discreet.auditing.rows import Attack, Effort, OnProgress
from discreet.auditing.verdicts import Row
from discreet.core import check
from discreet.core.plain import digest
from discreet.core.workers import crew_size


@final
class KeptRows:
    """Rows in a file, one a line, so that a table of hours which was stopped goes on.

    Only whole rows are kept, so nothing that was seen of a row can decide whether it counts. A row is taken again
    for the same game, effort and code alone: its certificate is that of the code that made it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:  # before hours of work: a place that cannot be written to is told now
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # a line that was cut short was never made

    def made(self, effort: Effort) -> dict[str, Row]:
        """The rows that are there, by label."""
        try:
            entries = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            return {e["label"]: Row.from_json(e["row"]) for e in entries if e["made"] == _making(effort)}
        except (KeyError, TypeError, ValueError) as error:
            check.refuse(f"rows of a truth table in {self.path}", error, "delete the file, and begin anew")

    def add(self, label: str, row: Row, effort: Effort) -> None:
        """Keep a row."""
        line = json.dumps({"label": label, "row": row.to_json(), "made": _making(effort)}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def discard(self) -> None:
        """The table is whole and lies elsewhere."""
        self.path.unlink()


def _making(effort: Effort) -> dict[str, Any]:
    return {"effort": asdict(effort), "code": _code()}


@functools.cache
def _code() -> str:
    """What the library's source is, in one word."""
    folder = Path(discreet.__file__).parent
    return digest([path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))])


def play_all(
    attacks: Sequence[Attack], effort: Effort, *, workers: int | None, listener: OnProgress | None
) -> Iterator[tuple[str, Row]]:
    """Labels and rows, as they are made; with several workers in the order in which they end."""
    at_once = crew_size(len(attacks), workers)
    if at_once <= 1:
        yield from ((attack.label, attack.row(listener)) for attack in attacks)
        return
    # Spawned, not forked: a fork after torch has started its threads may hang.
    pool = ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn"), _one_thread)
    try:
        playing = {pool.submit(_play, attack.label, effort): attack.label for attack in attacks}
        for future in as_completed(playing):
            label, row = playing[future], Row.from_json(future.result())
            if listener is not None:
                listener(label, row.parameters["trials"], row.parameters["trials"])
            yield label, row
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _play(label: str, effort: Effort) -> dict[str, Any]:
    """In a worker: attacks hold functions that do not travel, labels do, and each is there once."""
    from discreet.auditing.truth import Scope, attacks

    found = next(attack for attack in attacks(Scope.everything(), effort) if attack.label == label)
    return found.row().to_json()
