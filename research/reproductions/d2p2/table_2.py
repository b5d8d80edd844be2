"""D2P2-SGD (arXiv 2509.09485), Table 2: every method at equal certified epsilon."""

from __future__ import annotations

import dataclasses

from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.d2p2.settings import FAMILY, FLAT, FLAT_CLIP, TABLE_2, TUNED, UNIT, Setting
from research.reproductions.experiment import Curve, Figure, Outcome, Row, Status


def table_2(bench: Bench) -> Outcome:
    """The two tightest budgets, every seed."""
    return _at_equal_epsilon(bench, (2,) if bench.quick else (1, 2))


def table_2_rest(bench: Bench) -> Outcome:
    """The looser budgets."""
    return _at_equal_epsilon(bench, (8,) if bench.quick else (4, 6, 8))


def _at_equal_epsilon(bench: Bench, budgets: tuple[int, ...]) -> Outcome:
    """Every method at equal certified epsilon; the noise of each is calibrated to it."""
    setting = dataclasses.replace(TUNED, epochs=1) if bench.quick else TUNED
    rows = []
    lines: dict[str, list[float]] = {member.name: [] for member in FAMILY}
    for epsilon in budgets:
        for member in FAMILY:
            config = setting.config(method=member.method, parameters=member.ours, noise=None, epsilon=float(epsilon))
            results = bench.train_seeds(config)
            row = accuracy_row(f"{member.name}, epsilon {epsilon}", results, paper=TABLE_2[member.name][epsilon])
            rows.append(row)
            lines[member.name].append(row.ours or 0.0)
    flat = [_flat_clip(bench, setting, epsilon) for epsilon in budgets if epsilon <= 2]
    x = tuple(map(float, budgets))
    curves = [Curve(name=name, x=x, y=tuple(y)) for name, y in lines.items()]
    curves += [
        Curve(name=f"{name}, paper", x=x, y=tuple(TABLE_2[name][e] for e in budgets)) for name in ("DPSGD", "D2P2-SGD")
    ]
    frontier = Figure(
        name="frontier",
        title="Accuracy at equal certified epsilon",
        x_label="certified epsilon at delta 1e-5",
        y_label=UNIT,
        curves=tuple(curves),
    )
    return Outcome(
        unit=UNIT,
        rows=(*rows, *flat),
        figures=(frontier,),
        status=_table_2_status(rows, bench.quick),
        summary=_table_2_summary(lines, budgets),
        guesses=(
            "The paper's numbers at one epsilon come from runs that end there or from curves that pass it: not said. "
            "DPSGD falls from 69 % at epsilon 1 to 53 % at epsilon 2 in its table, which less noise cannot cause. Here "
            "every number is a run of its own, calibrated to end at the budget.",
            f"Ours: batch {TUNED.batch}, {TUNED.epochs} epochs, SGD with learning rate {TUNED.learning_rate:g} and "
            f"momentum {TUNED.momentum:g}, average of iterates; one setting for all, searched on this public data.",
        ),
    )


def _flat_clip(bench: Bench, setting: Setting, epsilon: int) -> Row:
    config = setting.config(
        method=FLAT.method,
        parameters=FLAT.ours,
        noise=None,
        epsilon=float(epsilon),
        learning_rate=setting.learning_rate / FLAT_CLIP,
    )
    return accuracy_row(
        f"{FLAT.name} {FLAT_CLIP:g}, epsilon {epsilon}", bench.train_seeds(config), note="not in the paper"
    )


def _table_2_status(rows: list[Row], quick: bool) -> Status:
    """Reproduced: at least the paper's accuracy in every row, and D2P2-SGD first at every epsilon."""
    reached = all(row.difference is not None and row.difference >= 0 for row in rows)
    of = len(FAMILY)
    groups = [rows[start : start + of] for start in range(0, len(rows), of)]
    first = all(max(group, key=lambda row: row.ours or 0.0) is group[-1] for group in groups)
    return Status.of((reached, first), quick=quick)


def _table_2_summary(lines: dict[str, list[float]], budgets: tuple[int, ...]) -> str:
    parts = []
    for place, epsilon in enumerate(budgets):
        best = max(lines, key=lambda name: lines[name][place])
        last = lines["D2P2-SGD"][place]
        ahead = "first" if best == "D2P2-SGD" else f"{lines[best][place] - last:.1f} points behind {best}"
        parts.append(f"epsilon {epsilon}: DPSGD {lines['DPSGD'][place]:.1f} %, D2P2-SGD {last:.1f} % ({ahead})")
    return "At equal certified epsilon: " + "; ".join(parts) + "."
