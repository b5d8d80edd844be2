"""Records of a micro-batch that belong to one unit of privacy, and factors of such units.

The records of a unit lie side by side, and units with equally many records are neighbours. So each bucket of equal
units is a slice of the rows, its parts are reshaped and never padded, and the number of buckets is at most the largest
number of records of a unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch
from torch import Tensor

from discreet.core.check import require
from discreet.engine.factors.parts import Factors


@final
@dataclass(frozen=True)
class UnitRows:
    """How many successive records belong to each unit of a micro-batch, in non-decreasing order.

    >>> list(UnitRows((1, 1, 3)).buckets())
    [(1, 0, 2), (3, 2, 5)]
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        fits = bool(self.sizes) and min(self.sizes) > 0 and list(self.sizes) == sorted(self.sizes)
        remedy = "sort the units by their number of records, and leave out those without any"
        require(fits, "positive numbers of records in non-decreasing order", "others", remedy)

    @property
    def units(self) -> int:
        return len(self.sizes)

    @property
    def records(self) -> int:
        return sum(self.sizes)

    def buckets(self) -> Iterator[tuple[int, int, int]]:
        """(records of a unit, first record, end) of each run of equal units."""
        start = 0
        for size, members in groupby(self.sizes):
            stop = start + size * len(list(members))
            yield size, start, stop
            start = stop

    def shares(self, like: Tensor) -> Tensor:
        """1 / (records of its unit) for each record: their weighted sum over a unit is its mean."""
        sizes = torch.tensor(self.sizes, device=like.device)
        return (1 / sizes.double()).to(like.dtype).repeat_interleave(sizes)

    def means(self, values: Tensor) -> Tensor:
        """The mean over the records of each unit, [units]."""
        return torch.cat([values[start:stop].view(-1, size).mean(1) for size, start, stop in self.buckets()])


@final
class Joined:
    """Factors of several sets of units, one after the other."""

    def __init__(self, members: Sequence[Factors]) -> None:
        self.members = tuple(members)
        self.records = sum(member.records for member in members)
        self.dtype, self.shape = members[0].dtype, members[0].shape

    @property
    def norms(self) -> Tensor:
        return torch.cat([member.norms for member in self.members])

    def measure(self) -> tuple[Tensor, Tensor]:
        measured = [member.measure() for member in self.members]
        return torch.cat([norms for norms, _ in measured]), torch.cat([bounds for _, bounds in measured])

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        for member, start in self._places():
            member.add_weighted(weights_QN[:, start : start + member.records], total_Q)

    def instantiate(self, start: int, stop: int) -> Tensor:
        pieces = []
        for member, first in self._places():
            low, high = max(start - first, 0), min(stop - first, member.records)
            if low < high:
                pieces.append(member.instantiate(low, high))
        return torch.cat(pieces)

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Joined:
        """The factors of some units, in increasing order."""
        require(bool((index_K.diff() > 0).all()), "increasing places of units", "others", "sort them")
        taken = []
        for member, first in self._places():
            own = index_K[(index_K >= first) & (index_K < first + member.records)] - first
            if own.numel():
                taken.append(member.take(own, dtype))
        return Joined(taken)

    def _places(self) -> Iterator[tuple[Factors, int]]:
        start = 0
        for member in self.members:
            yield member, start
            start += member.records
