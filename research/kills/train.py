"""A run that is killed again and again, as a user writes it; every release is noted in a file of its process.

Noted are the step before noise is drawn, with whether its charge was on disk by then, and the first numbers of the
noise afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import discreet
from discreet import methods
from discreet.core.world import World, joined
from discreet.stages.clipping import Query
from discreet.stages.noise import GaussianNoise
from discreet.stages.plan import Plan
from discreet.stages.values import BoundedSum, StepContext

EVERY: Final = 7  # steps between checkpoints
RECORDS: Final = 60
SHOWN: Final = 3  # numbers of the noise of a step that are noted


def charges(ledger: Path) -> int:
    """The number of charges in a ledger."""
    return ledger.read_bytes().count(b"\n") - 1 if ledger.exists() else 0


def plan(steps: int) -> Plan:
    horizon = discreet.Horizon.of(records=RECORDS, batch=12, steps=steps)
    return methods.dp_sgd(clip=0.5).bind(noise=1.5, horizon=horizon, delta=1e-5)


def network(*, sharded: bool) -> nn.Module:
    torch.manual_seed(2)
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    if sharded:
        from torch.distributed.fsdp import fully_shard

        for part in (made[0], made):
            fully_shard(part)
    return made


def note_releases(file: int, ledger: Path, start: int) -> None:
    """Let Gaussian noise note each release, before and after it."""
    release = GaussianNoise.release

    def noted(
        self: GaussianNoise, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, now: StepContext
    ) -> list[Tensor]:
        os.write(file, b"release %d %d %d\n" % (start, now.step, charges(ledger) > now.step))
        exact = sums[0].value.clone()
        noisy = release(self, sums, queries, noise, now)
        own = (noisy[0] - exact)[now.world.part(len(exact))][:SHOWN]
        shown = " ".join(f"{number:.4f}" for number in own.tolist())
        os.write(file, f"noise {start} {now.step} {shown}\n".encode())
        return noisy

    GaussianNoise.release = noted  # type: ignore[method-assign]


def train(kind: str, place: Path, steps: int, start: int) -> None:
    """What a user writes: begin or resume, save now and then."""
    ledger, saved = place / "ledger.jsonl", place / "run.pt"
    x = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(1))
    with joined("cpu") as world:
        note_releases(_opened(place, world), ledger, start)
        has_begun = world.from_first(saved.exists)
        if not has_begun and world.is_first:
            ledger.unlink(missing_ok=True)  # of a start that ended before its first checkpoint, and so without a charge
        net = network(sharded=kind == "sharded")
        private = discreet.Private(
            net,
            torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5),
            plan(steps),
            discreet.own_part(TensorDataset(x, (x.sum(1) > 0).long())),
            ledger=ledger,
            resume=saved if has_begun else None,
        )
        if not has_begun:
            private.save(saved)
        for features, labels in private:
            moved = private.step(F.cross_entropy(net(features), labels, reduction="none"))
            if moved and private.progress.step % EVERY == 0:
                private.save(saved)
        if world.is_first:
            (place / "updates").write_text(str(private.updates), encoding="utf-8")
        private.close()


def _opened(place: Path, world: World) -> int:
    return os.open(place / f"released-{world.rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
