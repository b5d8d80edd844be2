"""The truth table: for every method what is certified, what its paper claims, and what an attack has shown."""

from __future__ import annotations

import itertools
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet.auditing import broken
from discreet.auditing.audit_runner import KeptRows, play_all
from discreet.auditing.games import CONFIDENCE
from discreet.auditing.rows import (
    FULL,
    QUICK,
    Attack,
    Effort,
    OnProgress,
    against_claim,
    attacks_on,
    statistic,
)
from discreet.auditing.verdicts import Row, Verdict, verdict
from discreet.core import check

if TYPE_CHECKING:
    from discreet.methods import Method

__all__ = [
    "FULL",
    "QUICK",
    "Effort",
    "KeptRows",
    "Row",
    "Scope",
    "Verdict",
    "attacks",
    "document",
    "truth_rows",
    "truth_table",
    "verdict",
]


@final
@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a table covers."""

    methods: tuple[Method, ...]
    claims: tuple[broken.Demonstration, ...]

    @staticmethod
    def everything() -> Scope:
        """Every method, and every claim that is known to be false."""
        from discreet.methods import METHODS

        return Scope(methods=tuple(METHODS.values()), claims=broken.demonstrations())

    @staticmethod
    def of(name: str) -> Scope:
        """One method: its release, where we have a recipe, and its paper's claim, where that is under attack."""
        whole = Scope.everything()
        known = {m.name for m in whole.methods} | {c.method for c in whole.claims}
        check.require(
            name in known, f"a method of {', '.join(sorted(known))}", repr(name), "use --all for all"
        )
        return Scope(
            methods=tuple(m for m in whole.methods if m.name == name),
            claims=tuple(c for c in whole.claims if c.method == name),
        )

    @property
    def has_statistic(self) -> bool:
        """Whether DP-SGD is covered, whose step is one number."""
        return any(method.name == "dp-sgd" for method in self.methods)


def attacks(scope: Scope, effort: Effort) -> tuple[Attack, ...]:
    """The rows to be made: methods first, then claims."""
    found = list(itertools.chain.from_iterable(attacks_on(method, effort) for method in scope.methods))
    if scope.has_statistic:
        found.append(statistic(effort))
    return *found, *(against_claim(claim, effort) for claim in scope.claims)


def truth_table(
    scope: Scope,
    *,
    effort: Effort,
    listener: OnProgress | None = None,
    workers: int | None = 1,
    kept: KeptRows | None = None,
) -> tuple[Row, ...]:
    """Every row, in order.

    workers  processes that play at once; None: one for each core, four at most
    kept     where rows are kept as they are made; those that are there are not played again
    """
    planned = attacks(scope, effort)
    made = {} if kept is None else kept.made(effort)
    missing = [attack for attack in planned if attack.label not in made]
    for label, row in play_all(missing, effort, workers=workers, listener=listener):
        made[label] = row
        if kept is not None:
            kept.add(label, row, effort)
    return tuple(made[attack.label] for attack in planned)


def document(rows: Iterable[Row], *, command: str) -> dict[str, Any]:
    """The table as one JSON value, with the command and the versions that made it."""
    packages = ("discreet", "numpy", "scipy", "torch")
    return {
        "rows": [row.to_json() for row in rows],
        "confidence": CONFIDENCE,
        "command": command,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def truth_rows(path: str | Path) -> tuple[Row, ...]:
    """The rows of a file that `discreet audit --out FILE` wrote."""
    try:
        return tuple(Row.from_json(row) for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"])
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, check.Refused):
            raise
        check.refuse(
            f"a truth table in {path}",
            f"{type(error).__name__}: {error}",
            "write one with `discreet audit --all --out FILE`",
        )
