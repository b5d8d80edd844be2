"""DPSGD-DC (paper 003), training in a bounded domain: its figures."""

from __future__ import annotations

from typing import Final

from research.reproductions.dpsgd_dc import figures_1_5, figures_2_3, full_batch
from research.reproductions.experiment import Experiment

_PAPER: Final = "003 DPSGD-DC"

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="dc-figure-1",
        paper=_PAPER,
        artefact="Figure 1",
        what="bounds on the last iterate: older ones, the claim, and what is proven",
        minutes_quick=0.1,
        minutes_full=0.1,
        run=figures_1_5.figure_1,
    ),
    Experiment(
        name="dc-figure-2",
        paper=_PAPER,
        artefact="Figure 2",
        what="epsilon against epochs for several batch sizes: membership inference and theory",
        minutes_quick=2,
        minutes_full=30,
        run=figures_2_3.figure_2,
    ),
    Experiment(
        name="dc-figure-3",
        paper=_PAPER,
        artefact="Figure 3",
        what="epsilon against epochs for several diameters: membership inference and theory",
        minutes_quick=3,
        minutes_full=30,
        run=figures_2_3.figure_3,
    ),
    Experiment(
        name="dc-figure-5",
        paper=_PAPER,
        artefact="Figure 5",
        what="the claim against the trivial bound, and what is proven",
        minutes_quick=0.1,
        minutes_full=0.1,
        run=figures_1_5.figure_5,
    ),
    Experiment(
        name="dc-full-batch",
        paper=_PAPER,
        artefact="Theorem 3.4 where it pays",
        what="full-batch logistic regression on Adult: accuracy and epsilon against steps",
        minutes_quick=2,
        minutes_full=12,
        run=full_batch.full_batch,
    ),
)
