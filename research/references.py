"""Add the rows that no method made to an older report: `python -m research.references results/fashion-mnist`.

Comparisons train them today. The page and the figures are written again.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch

from discreet import runs
from discreet.core import check
from discreet.report import page
from discreet.runs.comparison.values import Comparison
from discreet.runs.defaults import load_task
from discreet.runs.reference import reference_rows
from research.readme import read_comparison


def with_references(found: Comparison) -> Comparison:
    """The comparison with training without privacy and the majority class, on its data and model."""
    settings = {"data": found.data, "model": found.model, "epsilon": found.epsilon, "delta": found.delta}
    config = runs.complete(runs.RunConfig(**settings, out="unused"))
    task = load_task(config)
    passes = found.steps * found.batch / (task.records or len(task.train))
    return dataclasses.replace(found, references=reference_rows(config, task, passes=passes))


def main() -> None:
    check.require(len(sys.argv) == 2, "the folder of a comparison", sys.argv[1:], "e.g. results/fashion-mnist")
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    page.write(with_references(read_comparison(folder / page.DATA)), folder)


if __name__ == "__main__":
    main()
