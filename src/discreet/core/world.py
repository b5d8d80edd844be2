"""The processes of one run; a single process is the trivial case.

>>> world = World.current()
>>> (world.rank, world.size, world.is_first)
(0, 1, True)
>>> world.sum_(torch.ones(2))
tensor([1., 1.])
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self, final

import torch
import torch.distributed as dist

from discreet.core import check
from discreet.core.errors import ProcessLost
from discreet.core.launch import process_number, processes, starts

PATIENCE: Final = "DISCREET_TIMEOUT"
"""The environment variable with the seconds that a process of `joined` waits for another; default: half an hour."""


@final
@dataclass(frozen=True)
class World:
    """`size` processes that work on one logical batch; this one has number `rank`.

    Guarantee: an operation of several processes happens in all of them, or raises. It is never skipped because
    torch.distributed was not started. The `timeout` of torch.distributed.init_process_group limits how long a process
    waits.

    group  the group of torch.distributed, if these are only some of the processes
    """

    rank: int = 0
    size: int = 1
    group: Any = None

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
        """Whether this process writes the files of the run."""
        return self.rank == 0

    def part(self, size: int) -> slice:
        """The part of `size` items that is this process's: consecutive, and every item has one owner."""
        return self._part_of(self.rank, size)

    def _part_of(self, rank: int, size: int) -> slice:
        return slice(size * rank // self.size, size * (rank + 1) // self.size)

    def sum_(self, value: torch.Tensor) -> torch.Tensor:
        """Replace `value`, in every process, by its sum over the processes."""
        return self._all("sum", value, lambda flat: dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=self.group))

    def broadcast_(self, value: torch.Tensor) -> torch.Tensor:
        """Replace `value`, in every process, by that of the first."""
        return self._all("broadcast", value, lambda flat: dist.broadcast(flat, src=self._source(0), group=self.group))

    def any(self, holds: bool) -> bool:
        """Whether it holds in any process."""
        return bool(self.sum_(torch.tensor([float(holds)])) > 0)

    def agree(self, *numbers: int | None) -> list[bool]:
        """For each of some numbers, of at most 62 bits: whether all processes that have it have the same one."""
        least = -(1 << 62)
        ends = torch.tensor([end for number in numbers for end in _ends(number, least)])
        self._all("comparison", ends, lambda flat: dist.all_reduce(flat, op=dist.ReduceOp.MAX, group=self.group))
        return [most in (-negative, least) for most, negative in ends.view(-1, 2).tolist()]

    def sum_parts_(self, vector: torch.Tensor) -> torch.Tensor:
        """Replace this process's part of a vector by its sum over the processes, and the rest by zeros.

        Each process sends the parts of the others, and receives its own from all of them: half the bytes of `sum_`.
        """
        if self.size > 1:
            bare, parts = self._parts(vector)
            mine = self.sum_of_pieces(bare, [len(part) for part in parts])
            bare.zero_()
            parts[self.rank].copy_(mine)
        return vector

    def sum_of_pieces(self, pieces: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """This process's piece, summed over the processes.

        pieces  a vector of one piece for each process, in the order of their ranks
        sizes   the lengths of the pieces
        """
        if self.size == 1:
            return pieces
        self._check_started()
        mine = sizes[self.rank]
        received = pieces.new_empty(self.size * mine)
        lengths = [mine] * self.size, sizes
        self.talk("sum of parts", lambda: dist.all_to_all_single(received, pieces, *lengths, group=self.group))
        return received.view(self.size, mine).sum(0)

    def gather_parts_(self, vector: torch.Tensor) -> torch.Tensor:
        """Replace a vector, in every process, by the parts that their owners hold."""
        if self.size > 1:
            pieces = [(owner, piece) for owner, piece in enumerate(self._parts(vector)[1]) if len(piece)]

            def act() -> None:
                for work in [self._sent(piece, owner) for owner, piece in pieces]:
                    work.wait()

            self.talk("gather", act)
        return vector

    def _sent(self, piece: torch.Tensor, owner: int) -> Any:
        return dist.broadcast(piece, src=self._source(owner), group=self.group, async_op=True)

    def _source(self, rank: int) -> int:
        """The number that torch.distributed has for a process of the group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def wait_for_first(self) -> None:
        """Return when the first process has called this, too."""
        self.broadcast_(torch.zeros(1))

    def from_first(self, make: Callable[[], Any]) -> Any:
        """The JSON value that `make` gives in the first process. If it raises there, every process raises."""
        if self.size == 1:
            return make()
        value, error = None, None
        if self.is_first:
            try:
                value = make()
            except Exception as raised:
                error = raised
        value, is_lost = self.gather([value, error is not None])[0]
        if error is not None:
            raise error
        if is_lost:
            raise ProcessLost(
                f"Expected all {self.size} processes of the run, got an error in the first, which stops process "
                f"{self.rank}. Remedy: read the error of the first process."
            )
        return value

    def gather(self, value: Any) -> list[Any]:
        """The JSON value of every process, in the order of their ranks."""
        if self.size == 1:
            return [value]
        self._check_started()
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        self.talk("gather", lambda: dist.all_gather(sizes, torch.tensor([len(text)]), group=self.group))
        longest = max(int(size) for size in sizes)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.cat([text, torch.zeros(longest - len(text), dtype=torch.uint8)])
        self.talk("gather", lambda: dist.all_gather(texts, padded, group=self.group))
        return [json.loads(bytes(held[: int(size)].tolist())) for held, size in zip(texts, sizes, strict=True)]

    def _all(self, name: str, value: torch.Tensor, act: Callable[[torch.Tensor], object]) -> torch.Tensor:
        if self.size == 1:
            return value
        self._check_started()
        bare = value.detach()
        flat = bare.contiguous()  # the same memory if it is already contiguous
        self.talk(name, lambda: act(flat))
        if flat.data_ptr() != bare.data_ptr():
            bare.copy_(flat)
        return value

    def _parts(self, vector: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """A vector without its graph, and the views of every owner's part."""
        self._check_started()
        whole = vector.dim() == 1 and vector.is_contiguous()
        check.require(whole, "a contiguous vector", f"shape {list(vector.shape)}", "pass one sum at a time")
        bare = vector.detach()
        return bare, [bare[self._part_of(rank, len(bare))] for rank in range(self.size)]

    def _check_started(self) -> None:
        expected = f"process {self.rank} of {self.size} in torch.distributed"
        remedy = "call torch.distributed.init_process_group first, and take World.current()"
        check.require(self.group is not None or World.current() == self, expected, World.current(), remedy)

    def talk(self, name: str, act: Callable[[], object]) -> None:
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


def _ends(number: int | None, least: int) -> tuple[int, int]:
    return (least, least) if number is None else (number, -number)


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The processes that torchrun started, inside the block; a group that was started before is used as it is."""
    is_new = processes() > 1 and not dist.is_initialized()
    if is_new:
        got, remedy = f"device={device!r}", "call torch.distributed.init_process_group in a script of your own"
        check.require(torch.device(device).type == "cpu", "the CPU under torchrun", got, remedy)
        World(rank=process_number(), size=processes()).talk("start", _start)
    yield World.current()
    if is_new:
        World.current().sum_(torch.zeros(1))  # nobody leaves while another still talks


def _start() -> None:
    """Start torch.distributed as torchrun tells, under names that an earlier start of the processes has not used.

    torchrun may keep its store, and a process would connect to the address that another had before it was killed.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=_patience())
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    fresh = PrefixStore(f"start {starts()}", store)
    dist.init_process_group("gloo", store=fresh, rank=rank, world_size=size, timeout=timeout)


def _patience() -> float:
    told = os.environ.get(PATIENCE, "1800")
    try:
        seconds = float(told)
    except ValueError:
        seconds = 0.0
    check.require(seconds > 0, f"seconds to wait in {PATIENCE}", told, "leave it out to wait half an hour")
    return seconds
