"""Random freeze (paper 001): its tables and figures."""

from __future__ import annotations

from typing import Final

from research.reproductions.experiment import Experiment
from research.reproductions.random_freeze import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    table_1,
    table_1_gep,
    table_1_handcrafted,
    tables_3_4,
)

_PAPER: Final = "001 random freeze"

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="freeze-figure-1",
        paper=_PAPER,
        artefact="Figure 1",
        what="signal loss and MSE of the gradient against the freeze rate",
        minutes_quick=0.5,
        minutes_full=4,
        run=figure_1.figure_1,
    ),
    Experiment(
        name="freeze-figure-2",
        paper=_PAPER,
        artefact="Figure 2",
        what="norms of records' gradients with and without random freeze",
        minutes_quick=0.5,
        minutes_full=4,
        run=figure_2.figure_2,
    ),
    Experiment(
        name="freeze-figure-3",
        paper=_PAPER,
        artefact="Figure 3",
        what="how often a coordinate is frozen: random, ranked, ranked without noise",
        minutes_quick=1.5,
        minutes_full=12,
        run=figure_3.figure_3,
    ),
    Experiment(
        name="freeze-figure-4",
        paper=_PAPER,
        artefact="Figure 4",
        what="test accuracy along C / (1 - momentum) = 1, and along clip and momentum alone",
        minutes_quick=1,
        minutes_full=45,
        run=figure_4.figure_4,
    ),
    Experiment(
        name="freeze-table-1",
        paper=_PAPER,
        artefact="Table 1, end-to-end CNN",
        what="random freeze added to the baseline, epsilon 3 and 7.53",
        minutes_quick=1,
        minutes_full=25,
        run=table_1.table_1,
    ),
    Experiment(
        name="freeze-table-1-gep",
        paper=_PAPER,
        artefact="Table 1, gradient embedding perturbation",
        what="random freeze added to GEP at epsilon 8; time, memory and bytes against the density",
        minutes_quick=3,
        minutes_full=15,
        run=table_1_gep.table_1_gep,
    ),
    Experiment(
        name="freeze-table-1-handcrafted",
        paper=_PAPER,
        artefact="Table 1, handcrafted CNN",
        what="random freeze added to a CNN on scattering coefficients, epsilon 3",
        minutes_quick=4,
        minutes_full=15,
        run=table_1_handcrafted.table_1_handcrafted,
    ),
    Experiment(
        name="freeze-table-3",
        paper=_PAPER,
        artefact="Table 3",
        what="baseline, adjusted baseline, random freeze, epsilon 3 and 7.53",
        minutes_quick=2,
        minutes_full=60,
        run=lambda bench: tables_3_4.longer("random-freeze", bench),
    ),
    Experiment(
        name="freeze-table-4",
        paper=_PAPER,
        artefact="Table 4",
        what="baseline, adjusted baseline, ranked freeze, epsilon 3 and 7.53",
        minutes_quick=2,
        minutes_full=60,
        run=lambda bench: tables_3_4.longer("ranked-freeze", bench),
    ),
    Experiment(
        name="freeze-transfer",
        paper=_PAPER,
        artefact="Table 1, DP transfer learning",
        what="a private head on a public backbone, with and without random freeze, epsilon 2",
        minutes_quick=0.5,
        minutes_full=6,
        run=table_1.transfer,
    ),
)
