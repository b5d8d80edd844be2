"""The papers' tables and figures, a folder for each paper: `python -m research.reproductions --list`."""

from __future__ import annotations

from types import MappingProxyType

from research.reproductions import d2p2, dicesgd, dpsgd_dc, geodp, random_freeze
from research.reproductions.bench import Bench, accuracy_row, measured
from research.reproductions.experiment import Curve, Experiment, Figure, Outcome, Row, Status, mean_and_error
from research.reproductions.results import Record, perform

__all__ = [
    "EXPERIMENTS",
    "Bench",
    "Curve",
    "Experiment",
    "Figure",
    "Outcome",
    "Record",
    "Row",
    "Status",
    "accuracy_row",
    "mean_and_error",
    "measured",
    "perform",
]

EXPERIMENTS: MappingProxyType[str, Experiment] = MappingProxyType(
    {
        experiment.name: experiment
        for paper in (d2p2, random_freeze, geodp, dpsgd_dc, dicesgd)
        for experiment in paper.EXPERIMENTS
    }
)
"""Every experiment by name, in the order of the papers."""
