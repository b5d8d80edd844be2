"""Random freeze (paper 001), Table 1: freezing as an add-on, end to end and on a public backbone."""

from __future__ import annotations

from discreet.runs import RunConfig
from research.reproductions.bench import Bench, accuracy_row
from research.reproductions.experiment import Outcome, Status
from research.reproductions.random_freeze.settings import (
    BASE_CLIP,
    BASE_MOMENTUM,
    DELTA,
    GUESSES,
    LOOSE,
    STRICT,
    UNIT,
    at_least,
    gap,
    mlp_series,
)
from research.tasks.backbones import cifar10_features


def table_1(bench: Bench) -> Outcome:
    """Freezing as an add-on, with the baseline's own settings."""
    pairs = [(one.baseline(), one.added()) for one in (mlp_series(bench, STRICT), mlp_series(bench, LOOSE))]
    gaps = " and ".join(gap(frozen, dense) for dense, frozen in pairs)
    return Outcome(
        unit=UNIT,
        rows=tuple(row for pair in pairs for row in pair),
        status=Status.of([at_least(frozen, dense) for dense, frozen in pairs]),
        summary=f"Random freeze less baseline: {gaps} at epsilon 3 and 7.53; the paper: +0.7 and -0.2.",
        guesses=(*GUESSES, "With momentum the paper lets frozen coordinates coast; here they stay still, the default."),
    )


def transfer(bench: Bench) -> Outcome:
    """Table 1, DP transfer learning: a softmax head on features of a public backbone, settings of Table 6."""
    file, epochs = cifar10_features(note=bench.note), 3 if bench.quick else 50
    freeze = (("final_rate", 0.7), ("cooling_epochs", epochs))
    rows = []
    for setting, paper, method, more in (
        ("head, dense", 92.6, "dp-sgd", ()),
        ("head, random freeze 0.7", 92.7, "random-freeze", freeze),
    ):
        run = RunConfig(
            delta=DELTA,
            out="",
            data=str(file),
            classes=10,
            records=50_000,
            model="softmax",
            method=method,
            parameters=(("clip", BASE_CLIP), *more),
            epsilon=2.0,
            batch=1000,
            epochs=epochs,
            optimizer="sgd",
            learning_rate=4.0,
            momentum=BASE_MOMENTUM,
            average=0.0,
            micro_batch=1000,
            eval_every=max(1, epochs * 50 // 4),
        )
        rows.append(accuracy_row(setting, bench.train_seeds(run), paper=paper))
    return Outcome(
        unit=UNIT,
        rows=tuple(rows),
        status=Status.of([at_least(rows[1], rows[0])]),
        summary=(
            f"With freezing {gap(rows[1], rows[0])} points; the paper: +0.1. CIFAR-10, epsilon 2, a softmax head of "
            "12,810 parameters on EfficientNet-lite0, total density 0.65; the paper's backbone is SimCLR v2 (41K)."
        ),
        guesses=GUESSES,
    )
