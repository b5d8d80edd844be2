"""The world: two gloo processes agree with one, and nothing is skipped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

import two_processes
from discreet.core.check import Refused
from discreet.core.errors import ProcessLost
from discreet.core.streams import Streams
from discreet.core.world import World


def test_one_process_is_the_trivial_world() -> None:
    world = World.current()
    assert world == World(rank=0, size=1)
    assert world.is_first
    value = torch.arange(3.0)
    assert world.sum_(value) is value
    assert world.broadcast_(value) is value
    assert value.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("rank", "size"), [(1, 1), (-1, 2), (0, 0), (2, 2), (0.0, 1), (0, True)])
def test_impossible_worlds_are_refused(rank: int, size: int) -> None:
    with pytest.raises(Refused, match=r"rank|size"):
        World(rank=rank, size=size)


@pytest.mark.parametrize("act", [World.sum_, World.broadcast_])
def test_a_world_that_was_not_started_is_refused(act: object) -> None:
    with pytest.raises(Refused, match="init_process_group"):
        act(World(rank=0, size=2), torch.ones(2))  # type: ignore[operator]


def _process(rank: int, folder: str) -> None:
    two_processes.meet(rank, folder)
    world = World.current()
    plain = world.sum_(torch.tensor([1.0 + rank, 10.0 * rank], dtype=torch.float64))
    wide = torch.full((4, 4), float(rank + 1))
    world.sum_(wide[:, ::2])  # not contiguous: still in place
    weight = torch.nn.Parameter(torch.full((2,), float(rank + 1)))
    world.sum_(weight)
    parts = world.sum_parts_(torch.arange(5.0) * (rank + 1))
    whole = world.gather_parts_(parts.clone())
    one = world.gather_parts_(world.sum_parts_(torch.tensor([2.0 + rank])))  # fewer items than processes
    world.wait_for_first()
    said = world.from_first(lambda: {"rank": world.rank})
    with pytest.raises(ProcessLost if rank else ZeroDivisionError):
        world.from_first(lambda: 1 // 0)
    with pytest.raises(Refused, match="a contiguous vector"):
        world.sum_parts_(wide)
    noise = Streams.from_os().noise.normal(5) if world.is_first else torch.zeros(5)
    world.broadcast_(noise)
    sampled = Streams.seeded(3).sampling.at(world.rank).bernoulli(64, 0.5)
    with pytest.raises(Refused, match=r"in torch\.distributed"):
        World(rank=1 - rank, size=2).sum_(torch.ones(1))
    found = {
        "world": (world.rank, world.size, world.is_first),
        "plain": plain,
        "wide": wide,
        "weight": weight.detach(),
        "noise": noise,
        "parts": (parts, whole, one),
        "said": said,
        "sampled": torch.from_numpy(sampled),
    }
    torch.save(found, f"{folder}/{rank}.pt")
    two_processes.part()


def test_two_processes_agree(tmp_path: Path) -> None:
    mp.spawn(_process, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert (first["world"], second["world"]) == ((0, 2, True), (1, 2, False))
    for found in (first, second):
        assert found["plain"].tolist() == [3.0, 10.0]
        assert found["weight"].tolist() == [3.0, 3.0]
    assert first["wide"].tolist() == [[3.0, 1.0, 3.0, 1.0]] * 4
    assert second["wide"].tolist() == [[3.0, 2.0, 3.0, 2.0]] * 4
    assert [value.tolist() for value in first["parts"]] == [
        [0.0, 3.0, 0.0, 0.0, 0.0],
        [0.0, 3.0, 6.0, 9.0, 12.0],
        [5.0],
    ]
    assert second["parts"][0].tolist() == [0.0, 0.0, 6.0, 9.0, 12.0]  # each gets its own part only
    assert [value.tolist() for value in second["parts"][1:]] == [value.tolist() for value in first["parts"][1:]]
    assert first["said"] == second["said"] == {"rank": 0}
    assert torch.equal(first["noise"], second["noise"])
    assert bool((second["noise"] != 0).all())
    # Ranks that share a seed take sub-streams of their rank, or their records would be sampled alike.
    assert not torch.equal(first["sampled"], second["sampled"])
