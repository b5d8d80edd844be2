"""Numbers of a table in public bins, one-hot: a linear head can then fit any step function of each number."""

from __future__ import annotations

from typing import Final, final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import require
from discreet.data import adult
from discreet.data.datasets import Task
from discreet.data.features.extractor import PublicRecords

ADULT: Final = (20, 16, 20, 60, 60)
"""Bins of equal width: five years of age, each level of education, five hours, steps of a logarithm for capital."""


@final
class Bins:
    """Columns from 0 to 1 in bins of equal width, beside the columns that follow them; each record of length 1.

    Guarantee: the features of a record depend on that record alone; the bins are constants.

    counts  the number of bins of each of the first columns
    """

    name = "bins"
    public: PublicRecords | None = None
    at_once = 4096

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._counts = counts

    @classmethod
    def of(cls, task: Task) -> Bins:
        is_known = task.shape == (adult.FEATURES,) and len(ADULT) == adult.NUMBERS
        require(is_known, "the columns of adult", f"{task.name} of shape {task.shape}", "choose other features")
        return cls(ADULT)

    @property
    def identity(self) -> str:
        return f"{self.name} {self._counts} version 1"

    def __call__(self, records: Tensor) -> Tensor:
        # A value just below the edge of a bin through rounding belongs to the bin above it.
        places = [(records[:, i] * n + 1e-4).long().clamp(0, n - 1) for i, n in enumerate(self._counts)]
        binned = [F.one_hot(place, n).float() for place, n in zip(places, self._counts, strict=True)]
        return F.normalize(torch.cat([*binned, records[:, len(self._counts) :]], 1), dim=1)
