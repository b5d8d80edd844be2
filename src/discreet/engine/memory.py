"""How much memory a record takes, counted on random inputs, and how many records fit at once.

    micro = micro_batch_for(engine, (x,), batch=256)

Two amounts are counted per record while the engine checks itself: what autograd saves for a plain step, and what
the engine keeps until the norms are known. In the backward pass the second takes the place of the first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from discreet.core import check
from discreet.engine.factors import parts as limits
from discreet.engine.factors.formed_twice import FormedTwice
from discreet.engine.factors.linear import OneHot, Outer, Sum
from discreet.engine.factors.parts import BoundedFactors, Factors, FormedGradients, Part

if TYPE_CHECKING:
    from discreet.engine.engine import Engine

# Up to this much, a batch is never cut: smaller pieces cost time and save nothing that anyone would miss.
SMALL_BYTES = 256 << 20
# A private step may take this much of the memory that plain SGD takes for the whole batch.
SHARE = 1.2
# More records than this are slower at once, not faster, unless all that they save is small: activations leave the
# cache, and memory beyond 32 MB in one piece is handed out anew, page by page, for every tensor.
ENOUGH, ENOUGH_BYTES = 512, 64 << 20
# Below this many records, a pass costs about as much as one of twice as many.
LEAST = 8


@dataclass
class MemoryTally:
    """Bytes of distinct tensors that a pass saved, parameters apart."""

    without: frozenset[int]
    seen: dict[int, int] = field(default_factory=dict)

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.without:
            self.seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        return sum(self.seen.values())


@contextmanager
def tally(parameters: Sequence[Tensor]) -> Iterator[MemoryTally]:
    """Counts what autograd saves inside the block."""
    counted = MemoryTally(frozenset(parameter.untyped_storage().data_ptr() for parameter in parameters))
    with torch.autograd.graph.saved_tensors_hooks(counted.pack, lambda tensor: tensor):
        yield counted


def kept_bytes(factors: Sequence[Factors | None]) -> int:
    """Bytes that the factors of a micro-batch hold."""
    return sum(_bytes(own) for own in factors if own is not None)


def _bytes(part: Part) -> int:
    if isinstance(part, (BoundedFactors, FormedTwice)):
        return _bytes(part.part)
    if isinstance(part, Sum):
        return sum(_bytes(own) for own in part.parts)
    if isinstance(part, FormedGradients):
        return part.grads_N.nbytes
    if isinstance(part, Outer):
        return part.left_NPA.nbytes + part.right_NPB.nbytes
    if isinstance(part, OneHot):
        return part.index_NP.nbytes + part.right_NPB.nbytes
    return part.records * math.prod(part.shape) * torch.finfo(part.dtype).bits // 8


def largest_kept(factors: Sequence[Factors | None]) -> int:
    """Elements of the largest per-sample gradient of one parameter, of those that are made for all records."""
    made = (own for own in factors if isinstance(own, (FormedGradients, FormedTwice)))
    return max((math.prod(own.shape) for own in made), default=0)


def memory_of(device: torch.device) -> int | None:
    """Bytes of memory in all, if they are known: what is free changes from run to run."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if device.type == "cpu" else None
    except (AttributeError, ValueError, OSError):
        return None


def bytes_a_record(saved: float, kept: float) -> float:
    """The peak of a private step, per record: the larger amount, and the part of the other that overlaps it."""
    return max(saved, kept) + min(saved, kept) / 4


def micro_batch_for(
    engine: Engine,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    records: int,
    batch: int | None = None,
    limit_bytes: int | None = None,
) -> int:
    """How many records of a batch to take at once.

    args, kwargs  inputs of the model for `records` records; only their shapes and types are used
    batch         the public batch size; default: `records`
    limit_bytes   the most memory; default: about what plain SGD takes for the whole batch, at least 256 MB, at most
                  a quarter of the machine's; and at most 512 records, if they save more than 64 MB

    It never changes a result, only how much memory and time it takes: per-sample gradients are made once while those
    of every parameter may be kept, and twice above that.
    """
    check.count("the records in the example", records=records)
    batch = records if batch is None else batch
    check.count("the public batch size", batch=batch)
    script = engine.script(args, kwargs or {}, records)
    if limit_bytes is None:
        limit_bytes = max(SMALL_BYTES, int(SHARE * batch * script.saved_bytes))
        if (memory := memory_of(engine.device)) is not None:
            limit_bytes = min(limit_bytes, memory // 4)
    check.count("the most memory for one micro-batch, in bytes", limit_bytes=limit_bytes)
    each = bytes_a_record(script.saved_bytes, script.kept_bytes)
    fit = min(int(limit_bytes // max(each, 1.0)), limits.KEEP_ELEMENTS // max(script.largest, 1))
    fit = max(LEAST, min(fit, max(ENOUGH, int(ENOUGH_BYTES // max(each, 1.0)))))
    if fit >= batch:
        return batch
    return math.ceil(batch / math.ceil(batch / fit))  # pieces of one size: no short one at the end
