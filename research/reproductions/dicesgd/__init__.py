"""DiceSGD (paper 004): its tables and figures."""

from __future__ import annotations

from typing import Final

from research.extra import LANGUAGE_MODEL, SENTENCES, require_packages
from research.reproductions.bench import Bench
from research.reproductions.dicesgd import appendix_b1, figures_1_2, table_2, threshold
from research.reproductions.experiment import Experiment, Outcome

_PAPER: Final = "004 DiceSGD"


def _table_3(bench: Bench) -> Outcome:
    require_packages(LANGUAGE_MODEL)
    from research.reproductions.dicesgd.table_3 import language

    return language(bench)


def _table_3_reviews(bench: Bench) -> Outcome:
    require_packages(SENTENCES)
    from research.reproductions.dicesgd.table_3_reviews import text

    return text(bench)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="dice-bias",
        paper=_PAPER,
        artefact="Appendix B.1, Section 2.2",
        what="where clipped SGD, DiceSGD and two-level clipping settle, without noise and at epsilon 2",
        minutes_quick=1,
        minutes_full=6,
        run=appendix_b1.bias,
    ),
    Experiment(
        name="dice-threshold",
        paper=_PAPER,
        artefact="Section 1: the threshold must be tuned",
        what="accuracy against the clip at equal certified epsilon: DP-SGD, automatic, adaptive quantile, two-level",
        minutes_quick=2,
        minutes_full=18,
        run=threshold.threshold,
    ),
    Experiment(
        name="dice-table-2",
        paper=_PAPER,
        artefact="Table 2, CIFAR-10",
        what="a private head on a public backbone at epsilon 2, C = 1 and 0.1: claimed and certified noise",
        minutes_quick=2,
        minutes_full=20,
        run=table_2.table_2,
    ),
    Experiment(
        name="dice-figures-1-2",
        paper=_PAPER,
        artefact="Figures 1 and 2, CIFAR-10",
        what="DiceSGD over C1, C2 and the step size, with the noise of its Algorithm 4",
        minutes_quick=1,
        minutes_full=5,
        run=figures_1_2.figures_1_2,
    ),
    Experiment(
        name="dice-text",
        paper=_PAPER,
        artefact="in place of Table 3",
        what="a private head on a public sentence encoder, clothing reviews, epsilon 8, C = 1",
        minutes_quick=1,
        minutes_full=6,
        run=_table_3_reviews,
    ),
    Experiment(
        name="dice-e2e",
        paper=_PAPER,
        artefact="Table 3, E2E",
        what="SmolLM2 with private adapters on E2E, epsilon 8, C = 1: BLEU and test loss",
        minutes_quick=4,
        minutes_full=60,
        run=_table_3,
    ),
)
