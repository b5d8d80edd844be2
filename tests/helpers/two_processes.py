"""The processes of one run, as the tests start them."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

PATIENCE = timedelta(seconds=120)  # instead of torch's 30 minutes: a test that hangs must fail


def meet(rank: int, place: str, size: int = 2) -> None:
    """Join the other processes."""
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=size, timeout=PATIENCE)


def part() -> None:
    """Leave when all have written what they found: at once, for gloo's own teardown aborts now and then."""
    dist.barrier()
    os._exit(0)
