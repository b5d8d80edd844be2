"""D2P2-SGD (paper 000): its tables and figures."""

from __future__ import annotations

from research.reproductions.d2p2 import figure_3, figures_4_5_6, projection, table_2
from research.reproductions.d2p2.settings import PAPER
from research.reproductions.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="d2p2-figure-3",
        paper=PAPER,
        artefact="Figure 3",
        what="Fashion-MNIST, CNN of Table 5: loss, accuracy and epsilon over the epochs at the paper's settings",
        minutes_quick=8,
        minutes_full=300,
        run=figure_3.figure_3,
    ),
    Experiment(
        name="d2p2-table-2",
        paper=PAPER,
        artefact="Table 2",
        what="Fashion-MNIST, CNN of Table 5: every method at equal certified epsilon 1 and 2",
        minutes_quick=5,
        minutes_full=80,
        run=table_2.table_2,
    ),
    Experiment(
        name="d2p2-table-2-rest",
        paper=PAPER,
        artefact="Table 2",
        what="the same at certified epsilon 4, 6 and 8",
        minutes_quick=4,
        minutes_full=95,
        run=table_2.table_2_rest,
    ),
    Experiment(
        name="d2p2-figures-4-5-6",
        paper=PAPER,
        artefact="Figures 4, 5, 6",
        what="the impact of sigma, batch and reduction rate on accuracy and epsilon",
        minutes_quick=8,
        minutes_full=150,
        run=figures_4_5_6.figures_4_5_6,
    ),
    Experiment(
        name="d2p2-projection",
        paper=PAPER,
        artefact="beyond the paper",
        what="when random projection helps and when it hurts, at equal certified epsilon on digits",
        minutes_quick=0.5,
        minutes_full=5,
        run=projection.projection,
    ),
)
