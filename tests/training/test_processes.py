"""Two processes train as one: sums over shards, one ledger; test_ranks.py compares sums and noise with one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import TensorDataset

import loop
import two_processes
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.methods.dp_sgd.clipping import AdaptiveQuantile
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import FullBatch
from discreet.stages.unit import SampledUsers
from discreet.training.private import Private

FULL = Recipe(method="x", bounder=AdaptiveQuantile(clip=0.5, count_noise=2.0), sampling=FullBatch())
FLAT = Recipe(method="x", bounder=FlatClip(0.5), sampling=FullBatch())  # for runs with hardly any noise


def shard(rank: int, cut: int = 20) -> TensorDataset:
    """Uneven, so that nothing works by symmetry; the third part of a record is its number."""
    x, y = loop.data().tensors
    part = slice(0, cut) if rank == 0 else slice(cut, 60)
    return TensorDataset(x[part], y[part], torch.arange(60)[part])


def run_of(plan: Plan, dataset: Any, net: Any = None, **options: Any) -> tuple[Private, list[list[int]]]:
    """Train, with seed 7 unless told; returns the run and the records of each micro-batch."""
    run = loop.private(net, plan, dataset=dataset, **{"micro_batch": 8, **options})
    drawn = []
    for x, y, number in run:
        run.step(loop.losses(run.model, x, y))
        drawn += [] if run.is_rehearsal else [number.tolist()]
    return run, drawn


def work(rank: int, place: str) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    two_processes.meet(rank, place)
    found: dict[str, Any] = {"size": World.current().size}
    net = loop.model()
    net.register_buffer("unsaved", torch.tensor([1.0 + rank, 2.0]), persistent=False)
    net.register_buffer("turns", torch.tensor([1j * (1 + rank)]), persistent=False)
    if rank == 1:  # a start of its own, which the first process's replaces
        torch.nn.init.ones_(net[0].weight)
    plan = loop.plan(FULL, batch=60)
    run, _ = run_of(plan, shard(rank), net, ledger=f"{place}/ledger.jsonl", average=0.5, seed=7 + rank)
    run.save(f"{place}/state.pt")
    found |= {
        "full": loop.weights(run.model).tolist(),
        "scale": run.progress.scale,
        "epsilon": run.spent().certified.epsilon,
        "charges": run.ledger.length,
        "buffers": [net.get_buffer("unsaved").tolist(), torch.view_as_real(net.get_buffer("turns")).tolist()],
    }
    run.close()
    run, drawn = run_of(loop.plan(steps=40), shard(rank, cut=30))
    found |= {"poisson": loop.weights(run.model).tolist(), "drawn": drawn}
    run, _ = run_of(loop.plan(records=10**6, batch=1, steps=3), shard(rank), seed=7 + rank)  # all are empty
    found |= {"empty": loop.weights(run.model).tolist(), "updates": run.updates}
    again = loop.private(
        None,
        plan,
        dataset=shard(rank),
        ledger=f"{place}/ledger.jsonl",
        resume=f"{place}/state.pt",
        average=0.5,
        streams=Streams.seeded(20 + rank),
    )
    found |= {"resumed at": again.progress.step, "resumed": loop.weights(again.model).tolist()}
    freeze = Recipe(method="x", bounder=FlatClip(0.5), sampling=FullBatch(), selection=RandomFreeze(final_rate=0.5))
    run, _ = run_of(loop.plan(freeze, batch=60, steps=1), shard(rank), seed=7 + rank)
    found["frozen"] = loop.weights(run.model).tolist()
    users = FLAT.using(unit=SampledUsers(per_user=40, name="patient"))
    apart, shared = loop.plan(users, batch=60, noise=1e-6), [0] * len(shard(rank))
    owners = [f"{rank}, {number % 3}" for number in range(len(shard(rank)))]
    run, _ = run_of(apart, shard(rank), unit=owners, micro_batch=40)
    found["users"] = loop.weights(run.model).tolist()
    try:
        loop.private(None, apart, dataset=shard(rank), unit=shared)
    except Refused as refusal:
        found["shared"] = str(refusal)
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    two_processes.part()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    place = tmp_path_factory.mktemp("two")
    mp.start_processes(work, args=(str(place),), nprocs=2, start_method="spawn")
    first, second = (json.loads((place / f"{rank}.json").read_text()) for rank in (0, 1))
    return place, first, second


Found = tuple[Path, dict[str, Any], dict[str, Any]]


@pytest.mark.parametrize("name", ["full", "scale", "poisson", "empty", "epsilon", "charges", "updates", "buffers"])
def test_both_processes_hold_the_same(found: Found, name: str) -> None:
    _, first, second = found
    assert first["size"] == second["size"] == 2
    assert first[name] == second[name]


def test_each_process_draws_for_its_own_records(found: Found) -> None:
    """One seed and as many records for both: the positions that they draw must differ all the same."""
    _, first, second = found
    assert {number for batch in first["drawn"] for number in batch} == set(range(30))
    assert {number for batch in second["drawn"] for number in batch} == set(range(30, 60))
    assert first["drawn"] != [[number - 30 for number in batch] for batch in second["drawn"]]


def test_there_is_one_ledger_and_both_know_what_was_spent(found: Found) -> None:
    place, first, second = found
    plan = loop.plan(FULL, batch=60)
    assert read(place / "ledger.jsonl").charge().certified == plan.charge().certified
    assert first["epsilon"] == second["epsilon"] == plan.certificate().epsilon
    assert first["charges"] == second["charges"] == loop.STEPS


def test_two_processes_resume(found: Found) -> None:
    _, first, second = found
    assert first["resumed at"] == second["resumed at"] == loop.STEPS
    assert first["resumed"] == second["resumed"] == first["full"]


def test_users_are_summed_over_processes_and_never_shared(found: Found) -> None:
    _, first, second = found
    assert first["users"] == second["users"]
    owners = [f"{0 if number < 20 else 1}, {number % 3 if number < 20 else (number - 20) % 3}" for number in range(60)]
    users = FLAT.using(unit=SampledUsers(per_user=40, name="patient"))
    run, _ = run_of(loop.plan(users, batch=60, noise=1e-6), shard(0, cut=60), unit=owners, micro_batch=40)
    alone = loop.weights(run.model)
    torch.testing.assert_close(torch.tensor(first["users"]), alone, rtol=1e-3, atol=1e-4)
    for refused in (first["shared"], second["shared"]):
        assert "all records of a patient in one process" in refused


def test_masks_are_those_of_the_first_process(found: Found) -> None:
    """Half of the coordinates rest, the same half in both, although each process has keys of its own."""
    _, first, second = found
    assert first["frozen"] == second["frozen"]
    rest = torch.tensor(first["frozen"]) == loop.weights(loop.model())
    assert int(rest.sum()) == len(rest) // 2
