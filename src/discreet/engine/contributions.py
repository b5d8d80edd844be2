"""Contributions to a sum, one for each record or user: computed from a model (`Engine`), or given by others.

Index legend: N contributions, Q queries, G groups of parameters, D coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from discreet.core import check
from discreet.core.world import World
from discreet.engine.active import Active
from discreet.engine.layout import Layout, Mask
from discreet.engine.precision import full_precision

Groups = Sequence[Sequence[int]]


def partition(groups: Groups | None, layout: Layout) -> Groups:
    """Groups in which every parameter lies once; by default one group of all."""
    everything = range(len(layout.names))
    if groups is None:
        return [everything]
    check.require(
        sorted(index for group in groups for index in group) == list(everything),
        "groups in which every parameter lies once",
        [list(group) for group in groups],
        "a parameter left out would lose its signal, one named twice would count twice",
    )
    return groups


class Contributions(Protocol):
    """What `Aggregation` needs of the contributions of a micro-batch.

    Guarantee: `norms` are upper bounds on the norms of the contributions that `add_weighted` sums (up to a relative
    2^-17), and a contribution that is not finite adds exact zero.
    """

    layout: Layout
    held: Layout  # of the part of the sums that this process holds
    device: torch.device

    def zeros(self, queries: int = 1, size: int | None = None) -> Tensor:
        """Room for sums, shape [Q, D], or for as many vectors of another size."""

    def norms(self, groups: Groups | None = None, mask: Mask | None = None) -> Tensor:
        """Upper bounds on the norms, shape [G, N]."""

    def add_weighted(
        self,
        weights_QGN: Tensor,
        totals_Q: Tensor,
        groups: Groups | None = None,
        mask: Mask | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """totals_Q += the weighted sums; frozen coordinates stay as they are.

        is_last  whether nothing more is asked of the micro-batch: its memory may be let go of while it is summed
        """

    def mapped_sum(self, fn: Callable[[Tensor], Tensor], mask: Mask | None = None, *, chunk: int = 16) -> Tensor:
        """The sum of fn(contributions), which takes at most `chunk` of them at a time."""

    def discard(self) -> None:
        """Forget the micro-batch."""

    def full_precision(self) -> AbstractContextManager[object]:
        """A block in which no product is rounded for the sake of speed."""

    def holders(self, world: World) -> World:
        """The processes that hold the same coordinates as this one."""
        return world

    def add_nothing(self, totals_Q: Tensor) -> None:
        """Take part in an addition of the other processes, if sums need all of them."""
        return


@final
class GivenVectors(Contributions):
    """Vectors that others computed, such as the clients of a federation. All of them are on the CPU and in float64."""

    device: ClassVar[torch.device] = torch.device("cpu")  # type: ignore[misc]

    def __init__(self, layout: Layout) -> None:
        self.layout = self.held = layout
        self._rows_ND = self.zeros(0)

    def give(self, rows_ND: Tensor) -> None:
        """Take the vectors of a micro-batch, on all coordinates. Nothing about their values is assumed."""
        fits = rows_ND.dim() == 2 and rows_ND.shape[1] == self.layout.size
        check.require(fits, f"rows of {self.layout.size} values", list(rows_ND.shape), "give one row per vector")
        # Values of float32: in float64 their squares neither overflow nor underflow, so that norms hold.
        rows_ND = rows_ND.detach().to(self.device, torch.float32).to(torch.float64)
        self._is_finite_N = _norms(rows_ND).isfinite()  # also false where squares overflow
        self._rows_ND = rows_ND.masked_fill_(~self._is_finite_N.unsqueeze(1), 0)

    def zeros(self, queries: int = 1, size: int | None = None) -> Tensor:
        return torch.zeros(queries, self.layout.size if size is None else size, dtype=torch.float64)

    def norms(self, groups: Groups | None = None, mask: Mask | None = None) -> Tensor:
        each = [_norms(part) for part in self._parts(mask)]
        found = partition(groups, self.layout)
        joined = [_norms(torch.stack([each[index] for index in group], dim=1)) for group in found]
        return torch.stack(joined).masked_fill_(~self._is_finite_N, torch.inf)

    def add_weighted(
        self,
        weights_QGN: Tensor,
        totals_Q: Tensor,
        groups: Groups | None = None,
        mask: Mask | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        parts = self._parts(mask)
        sums: list[Tensor] = [part.new_zeros(0) for part in parts]
        for group, weights_QN in zip(partition(groups, self.layout), weights_QGN.unbind(1), strict=True):
            for index in group:
                sums[index] = weights_QN @ parts[index]
        self._add(torch.cat(sums, dim=1), totals_Q, mask)

    def mapped_sum(self, fn: Callable[[Tensor], Tensor], mask: Mask | None = None, *, chunk: int = 16) -> Tensor:
        rows_ND = torch.cat(self._parts(mask), dim=1)
        return torch.stack([fn(some) for some in rows_ND.split(chunk)]).sum(0)

    def discard(self) -> None:
        self._rows_ND = self.zeros(0)

    def full_precision(self) -> AbstractContextManager[object]:
        return full_precision(self.device)

    def _parts(self, mask: Mask | None) -> list[Tensor]:
        """The values of each parameter, on the active coordinates."""
        if mask is None:
            return list(self._rows_ND.split(self.layout.sizes, dim=1))
        active = Active.of(mask, self.layout, self.device)
        return list(self._rows_ND.index_select(1, active.whole).split(active.counts, dim=1))

    def _add(self, sums_Q: Tensor, totals_Q: Tensor, mask: Mask | None) -> None:
        if mask is None:
            totals_Q += sums_Q
        else:
            totals_Q.index_add_(1, Active.of(mask, self.layout, self.device).whole, sums_Q)


def _norms(rows: Tensor) -> Tensor:
    return rows.square().sum(1).sqrt()
