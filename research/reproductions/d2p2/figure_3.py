"""D2P2-SGD (arXiv 2509.09485), Figure 3: loss, accuracy and epsilon over the epochs at the paper's settings."""

from __future__ import annotations

import dataclasses
import math

from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.d2p2.settings import FAMILY, GUESSES, PUBLISHED, RECORDS, UNIT, figure, over_epochs
from research.reproductions.experiment import Curve, Outcome, Row, Status


def figure_3(bench: Bench) -> Outcome:
    """Five methods over the epochs at the paper's settings."""
    setting = dataclasses.replace(PUBLISHED, epochs=2) if bench.quick else PUBLISHED
    rows, losses, accuracies, spent = [], [], [], []
    plain = bench.train_without_privacy(setting.config(seed=bench.seeds[0]))
    per_epoch = -(-RECORDS // setting.batch)
    rows.append(Row(setting="SGD", ours=100 * plain.test_accuracy, certified=math.inf, note="no privacy, one seed"))
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
            figure("loss", "Loss on the training records, which are public", "epoch", "cross-entropy", losses),
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
