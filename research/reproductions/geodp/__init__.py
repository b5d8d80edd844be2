"""GeoDP (paper 002): its tables and figures."""

from __future__ import annotations

from research.reproductions.experiment import Experiment
from research.reproductions.geodp import equal_epsilon, figure_5, figure_6, figures_3_4, table_2

_PAPER = "002 GeoDP"

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="geodp-figure-3",
        paper=_PAPER,
        artefact="Figure 3",
        what="errors of direction and gradient under DP and GeoDP, against noise, dimensions and batch",
        minutes_quick=0.5,
        minutes_full=1.0,
        run=figures_3_4.figure_3,
    ),
    Experiment(
        name="geodp-figure-4",
        paper=_PAPER,
        artefact="Figure 4",
        what="the same against the bounding factor",
        minutes_quick=0.5,
        minutes_full=1.0,
        run=figures_3_4.figure_4,
    ),
    Experiment(
        name="geodp-figure-5",
        paper=_PAPER,
        artefact="Figure 5",
        what="training loss of softmax regression over 350 iterations",
        minutes_quick=1.0,
        minutes_full=3.0,
        run=figure_5.figure_5,
    ),
    Experiment(
        name="geodp-table-2",
        paper=_PAPER,
        artefact="Table II",
        what="test accuracy of the CNN with and without geometry, AUTO-S, PSAC and SUR",
        minutes_quick=3.0,
        minutes_full=75.0,
        run=table_2.table_2,
    ),
    Experiment(
        name="geodp-table-2-companions",
        paper=_PAPER,
        artefact="Table II",
        what="the same with selective update and PSAC together",
        minutes_quick=3.0,
        minutes_full=24.0,
        run=table_2.table_2_companions,
    ),
    Experiment(
        name="geodp-figure-6",
        paper=_PAPER,
        artefact="Figure 6",
        what="time to perturb a gradient, the equations as written beside linear time",
        minutes_quick=0.2,
        minutes_full=4.0,
        run=figure_6.figure_6,
    ),
    Experiment(
        name="geodp-equal-epsilon",
        paper=_PAPER,
        artefact="beyond the paper",
        what="DP-SGD, polar, geodp-sound and SUR at equal certified epsilon",
        minutes_quick=4.0,
        minutes_full=40.0,
        run=equal_epsilon.equal_epsilon,
    ),
)
