"""The processes of one run; a single process is the trivial case.

>>> world = World.current()
>>> (world.rank, world.size, world.is_first)
(0, 1, True)
>>> world.sum_(torch.ones(2))
tensor([1., 1.])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
import torch.distributed as dist

from discreet.core import check


@final
@dataclass(frozen=True)
class World:
    """`size` processes that work on one logical batch; this one is number `rank`.

    Guarantee: an operation of a world of several processes happens in all of them, or raises; it is never
    skipped because torch.distributed was not started.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        check.count("count the processes", size=self.size)
        check.count("number the processes from 0", least=0, rank=self.rank)
        fits = self.rank < self.size
        check.require(fits, f"rank < {self.size}", f"rank={self.rank}", "ranks run from 0 to size - 1")

    @classmethod
    def current(cls) -> World:
        """The default group of torch.distributed if it was started, else this process alone."""
        if dist.is_available() and dist.is_initialized():
            return cls(rank=dist.get_rank(), size=dist.get_world_size())
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and draws the noise that the others receive."""
        return self.rank == 0

    def sum_(self, value: torch.Tensor) -> torch.Tensor:
        """Replace `value`, in every process, by its sum over the processes."""
        return self._all(value, lambda flat: dist.all_reduce(flat, op=dist.ReduceOp.SUM))

    def broadcast_(self, value: torch.Tensor) -> torch.Tensor:
        """Replace `value`, in every process, by that of the first."""
        return self._all(value, lambda flat: dist.broadcast(flat, src=0))

    def _all(self, value: torch.Tensor, act: Callable[[torch.Tensor], object]) -> torch.Tensor:
        if self.size == 1:
            return value
        check.require(
            World.current() == self,
            f"process {self.rank} of {self.size} in torch.distributed",
            World.current(),
            "call torch.distributed.init_process_group first, and take World.current()",
        )
        bare = value.detach()
        flat = bare.contiguous()  # the same memory if it is already contiguous
        act(flat)
        if flat.data_ptr() != bare.data_ptr():
            bare.copy_(flat)
        return value
