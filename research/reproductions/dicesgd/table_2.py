"""DiceSGD (paper 004), Table 2: CIFAR-10 at epsilon 2."""

from __future__ import annotations

from research.reproductions.bench import Bench
from research.reproductions.dicesgd.heads import IMAGES, UNIT, image_head, summary, ways
from research.reproductions.experiment import Outcome, Status


def table_2(bench: Bench) -> Outcome:
    """Table 2, CIFAR-10: all methods at epsilon 2, C = 1 and 0.1."""
    setting = image_head(bench, 3)
    rows = [*ways(bench, setting, 1.0, papers=(95.2, 97.4)), *ways(bench, setting, 0.1, papers=(94.5, 97.5))]
    return Outcome(unit=UNIT, rows=tuple(rows), status=Status.PARTLY, summary=summary(rows), guesses=IMAGES)
