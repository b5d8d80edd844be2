"""Random freeze (paper 001), Tables 3 and 4: freezing with 20 more epochs beside both baselines."""

from __future__ import annotations

from research.reproductions.bench import Bench
from research.reproductions.experiment import Outcome, Status
from research.reproductions.random_freeze.settings import (
    GUESSES,
    LOOSE,
    STRICT,
    UNIT,
    at_least,
    cnn_series,
    gap,
    mlp_series,
)


def longer(method: str, bench: Bench) -> Outcome:
    """Tables 3 and 4: baseline, adjusted baseline, freezing; the MLP at both budgets, the CNN at epsilon 3."""
    series = (mlp_series(bench, STRICT), cnn_series(bench, STRICT), mlp_series(bench, LOOSE))
    rows = [(one.baseline(), one.adjusted(), one.longer(method)) for one in series]
    holds = [at_least(frozen, adjusted) for _, adjusted, frozen in rows]
    gaps = "; ".join(f"{gap(frozen, adjusted)} ({frozen.setting.partition(', ')[2]})" for _, adjusted, frozen in rows)
    paper = " and ".join(f"{dict(budget.longer)[method] - budget.adjusted:+.1f}" for budget in (STRICT, LOOSE))
    return Outcome(
        unit=UNIT,
        rows=tuple(row for three in rows for row in three),
        status=Status.of(holds),
        summary=f"Freezing less the adjusted baseline: {gaps}. The paper: {paper} at epsilon 3 and 7.53.",
        guesses=GUESSES,
    )
