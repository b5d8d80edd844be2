"""The processes of one run, as the tests start them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = timedelta(seconds=120)  # instead of torch's 30 minutes: a test that hangs must fail


def meet(rank: int, place: str, size: int = 2) -> None:
    """Join the other processes."""
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=size, timeout=PATIENCE)


def start(work: Callable[..., None], size: int, *args: Any) -> None:
    """Run `work(rank, *args)` in so many processes. They are forked from one that has imported what they need."""
    needed = ["torch.distributed.fsdp", "torch.distributed.checkpoint", "discreet", "loop", work.__module__]
    multiprocessing.set_forkserver_preload(needed)
    mp.start_processes(work, args=args, nprocs=size, start_method="forkserver")


def part() -> None:
    """Leave when all have written what they found: at once, for gloo's own teardown aborts now and then."""
    dist.barrier()
    os._exit(0)
