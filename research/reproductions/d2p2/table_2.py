"""D2P2-SGD (arXiv 2509.09485): Figure 3, Table 2, Figures 4 to 6, and what projection does by itself."""

from __future__ import annotations

import dataclasses
import math

from research.reproductions import d2p2_projection
from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.d2p2_impact import figures_4_5_6
from research.reproductions.d2p2_settings import (
    FAMILY,
    FLAT,
    FLAT_CLIP,
    GUESSES,
    PAPER,
    PUBLISHED,
    RECORDS,
    TABLE_2,
    TUNED,
    UNIT,
    Setting,
    figure,
    over_epochs,
)
from research.reproductions.experiment import Curve, Experiment, Figure, Outcome, Row, Status

# -- Figure 3 -----------------------------------------------------------------------------------------------


def figure_3(bench: Bench) -> Outcome:
    """The paper's own settings: five methods over the epochs, and the same with a learning rate per method."""
    setting = dataclasses.replace(PUBLISHED, epochs=2) if bench.quick else PUBLISHED
    rows, losses, accuracies, spent = [], [], [], []
    plain = bench.train_without_privacy(setting.config(seed=bench.seeds[0]))
    per_epoch = -(-RECORDS // setting.batch)
    rows.append(
        Row(setting="SGD", ours=100 * plain.test_accuracy, certified=math.inf, note="no privacy, one seed")
    )
    epochs = tuple(step / per_epoch for step, *_ in plain.curve)
    accuracies.append(Curve(name="SGD", x=epochs, y=tuple(100 * line[1] for line in plain.curve)))
    losses.append(Curve(name="SGD", x=epochs, y=tuple(line[3] for line in plain.curve)))
    for member in FAMILY:
        config = setting.config(method=member.method, parameters=member.published, public_data=True)
        results = bench.train_seeds(config)
        rows.append(accuracy_row(member.name, results))
        accuracies.append(over_epochs(member.name, results, "test_accuracy", per_epoch, 100))
        losses.append(over_epochs(member.name, results, "train_loss", per_epoch, 1))
        if member.name in ("DPSGD", "D2P2-SGD"):
            name = "constant noise" if member.name == "DPSGD" else "z/k^(1/4)"
            spent.append(over_epochs(name, results, "epsilon", per_epoch, 1))
    private = {row.setting: row.ours or 0.0 for row in rows[1:]}
    best = max(private, key=lambda name: private[name])
    return Outcome(
        unit=UNIT,
        rows=tuple(rows),
        figures=(
            figure(
                "loss", "Loss on the training records, which are public", "epoch", "cross-entropy", losses
            ),
            figure("accuracy", "Test accuracy", "epoch", UNIT, accuracies),
            figure("epsilon", "Certified epsilon", "epoch", "epsilon at delta 1e-5", spent),
        ),
        status=_figure_3_status(private, bench.quick),
        summary=(
            f"After {setting.epochs} epochs {best} leads with {private[best]:.1f} %, DPSGD has "
            f"{private['DPSGD']:.1f} %, DP2-SGD {private['DP2-SGD']:.1f} %, D2P2-SGD {private['D2P2-SGD']:.1f} %. "
            "At one learning rate the methods take steps of different lengths, by the lift; Table 2 below compares "
            "them at equal certified epsilon with a fitting step."
        ),
        guesses=GUESSES,
    )


def _figure_3_status(private: dict[str, float], quick: bool) -> Status:
    """The figure says: D2P2-SGD best, DP2-SGD worse than it, DPSGD and D2P-SGD alike."""
    said = (
        private["D2P2-SGD"] == max(private.values()),
        private["DP2-SGD"] < private["D2P2-SGD"],
        abs(private["DPSGD"] - private["D2P-SGD"]) < 3,
    )
    return Status.of(said, quick=quick)


# -- Table 2 ------------------------------------------------------------------------------------------------


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
            config = setting.config(
                method=member.method, parameters=member.ours, noise=None, epsilon=float(epsilon)
            )
            results = bench.train_seeds(config)
            row = accuracy_row(
                f"{member.name}, epsilon {epsilon}", results, paper=TABLE_2[member.name][epsilon]
            )
            rows.append(row)
            lines[member.name].append(row.ours or 0.0)
    flat = [_flat_clip(bench, setting, epsilon) for epsilon in budgets if epsilon <= 2]
    x = tuple(map(float, budgets))
    curves = [Curve(name=name, x=x, y=tuple(y)) for name, y in lines.items()]
    curves += [
        Curve(name=f"{name}, paper", x=x, y=tuple(TABLE_2[name][e] for e in budgets))
        for name in ("DPSGD", "D2P2-SGD")
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
        parts.append(
            f"epsilon {epsilon}: DPSGD {lines['DPSGD'][place]:.1f} %, D2P2-SGD {last:.1f} % ({ahead})"
        )
    return "At equal certified epsilon: " + "; ".join(parts) + "."


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="d2p2-figure-3",
        paper=PAPER,
        artefact="Figure 3",
        what="Fashion-MNIST, CNN of Table 5: loss, accuracy and epsilon over the epochs at the paper's settings",
        minutes_quick=8,
        minutes_full=300,
        run=figure_3,
    ),
    Experiment(
        name="d2p2-table-2",
        paper=PAPER,
        artefact="Table 2",
        what="Fashion-MNIST, CNN of Table 5: every method at equal certified epsilon 1 and 2",
        minutes_quick=5,
        minutes_full=80,
        run=table_2,
    ),
    Experiment(
        name="d2p2-table-2-rest",
        paper=PAPER,
        artefact="Table 2",
        what="the same at certified epsilon 4, 6 and 8",
        minutes_quick=4,
        minutes_full=95,
        run=table_2_rest,
    ),
    Experiment(
        name="d2p2-figures-4-5-6",
        paper=PAPER,
        artefact="Figures 4, 5, 6",
        what="the impact of sigma, batch and reduction rate on accuracy and epsilon",
        minutes_quick=8,
        minutes_full=150,
        run=figures_4_5_6,
    ),
    *d2p2_projection.EXPERIMENTS,
)
