"""The truth table: the certified, claimed and audited epsilon of every method."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import discreet
from discreet.auditing import broken
from discreet.auditing.games import CONFIDENCE
from discreet.auditing.rows import Attack, Effort, OnProgress, against_claim, attacks_on, statistic
from discreet.core import check
from discreet.core.command import package_versions
from discreet.core.plain import digest
from discreet.core.workers import JobFailed, failure_of, run_jobs, worker_count
from discreet.methods import METHODS
from discreet.runs.audit_rows import AuditRow


def attacks(effort: Effort, method: str | None = None) -> tuple[Attack, ...]:
    """The rows of the table: every method and every claim that is known to be wrong, or those of one method."""
    found = list(itertools.chain.from_iterable(attacks_on(each, effort) for each in METHODS.values()))
    found += [statistic(effort), *(against_claim(name, effort) for name in broken.CLAIMS)]
    known = sorted({attack.method for attack in found})
    check.require(method is None or method in known, f"a method of {', '.join(known)}", repr(method), "or use --all")
    return tuple(attack for attack in found if method in (None, attack.method))


def truth_table(
    planned: Sequence[Attack],
    *,
    effort: Effort,
    listener: OnProgress | None = None,
    workers: int | None = 1,
    kept: KeptRows | None = None,
) -> tuple[AuditRow, ...]:
    """The row of every attack, in order.

    effort   the one that the attacks were planned with
    workers  number of processes; None: one for each core, four at most
    kept     storage for finished rows, which are stored as they end; stored rows are not played again
    """
    made = {} if kept is None else kept.made(effort)
    missing = [attack for attack in planned if attack.label not in made]

    def keep(label: str, row: AuditRow) -> None:
        made[label] = row
        if kept is not None:
            kept.add(label, row, effort)

    if worker_count(len(missing), workers) <= 1:
        for attack in missing:
            keep(attack.label, attack.row(listener))
    else:
        orders = [{"label": attack.label, "effort": asdict(effort)} for attack in missing]
        told = _Finished([attack.label for attack in missing], keep, listener)
        run_jobs(f"{__name__}:play_label", orders, told, workers=workers, threads=1)
    return tuple(made[attack.label] for attack in planned)


def play_label(order: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """In a worker: attacks hold functions that cannot be sent, labels can, and each label is there once."""
    planned = attacks(Effort(**order["effort"]))
    return next(attack for attack in planned if attack.label == order["label"]).row().to_json()


def document(rows: Iterable[AuditRow], *, command: str) -> dict[str, Any]:
    """The table as a JSON value, with the command and the versions of packages."""
    return {
        "rows": [row.to_json() for row in rows],
        "confidence": CONFIDENCE,
        "command": command,
        "versions": package_versions("discreet", "numpy", "scipy", "torch"),
    }


@final
class KeptRows:
    """Finished rows in a file, one a line, so that an interrupted table can be resumed.

    Only finished rows are stored, so no partial result can decide whether a row counts. A stored row is used only for
    the same game, effort and code, since its certificate belongs to the code that computed it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:  # fail now, not after hours, if the file cannot be written
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # remove a line that was cut short

    def made(self, effort: Effort) -> dict[str, AuditRow]:
        """The stored rows, by label."""
        try:
            entries = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            return {e["label"]: AuditRow.from_json(e["row"]) for e in entries if e["made"] == _making(effort)}
        except (KeyError, TypeError, ValueError) as error:
            check.refuse(f"rows of a truth table in {self.path}", error, "delete the file and start again")

    def add(self, label: str, row: AuditRow, effort: Effort) -> None:
        """Store a row."""
        line = json.dumps({"label": label, "row": row.to_json(), "made": _making(effort)}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def discard(self) -> None:
        """Delete the file: the table is finished and stored elsewhere."""
        self.path.unlink()


def _making(effort: Effort) -> dict[str, Any]:
    return {"effort": asdict(effort), "code": _code()}


@functools.cache
def _code() -> str:
    """A digest of the library's source."""
    folder = Path(discreet.__file__).parent
    return digest([path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))])


@final
class _Finished:
    """Passes on the rows that workers finish."""

    def __init__(self, labels: list[str], keep: Callable[[str, AuditRow], None], listener: OnProgress | None) -> None:
        self._labels, self._keep, self._listener = labels, keep, listener

    def started(self, job: int) -> None: ...

    def news(self, job: int, news: Any) -> None: ...

    def ended(self, job: int, result: Any, failure: Exception | None) -> None:
        if failure is not None:
            kind = check.Refused if isinstance(failure, check.Refused) else JobFailed
            raise kind(f"{self._labels[job]}: {failure_of(failure)}") from failure
        row = AuditRow.from_json(result)
        if self._listener is not None:
            self._listener(self._labels[job], row.parameters["trials"], row.parameters["trials"])
        self._keep(self._labels[job], row)
