"""The truth table: the certified, claimed and audited epsilon of every method."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from discreet.auditing import broken
from discreet.auditing.audit_runner import KeptRows, play_all
from discreet.auditing.games import CONFIDENCE
from discreet.auditing.rows import FULL, QUICK, Attack, Effort, OnProgress, against_claim, attacks_on, statistic
from discreet.core import check
from discreet.core.command import package_versions
from discreet.runs.audit_rows import AuditRow

__all__ = ["FULL", "QUICK", "Effort", "KeptRows", "attacks", "document", "truth_table"]


def attacks(effort: Effort, method: str | None = None) -> tuple[Attack, ...]:
    """The rows of the table: every method and every claim that is known to be wrong, or those of one method."""
    from discreet.methods import METHODS

    found = list(itertools.chain.from_iterable(attacks_on(each, effort) for each in METHODS.values()))
    found += [statistic(effort), *(against_claim(name, effort) for name in broken.CLAIMS)]
    known = sorted({attack.method for attack in found})
    check.require(
        method is None or method in known, f"a method of {', '.join(known)}", repr(method), "use --all for all"
    )
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
    kept     storage for finished rows; stored rows are not played again
    """
    made = {} if kept is None else kept.made(effort)
    missing = [attack for attack in planned if attack.label not in made]

    def keep(label: str, row: AuditRow) -> None:
        made[label] = row
        if kept is not None:
            kept.add(label, row, effort)

    play_all(missing, effort, keep, workers=workers, listener=listener)
    return tuple(made[attack.label] for attack in planned)


def document(rows: Iterable[AuditRow], *, command: str) -> dict[str, Any]:
    """The table as a JSON value, with the command and the versions of packages."""
    return {
        "rows": [row.to_json() for row in rows],
        "confidence": CONFIDENCE,
        "command": command,
        "versions": package_versions("discreet", "numpy", "scipy", "torch"),
    }
