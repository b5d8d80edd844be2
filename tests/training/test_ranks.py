"""Four processes: the sums and the certificate of one process, noise drawn by parts, other numbers of processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import discreet
import loop
import two_processes
from discreet import methods
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.analysis import Composition
from discreet.stages.clipping import FlatClip, Query
from discreet.stages.grid_noise import GridNoise
from discreet.stages.noise import GaussianNoise, Mechanism, active_part
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import FixedSize, FullBatch, OwnLoader, Sampling, TruncatedPoisson
from discreet.stages.values import BoundedSum, StepContext
from noise_tests import Values, are_independent, same_lengths, scale_is_right

RANKS = 4
STEPS = 24


@dataclass(frozen=True, eq=False)
class Watched(Mechanism):
    """Gaussian noise, and a list of the exact sums, which the processes put together from their parts."""

    in_parts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", list[list[float]]())  # no setting: settings cannot change

    def event(self, queries: Sequence[Query], noise: float) -> Any:
        return GaussianNoise().event(queries, noise)

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        exact = active_part(sums[0].value.clone(), context)
        self.seen.append(context.world.gather_parts_(exact).tolist())
        return GaussianNoise().release(sums, queries, noise, context)


def still(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


SAMPLERS: dict[str, Sampling] = {"full": FullBatch(), "cap": TruncatedPoisson(9), "fixed": FixedSize()}


def exact_sums(name: str) -> list[list[float]]:
    """The sums of all steps before noise, at the initial parameters, by one seed."""
    relation = Neighbouring.REPLACE_ONE if name == "fixed" else Neighbouring.ADD_REMOVE
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=SAMPLERS.get(name, FullBatch()), relation=relation)
    if name == "frozen":
        recipe = recipe.using(selection=RandomFreeze(final_rate=0.5))
    plan = loop.plan(recipe, batch=12 if name in ("cap", "fixed") else 60, steps=4)
    watched = Watched()
    plan = replace(plan, mechanism=watched, analysis=Composition(), claims=None)
    run = loop.private(None, plan, dataset=discreet.own_part(loop.data()), optimizer=still, seed=5, micro_batch=8)
    loop.train(run)
    run.close()
    return watched.seen


def released_noise(streams: Streams) -> list[list[float]]:
    """The noise of every step, over its standard deviation: all batches are empty."""
    net = nn.Linear(20, 25)
    plan = loop.plan(records=10**6, batch=1, steps=STEPS)
    seen: list[list[float]] = []
    run = discreet.Private(
        net,
        torch.optim.SGD(net.parameters(), lr=1.0),
        plan,
        (torch.randn(40, 20) + World.current().rank, torch.zeros(40, dtype=torch.long)),  # type: ignore[arg-type]
        streams=streams,
    )
    before = loop.weights(net)
    for x, y in run:
        assert run.step(loop.losses(net, x, y))
        after = loop.weights(net)
        seen.append(((after - before).double() / (1.5 * 0.5)).tolist())
        before = after
    run.close()
    assert len(seen) == STEPS
    return seen


class _OneKey(Streams):  # type: ignore[misc]
    """The fault: processes that share a seed draw the same noise."""

    def share(self, same: Any, *, rank: int, sampling: bool = False) -> None:
        noise = self.noise
        super().share(same, rank=rank, sampling=sampling)
        object.__setattr__(self, "noise", noise)


def refusals() -> dict[str, str]:
    told = {}
    recipes = {
        "dp-ftrl": methods.dp_ftrl(clip=0.5),
        "bandmf": methods.bandmf(clip=0.5, bands=2),
        "own": methods.dp_sgd(clip=0.5).using(sampling=OwnLoader()),
    }
    for name, recipe in recipes.items():
        with pytest.raises(Refused) as refused:
            loop.private(None, loop.plan(recipe), dataset=discreet.own_part(loop.data()))
        told[name] = str(refused.value)
    return told


def every_kind() -> dict[str, list[float]]:
    """Weights after a short run, by kind of mechanism."""
    grid = Recipe(method="x", bounder=FlatClip(0.5), mechanism=GridNoise())
    kinds = {
        "grid": grid,
        "projected": methods.dp2_sgd(reduction=0.5),
        "two sums": methods.two_level(clip=0.5),
        "tested": methods.sur(clip=0.5),
        "subspace": methods.gep(clip=0.5, rank=0.2, groups=1, public_batch=16),
    }
    found = {}
    for name, recipe in kinds.items():
        run = loop.private(None, loop.plan(recipe, steps=2), dataset=discreet.own_part(loop.data()))
        loop.train(run)
        run.close()
        found[name] = loop.weights(run.model).tolist()
    return found


def wrapped() -> dict[str, Any]:
    """A model in DistributedDataParallel: unwrapped with a warning, and its wrapper is not called."""
    net = DistributedDataParallel(loop.model())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = loop.private(net, dataset=discreet.own_part(loop.data()))
    with pytest.raises(Refused) as refused:
        net(torch.zeros(2, 4))
    moved = loop.train(run)
    run.close()
    net(torch.zeros(2, 4))
    return {"warned": [str(one.message) for one in told], "refused": str(refused.value), "moved": moved}


def work(rank: int, place: str) -> None:
    torch.set_num_threads(1)
    two_processes.meet(rank, place, RANKS)
    found: dict[str, Any] = {name: exact_sums(name) for name in (*SAMPLERS, "frozen")}
    found["starts"] = [released_noise(Streams.from_os()) for _ in range(2)]
    found["one key"] = released_noise(_OneKey.seeded(3))
    found["kinds"], found["refused"], found["wrapped"] = every_kind(), refusals(), wrapped()
    files = {"ledger": f"{place}/ledger.jsonl", "resume": f"{place}/begun.pt"}
    run = loop.private(None, loop.plan(), dataset=discreet.own_part(loop.data()), streams=Streams.from_os(), **files)
    found["resumed at"] = run.progress.step
    loop.train(run, most=5)
    run.save(f"{place}/four.pt")
    found["epsilon"] = run.spent().certified.epsilon
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    run.close()
    two_processes.part()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What each of four processes found; they resume a run that one process began."""
    place = tmp_path_factory.mktemp("four")
    run = loop.private(None, loop.plan(), ledger=f"{place}/ledger.jsonl", streams=Streams.from_os())
    loop.train(run, most=3)
    run.save(f"{place}/begun.pt")
    run.close()
    mp.start_processes(work, args=(str(place),), nprocs=RANKS, start_method="spawn")
    return place, [json.loads((place / f"{rank}.json").read_text()) for rank in range(RANKS)]


