"""All processes must make their losses in the same way: leaving one record out moves others to another process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Subset

import discreet
import loop
import two_processes
from discreet.core.check import Refused
from discreet.core.world import World

Body = Callable[[nn.Module, Tensor, Tensor], Tensor]


def tensor_of_the_rank(rank: int) -> Body:
    """2.7 clips, when the last record was left out."""
    sign = torch.tensor(1.0 - 2 * rank)
    return lambda net, x, y: loop.losses(net, x * sign, y)


def number_of_the_rank(rank: int) -> Body:
    return lambda net, x, y: loop.losses(net, x * (1.0 - 2 * rank), y)


class Heads(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        features = loop.data().tensors[0].shape[1]
        self.heads, self.rank = nn.ModuleList(nn.Linear(features, 3) for _ in range(2)), rank

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[self.rank](x)  # type: ignore[no-any-return]


def layer_of_the_rank(rank: int) -> Body:
    return loop.losses


def choice_of_the_rank(rank: int) -> Body:
    return lambda net, x, y: loop.losses(net, -x if discreet.public(rank == 1) else x, y)


def backward_of_the_rank(rank: int) -> Body:
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: Tensor) -> Tensor:
            return h.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * (1.0 - 2 * rank)

    return lambda net, x, y: F.cross_entropy(Turned.apply(net(x)), y, reduction="none")


def the_same(rank: int) -> Body:
    """Nothing that differs: constants, public indices, draws for each record, a declared number, sizes."""
    mean, order = torch.linspace(0, 1, loop.data().tensors[0].shape[1]), torch.tensor([1, 0])

    def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = (x.to(torch.device("cpu")) - mean) * torch.rand(len(x), 1) + discreet.public(0.5)
        x = torch.cat([x[:, order], x[:, 2:]], 1).reshape(len(x), -1).contiguous()
        return F.dropout(F.cross_entropy(net(x), y, reduction="none"), 0.1)

    return losses


REFUSED = (tensor_of_the_rank, number_of_the_rank, layer_of_the_rank, choice_of_the_rank, backward_of_the_rank)


def work(rank: int, place: str) -> None:
    torch.set_num_threads(1)
    two_processes.meet(rank, place)
    found: dict[str, Any] = {}
    for make in (*REFUSED, the_same):
        ledger = f"{place}/{make.__name__}.jsonl"
        own = Subset(loop.data(), range(20) if rank == 0 else range(20, 60))
        net = Heads(rank) if make is layer_of_the_rank else None
        run = loop.private(net, loop.plan(steps=3), dataset=own, ledger=ledger, seed=7)
        body = make(rank)
        try:
            for x, y in run:
                run.step(body(run.model, x, y))
            found[make.__name__] = run.progress.step
        except Refused as refusal:
            found[make.__name__] = [str(refusal), run.ledger.length]
        run.close()
    found["agree"] = [World.current().agree(number) for number in (5, None, rank, None if rank else 5)]
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    two_processes.part()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    place = tmp_path_factory.mktemp("ways")
    # Spawned: in forked processes Python would salt its hashes alike.
    mp.start_processes(work, args=(str(place),), nprocs=2, start_method="spawn")
    return [json.loads((place / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_difference_between_processes_is_refused_before_it_is_charged(found: Any, make: Any) -> None:
    for own in found:
        message, charges = own[make.__name__]
        assert "losses that every process makes by the same calls" in message
        assert charges == 0


def test_processes_that_do_the_same_are_accepted(found: Any) -> None:
    assert [own["the_same"] for own in found] == [3, 3]


def test_numbers_are_compared_among_those_who_have_one(found: Any) -> None:
    assert [own["agree"] for own in found] == [[True, True, False, True]] * 2
    assert World().agree(5)
    assert World().agree(None)
