"""The smaller tables of a page: each cell has its text and its sort value."""

from __future__ import annotations

import math
from typing import Any

from discreet.report import figures, svg, wording
from discreet.runs.audit_rows import AuditRow, Verdict
from discreet.runs.comparison.values import Comparison, Entry

_ABSENT, _WITHOUT_END = -1.0, 1e300  # sort values of missing and of infinite numbers
_GOOD = (Verdict.HOLDS, Verdict.NOT_TESTED)


def frontier(comparison: Comparison) -> dict[str, Any]:
    """A row for each method, a column for each budget."""
    from markupsafe import Markup

    budgets = comparison.budgets
    numbers = figures.styles(comparison.entries)
    by_name = [{entry.name: entry for entry in budget.entries} for budget in budgets]
    rows = [
        {
            "name": entry.name,
            "marker": Markup(svg.marker(numbers[entry.name])),
            "cells": [_accuracy(held.get(entry.name)) for held in by_name],
        }
        for entry in comparison.entries
    ]
    return {"heads": [f"{budget.epsilon:g}" for budget in budgets], "rows": rows}


def _accuracy(entry: Entry | None) -> dict[str, Any]:
    accuracy = None if entry is None else entry.accuracy
    if accuracy is None:
        why = "" if entry is None else "; ".join(wording.failures(entry))
        return {"value": _ABSENT, "text": "–", "half": "", "why": why}
    text, half = wording.percent(accuracy.mean), wording.half(accuracy)
    return {"value": accuracy.mean, "text": text, "half": half, "why": ""}


def truth(comparison: Comparison) -> list[dict[str, Any]]:
    """The rows of the audit, with bad verdicts marked."""
    return [
        {
            "method": row.method,
            "cells": [
                _epsilon(row.certified, wording.epsilon),
                _epsilon(row.claimed, wording.epsilon),
                _epsilon(row.analytic, _down),
                _epsilon(row.audited, _down),
            ],
            "verdict": row.verdict.value,
            "bad": row.verdict not in _GOOD,
            "setting": setting(row),
        }
        for row in comparison.truth
    ]


def _down(value: float) -> str:
    """A lower bound, rounded down."""
    return "infinite" if math.isinf(value) else f"{math.floor(value * 100) / 100:.2f}"


def _epsilon(value: float | None, text: Any) -> dict[str, Any]:
    if value is None:
        return {"value": _ABSENT, "text": "–"}
    return {"value": _WITHOUT_END if math.isinf(value) else value, "text": text(value)}


def setting(row: AuditRow) -> str:
    """The settings of a row of an audit, as text."""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, (int, float)) else f"{name} {value}"
        for name, value in row.parameters.items()
    )
