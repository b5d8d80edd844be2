"""A script that trains a sharded model, and whose processes are killed; arguments: folder, processes, kills, steps."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint  # what the children need
from torch.distributed.fsdp import fully_shard

import discreet
import loop
from discreet.core.streams import Streams
from discreet.core.world import joined
from supervisor import charges, supervise

EVERY = 7  # steps between checkpoints


def train(rank: int, place: Path, steps: int) -> None:
    """What a user writes: begin or resume, save now and then. It notes each release, and whether it was charged."""
    ledger, saved = place / "ledger.jsonl", place / "run.pt"
    noted = os.open(place / f"released-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with joined("cpu") as world:
        has_begun = world.from_first(saved.exists)
        if not has_begun and world.is_first:
            ledger.unlink(missing_ok=True)  # of a start that ended before its first checkpoint, and so without a charge
        net = loop.model()
        for part in (net[0], net):  # type: ignore[index]
            fully_shard(part)
        run = loop.private(
            net,
            loop.plan(steps=steps),
            dataset=discreet.own_part(loop.data()),
            streams=Streams.from_os(),
            ledger=ledger,
            resume=saved if has_begun else None,
        )
        if not has_begun:
            run.save(saved)
        for x, y in run:
            if run.step(loop.losses(net, x, y)):
                step = run.progress.step
                os.write(noted, b"%d %d\n" % (step, charges(ledger) >= step))
                if step % EVERY == 0:
                    run.save(saved)
        run.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, (processes, killed, length) = Path(sys.argv[1]), map(int, sys.argv[2:5])
    loop.plan(steps=length).certificate()
    supervise(
        lambda rank: train(rank, folder, length),
        folder / "ledger.jsonl",
        steps=length,
        ranks=processes,
        kills=killed,
        chance=random.Random(1),
    )
