"""The processes of a run agree before the first step, and a process that ends is told to the others."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import loop
import two_processes
from discreet import methods
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.errors import ProcessLost
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.training.agreement import check_shards
from discreet.training.private import Private

STEPS, LAST = 6, 3  # the process that ends does so after step LAST


def _frozen() -> nn.Module:
    net = loop.model()
    net[0].bias.requires_grad_(False)
    return net


def _regular(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5, weight_decay=0.1)


def _two_rates(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": 0.25}, {"params": rest}], lr=0.5, momentum=0.5)


def _scheduled(options: dict[str, Any]) -> Private:
    net = loop.model()
    optimizer = loop.sgd(net.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    return Private(net, optimizer, loop.plan(), loop.data(), schedulers=[scheduler], **options)


def _plain(**options: Any) -> Callable[[], Private]:
    return lambda: loop.private(options.pop("net", None), options.pop("which", None), **options)


def ways() -> dict[str, tuple[Callable[[], Private], str]]:
    """What the last process does instead of the usual, and what the message must name."""
    os_streams = Streams.from_os()
    return {
        "clip": (_plain(which=loop.plan(methods.dp_sgd(clip=100.0))), "plan.bounder.clip: 0.5 on rank"),
        "noise": (_plain(which=loop.plan(noise=9.0)), "plan.noise: 1.5 on rank"),
        "steps": (_plain(which=loop.plan(steps=9)), "plan.horizon.steps: 8 on rank"),
        "shape": (_plain(net=nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))), 'model.0.weight: "float32 [6, 4]"'),
        "type": (_plain(net=loop.model().double(), dataset=_doubles()), 'float64 [6, 4]" on rank'),
        "frozen": (
            _plain(net=_frozen(), optimizer=lambda p: loop.sgd(q for q in p if q.requires_grad)),
            'model.0.bias: "float32 [6]" on rank',
        ),
        "buffer": (_plain(net=_with_buffer()), 'float32 [2], buffer" on rank'),
        "optimizer": (_plain(optimizer=torch.optim.Adam), 'optimizer.kind: "SGD" on rank'),
        "decay": (_plain(optimizer=_regular), "optimizer.group 0.weight_decay: 0"),
        "groups": (_plain(optimizer=_two_rates), "optimizer.group 0.lr: 0.5 on rank"),
        "seed": (_plain(streams=os_streams), 'randomness: "seeded: not private" on rank'),
        "views": (_plain(views=2), "views: 1 on rank"),
        "average": (_plain(average=0.9), "average: null on rank"),
        "schedulers": (lambda: _scheduled({"streams": Streams.seeded(7)}), "schedulers: [] on rank"),
        "resume": (_plain(resume="state.pt", ledger="ledger.jsonl"), "resume: false on rank"),
    }


def _doubles() -> Any:
    x, y = loop.data().tensors
    return torch.utils.data.TensorDataset(x.double(), y)


def _with_buffer() -> nn.Module:
    net = loop.model()
    net.register_buffer("seen", torch.zeros(2))
    return net


def differ(rank: int, size: int, place: str) -> None:
    """One of several processes, of which the last differs in one thing after another."""
    torch.set_num_threads(1)
    two_processes.meet(rank, place, size)
    found: dict[str, Any] = {}
    for name, (other, _) in ways().items():
        try:
            (other if rank == size - 1 else _plain())().close()
            found[name] = "accepted"
        except Refused as refusal:
            found[name] = str(refusal)
    # What may differ: the seed itself, the size of micro-batches, the records.
    alike = loop.private(seed=rank, micro_batch=8 + rank, dataset=loop.data(60 + rank))
    found["alike"] = loop.train(alike, most=1)
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    two_processes.part()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    place, size = tmp_path_factory.mktemp("differ"), 2
    mp.start_processes(differ, args=(size, str(place)), nprocs=size, start_method="spawn")
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize("name", ways())
def test_a_difference_is_refused_in_every_process(found: list[dict[str, Any]], name: str) -> None:
    told = {rank[name] for rank in found}
    assert len(told) == 1, told  # the same words in every process
    (message,) = told
    for part in ("the same run in all 2 processes", ways()[name][1], "on rank 0", "on rank 1", "same settings"):
        assert part in message


def test_seeds_micro_batches_and_records_may_differ(found: list[dict[str, Any]]) -> None:
    assert all(rank["alike"] for rank in found)


def _shard(rank: int, size: int) -> Any:
    return Subset(loop.data(), range(rank, loop.RECORDS, size))


class _Jittered(Dataset[Any]):
    """A dataset that augments at random."""

    def __len__(self) -> int:
        return loop.RECORDS

    def __getitem__(self, index: int) -> Any:
        x, y = loop.data()[index]
        return x + torch.randn(4) * random.random() * np.random.rand(), y


def _few_values(rank: int) -> Any:
    """Shards with a few equal rows; at most of the places that are compared they agree."""
    x = torch.zeros(40, 4)
    x[20 + rank :] = 1.0
    x[-1] = rank
    return TensorDataset(x, torch.zeros(40, dtype=torch.long))


def shards(rank: int, size: int, place: str) -> None:
    """Processes that hold the same records, or different ones."""
    torch.set_num_threads(1)
    two_processes.meet(rank, place, size)
    same = {
        "whole": loop.data(),
        "wrapped": Subset(loop.data(), range(loop.RECORDS)),
        "jittered": _Jittered(),
        "two": loop.data(2),
        "dictionary": [{"x": x, "y": y} for x, y in loop.data()],
    }
    different = {
        "shards": _shard(rank, size),
        "empty": loop.data() if rank == 0 else Subset(loop.data(), []),
        "both empty": Subset(loop.data(), []),
        "equal rows": _few_values(rank),
        "constant": TensorDataset(torch.ones(30, 4), torch.zeros(30, dtype=torch.long)),
    }
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    found: dict[str, str] = {}
    for name, dataset in (same | different).items():
        try:
            check_shards(World.current(), dataset)
            found[name] = "accepted"
        except Refused as refusal:
            found[name] = str(refusal)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    with pytest.raises(Refused, match="the same records on ranks 0 and 1"):
        loop.private()
    loop.private(dataset=_shard(rank, size)).close()
    Path(place, f"{rank}.json").write_text(json.dumps([found, list(same)]))
    two_processes.part()


def test_processes_with_the_same_records_are_refused(tmp_path: Path) -> None:
    mp.start_processes(shards, args=(2, str(tmp_path)), nprocs=2, start_method="spawn")
    for rank in range(2):
        found, same = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, told in found.items():
            expected = "the same records on ranks 0 and 1. Remedy: pass discreet.own_part(data)"
            assert expected in told if name in same else told == "accepted", name


def survive(rank: int, size: int, place: str) -> None:
    """One of several processes, of which the last first differs, and then ends in the middle of a run."""
    torch.set_num_threads(1)
    two_processes.meet(rank, place, size)
    clip = 100.0 if rank == size - 1 else 1.0
    with pytest.raises(Refused, match=r"clip: 1\.0 on ranks 0 and 1, 100\.0 on rank 2"):
        loop.private(None, loop.plan(methods.dp_sgd(clip=clip)))
    ledger = f"{place}/ledger.jsonl"
    run = loop.private(None, loop.plan(steps=STEPS), ledger=ledger, seed=rank, dataset=_shard(rank, size))
    run.save(f"{place}/state.pt")
    told = "nothing"
    try:
        for x, y in run:
            if rank == size - 1 and run.progress.step == LAST:
                os._exit(0)
            run.step(loop.losses(run.model, x, y))
    except ProcessLost as lost:
        told = str(lost)
        # No call follows an incomplete step.
        with pytest.raises(Refused, match="in the middle of a logical batch"):
            next(iter(run))
    Path(place, f"{rank}.json").write_text(json.dumps([told, run.progress.step]))
    os._exit(0)


def test_a_process_that_ends_is_told_to_the_others(tmp_path: Path) -> None:
    size = 3
    mp.start_processes(survive, args=(size, str(tmp_path)), nprocs=size, start_method="spawn")
    for rank in range(size - 1):
        told, step = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told.count("\n") == 0
        for part in (f"all {size} processes", "`sum of parts`", f"process {rank}", "ledger holds", "resume"):
            assert part in told
        assert step == LAST
    assert read(tmp_path / "ledger.jsonl").length == LAST
    # What was spent is there, and the run goes on from it.
    again = loop.private(
        None, loop.plan(steps=STEPS), ledger=tmp_path / "ledger.jsonl", resume=tmp_path / "state.pt", seed=99
    )
    assert loop.train(again) == STEPS - LAST
    again.close()
    assert read(tmp_path / "ledger.jsonl").length == STEPS
