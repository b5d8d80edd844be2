"""The truth table: the certified, claimed and audited epsilon of every method."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from discreet.auditing import broken
from discreet.auditing.audit_runner import KeptRows, play_all
from discreet.auditing.games import CONFIDENCE
from discreet.auditing.rows import FULL, QUICK, Attack, Effort, OnProgress, against_claim, attacks_on, statistic
from discreet.core import check
from discreet.core.command import package_versions
from discreet.runs.audit_rows import AuditRow

if TYPE_CHECKING:
    from discreet.methods import Method

__all__ = ["FULL", "QUICK", "Effort", "KeptRows", "Scope", "attacks", "document", "truth_table"]


@final
@dataclass(frozen=True, kw_only=True)
class Scope:
    """The methods and claims of a table."""

    methods: tuple[Method, ...]
    claims: tuple[broken.Demonstration, ...]

    @staticmethod
    def everything() -> Scope:
        """Every method, and every claim that is known to be wrong."""
        from discreet.methods import METHODS

        return Scope(methods=tuple(METHODS.values()), claims=broken.demonstrations())

    @staticmethod
    def of(name: str) -> Scope:
        """One method: its release, and its paper's claim if there is an attack on it."""
        whole = Scope.everything()
        known = {m.name for m in whole.methods} | {c.method for c in whole.claims}
        check.require(name in known, f"a method of {', '.join(sorted(known))}", repr(name), "use --all for all")
        return Scope(
            methods=tuple(m for m in whole.methods if m.name == name),
            claims=tuple(c for c in whole.claims if c.method == name),
        )

    @property
    def has_statistic(self) -> bool:
        """Whether DP-SGD is included, whose step has a sufficient statistic."""
        return any(method.name == "dp-sgd" for method in self.methods)


def attacks(scope: Scope, effort: Effort) -> tuple[Attack, ...]:
    """The rows of the table: methods first, then claims."""
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
) -> tuple[AuditRow, ...]:
    """Every row, in order.

    workers  number of processes; None: one for each core, four at most
    kept     storage for finished rows; stored rows are not played again
    """
    planned = attacks(scope, effort)
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
