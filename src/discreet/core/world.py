"""The processes of one run; a single process is the trivial case.

>>> world = World.current()
>>> (world.rank, world.size, world.is_first)
(0, 1, True)
>>> world.sum_(torch.ones(2))
tensor([1., 1.])
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, final

import torch
import torch.distributed as dist

from discreet.core import check
from discreet.core.errors import ProcessLost


@final
@dataclass(frozen=True)
class World:
    """`size` processes that work on one logical batch; this one has number `rank`.

    Guarantee: an operation of several processes happens in all of them, or raises. It is never skipped because
    torch.distributed was not started. The `timeout` of torch.distributed.init_process_group limits how long a process
    waits.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        check.count("count the processes", size=self.size)
        check.count("number the processes from 0", least=0, rank=self.rank)
        fits = self.rank < self.size
        check.require(fits, f"rank < {self.size}", f"rank={self.rank}", "ranks run from 0 to size - 1")

    @classmethod
    def current(cls) -> Self:
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
        return self._all("sum", value, lambda flat: dist.all_reduce(flat, op=dist.ReduceOp.SUM))

    def broadcast_(self, value: torch.Tensor) -> torch.Tensor:
        """Replace `value`, in every process, by that of the first."""
        return self._all("broadcast", value, lambda flat: dist.broadcast(flat, src=0))

    def gather(self, value: Any) -> list[Any]:
        """The JSON value of every process, in the order of their ranks."""
        if self.size == 1:
            return [value]
        self._check_started()
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        self._talk("gather", lambda: dist.all_gather(sizes, torch.tensor([len(text)])))
        longest = max(int(size) for size in sizes)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.cat([text, torch.zeros(longest - len(text), dtype=torch.uint8)])
        self._talk("gather", lambda: dist.all_gather(texts, padded))
        return [json.loads(bytes(held[: int(size)].tolist())) for held, size in zip(texts, sizes, strict=True)]

    def _all(self, name: str, value: torch.Tensor, act: Callable[[torch.Tensor], object]) -> torch.Tensor:
        if self.size == 1:
            return value
        self._check_started()
        bare = value.detach()
        flat = bare.contiguous()  # the same memory if it is already contiguous
        self._talk(name, lambda: act(flat))
        if flat.data_ptr() != bare.data_ptr():
            bare.copy_(flat)
        return value

    def _check_started(self) -> None:
        expected = f"process {self.rank} of {self.size} in torch.distributed"
        remedy = "call torch.distributed.init_process_group first, and take World.current()"
        check.require(World.current() == self, expected, World.current(), remedy)

    def _talk(self, name: str, act: Callable[[], object]) -> None:
        """One operation of all processes. torch's error becomes one line with a remedy."""
        try:
            act()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ProcessLost(
                f"Expected all {self.size} processes of the run to take part in `{name}`, got no answer in "
                f"process {self.rank}: another process ended, or did not answer in time ({reason[:160]}). "
                "The ledger holds what was spent. Remedy: read the error of the process that ended first, "
                "then start all processes again and resume from the last checkpoint and its ledger."
            ) from error