Found = tuple[Path, list[dict[str, Any]]]


@pytest.mark.parametrize("name", [*SAMPLERS, "frozen"])
def test_the_sums_before_noise_are_those_of_one_process(found: Found, name: str) -> None:
    _, four = found
    alone = np.array(exact_sums(name))
    assert alone.shape[1] == (22 if name == "frozen" else 44)
    assert np.linalg.norm(alone, axis=1).min() > 0.1
    for seen in four:
        apart = np.linalg.norm(np.array(seen[name]) - alone, axis=1)
        assert (apart <= 1e-6 * np.linalg.norm(alone, axis=1)).all()


# -- noise -----------------------------------------------------------------------------------------------------


def parts_of(z: Values) -> list[Values]:
    """The coordinates of each process."""
    return [z[:, World(rank=rank, size=RANKS).part(z.shape[1])] for rank in range(RANKS)]


def between_ranks(z: Values) -> list[Values]:
    return same_lengths(parts_of(z))


def test_noise_has_its_scale_on_every_coordinate(found: Found) -> None:
    """False alarm at most 1e-9 for each start; the controls are 8 % too much noise, and one rank without any."""
    for start in found[1][0]["starts"]:
        z = np.array(start)
        assert z.shape == (STEPS, 525)
        assert scale_is_right(z, parts_of(z))
        assert not scale_is_right(z * 1.08, parts_of(z * 1.08))
        bare = z.copy()
        bare[:, World(rank=2, size=RANKS).part(525)] = 0.0
        assert not scale_is_right(bare, parts_of(bare))


def test_noise_is_independent_between_ranks_steps_and_starts(found: Found) -> None:
    first, second = (np.array(start) for start in found[1][0]["starts"])
    assert are_independent(between_ranks(first) + between_ranks(second))
    assert are_independent([*first, *second])  # every two steps, of the same start or not
    # The controls: ranks with one key, and a start that repeats the other's noise.
    repeated = np.array(found[1][0]["one key"])
    assert not are_independent(between_ranks(repeated))
    assert not are_independent([*first, *first])


def test_every_process_gets_the_same_release(found: Found) -> None:
    _, (first, *others) = found
    for other in others:
        assert other["starts"] == first["starts"]
        assert other["kinds"] == first["kinds"]


def test_every_kind_of_mechanism_moves_the_model(found: Found) -> None:
    initial = loop.weights(loop.model())
    for name, weights in found[1][0]["kinds"].items():
        assert torch.tensor(weights).isfinite().all()
        assert name == "tested" or float((torch.tensor(weights) - initial).norm()) > 0.01


# -- other numbers of processes, refusals, wrappers ------------------------------------------------------------


def test_a_run_goes_on_with_another_number_of_processes(found: Found) -> None:
    """One process began it, four went on, and one ends it."""
    place, four = found
    assert [seen["resumed at"] for seen in four] == [3] * RANKS
    run = loop.private(
        None, loop.plan(), ledger=place / "ledger.jsonl", resume=place / "four.pt", streams=Streams.from_os()
    )
    assert run.progress.step == 5
    loop.train(run)
    run.close()
    record = read(place / "ledger.jsonl")
    assert [entry.step for entry in record.entries] == list(range(loop.STEPS))
    keys = [value for entry in record.entries for value in entry.note.values() if isinstance(value, str)]
    assert len(set(keys)) == len(keys) == 2 * (1 + RANKS + 1)
    plan: Plan = loop.plan()
    assert record.charge().certified == plan.charge().certified


def test_the_certificate_is_that_of_one_process(found: Found) -> None:
    _, four = found
    run = loop.private(None, loop.plan(), dataset=loop.data())
    loop.train(run, most=5)
    assert {seen["epsilon"] for seen in four} == {run.spent().certified.epsilon}


def test_what_several_processes_cannot_train_is_refused_by_name(found: Found) -> None:
    told = found[1][3]["refused"]
    assert "dp-ftrl in 4 processes" in told["dp-ftrl"]
    assert "bandmf in 4 processes" in told["bandmf"]
    assert "OwnLoader in 4 processes" in told["own"]


def test_a_wrapped_model_is_unwrapped_with_a_message(found: Found) -> None:
    for seen in found[1]:
        assert len(seen["wrapped"]["warned"]) == 1
        assert "private.model" in seen["wrapped"]["warned"][0]
        assert "a call of DistributedDataParallel" in seen["wrapped"]["refused"]
        assert seen["wrapped"]["moved"] == loop.STEPS


def test_parts_are_a_partition_at_every_number_of_processes() -> None:
    for size in range(1, 9):
        parts = [World(rank=rank, size=size).part(61) for rank in range(size)]
        assert [index for part in parts for index in range(61)[part]] == list(range(61))
