"""Train in several processes, and continue after a crash.

    torchrun --nproc-per-node=2 examples/several_processes.py runs/several
    torchrun --nproc-per-node=2 --max-restarts=3 examples/several_processes.py runs/several

torchrun starts all processes again if one of them ends; the script then continues from the last checkpoint. All
processes must see the same directory. Without torchrun the script trains in one process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import discreet
from discreet import methods


def make_data(records: int) -> TensorDataset:
    """Two noisy classes; the same in every process."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 20, generator=generator)
    return TensorDataset(x, (x[:, :5].sum(1) + 0.5 * torch.randn(records, generator=generator) > 0).long())


def main(directory: Path, records: int = 4000, epochs: int = 10) -> float:
    """Train on all records together; returns the accuracy on public records."""
    data = make_data(records + 1000)
    train, test = (TensorDataset(*data[part]) for part in (slice(0, records), slice(records, None)))
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    plan = methods.dp_sgd(clip=0.5).for_budget(epsilon=3.0, delta=1e-5, records=records, batch=400, epochs=epochs)
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint = directory / "state.pt"
    private = discreet.Private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan,
        discreet.own_part(train),
        ledger=directory / "ledger.jsonl",
        resume=checkpoint if checkpoint.exists() else None,
    )
    private.save(checkpoint)  # the first process writes it
    for x, y in private:
        if private.step(F.cross_entropy(model(x), y, reduction="none")) and private.progress.step % 10 == 0:
            private.save(checkpoint)
    private.save(checkpoint)
    inputs, labels = test.tensors
    accuracy = float((model(inputs).argmax(1) == labels).float().mean())
    if private.world.is_first:
        print(f"{private.spent()}; accuracy {accuracy:.3f}; {private.world.size} processes")
    private.close()
    return accuracy


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/several"))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
