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


def declared_number_of_the_rank(rank: int) -> Body:
    return lambda net, x, y: loop.losses(net, x * discreet.public(1.0 - 2 * rank), y)


def the_same(rank: int) -> Body:
    """Nothing that differs: constants, public indices, draws for each record, a declared number, sizes."""
    mean, order = torch.linspace(0, 1, loop.data().tensors[0].shape[1]), torch.tensor([1, 0])

    def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = (x.to(torch.device("cpu")) - mean) * torch.rand(len(x), 1) + discreet.public(0.5)
        x = torch.cat([x[:, order], x[:, 2:]], 1).reshape(len(x), -1).contiguous()
        return F.dropout(F.cross_entropy(net(x), y, reduction="none"), 0.1)

    return losses


REFUSED = (tensor_of_the_rank, number_of_the_rank, layer_of_the_rank, choice_of_the_rank, backward_of_the_rank)
NAMED = {declared_number_of_the_rank: "the same numbers in discreet.public"}


class Weighted(nn.Module):
    """A buffer that is large enough to be added up in columns, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head, weights = nn.Linear(4, 2), torch.randn(80, 70, generator=torch.Generator().manual_seed(1))
        self.register_buffer("weights", weights)
        self.register_buffer("one", torch.zeros(1, 70))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.weights.sum(1).mean()  # type: ignore[operator, no-any-return]


def weights_of_the_rank(rank: int, run: discreet.Private) -> None:
    """`if rank == 0: model.load_state_dict(...)` after Private was built: 1.2 clips."""
    if rank == 0 and run.ledger.length == 0:
        run.model.load_state_dict({name: -value for name, value in run.model.state_dict().items()})


def layout_of_the_rank(rank: int, run: discreet.Private) -> None:
    """Sums round by the order of memory: 5.8 clips, where a model takes the difference of two."""
    if rank == 0:
        run.model.weights = run.model.weights.t().contiguous().t()  # type: ignore[operator, union-attr]


def rate_of_the_rank(rank: int, run: discreet.Private) -> None:
    """`if rank == 0: scheduler.step()`: 2.0 clips in the step after the next, which weight decay had moved apart."""
    if run.ledger.length:
        run.optimizer.param_groups[0]["lr"] = 0.1 + rank


def threads_of_the_rank(rank: int, run: discreet.Private) -> None:
    torch.set_num_threads(1 + rank)


def the_same_changes(rank: int, run: discreet.Private) -> None:
    """What users write in every process: weights that are loaded, a layout with axes of one entry, a schedule."""
    if run.ledger.length == 0:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.zero_()
    if rank == 0:
        run.model.one = torch.zeros(70, 1).t()
    run.optimizer.param_groups[0]["lr"] *= 0.5


CHANGES = {
    weights_of_the_rank: ("content.head.weight", 0),
    layout_of_the_rank: ('layout.weights: "strides [1, 80]" on rank 0, "strides [70, 1]" on rank 1', 0),
    rate_of_the_rank: ("optimizer.group 0.lr: 0.1 on rank 0, 1.1 on rank 1", 1),
    threads_of_the_rank: ("kernels.num_threads: 1 on rank 0, 2 on rank 1", 0),
    the_same_changes: ("", 3),
}


def changed(rank: int, change: Callable[[int, discreet.Private], None]) -> Any:
    """The charges, and the message, of a run in which something is changed before the loop and after every step."""
    own = Subset(loop.data(), range(20) if rank == 0 else range(20, 60))
    run = loop.private(Weighted(), loop.plan(steps=3), dataset=own, seed=7)
    change(rank, run)
    message = ""
    try:
        for x, y in run:
            if run.step(loop.losses(run.model, x, y)):
                change(rank, run)
    except Refused as refusal:
        message = str(refusal)
    run.close()
    torch.set_num_threads(1)
    return message, run.ledger.length


def work(rank: int, place: str) -> None:
    torch.set_num_threads(1)
    two_processes.meet(rank, place)
    found: dict[str, Any] = {}
    for make in (*REFUSED, *NAMED, the_same):
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
    found |= {change.__name__: changed(rank, change) for change in CHANGES}
    found["agree"] = World.current().agree(5, None, rank, None if rank else 5)
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    two_processes.part()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    place = tmp_path_factory.mktemp("ways")
    # Spawned: in forked processes Python would salt its hashes alike.
    mp.start_processes(work, args=(str(place),), nprocs=2, start_method="spawn")
    return [json.loads((place / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("make", [*REFUSED, *NAMED], ids=lambda make: make.__name__)
def test_a_difference_between_processes_is_refused_before_it_is_charged(found: Any, make: Any) -> None:
    for own in found:
        message, charges = own[make.__name__]
        assert NAMED.get(make, "losses that every process makes by the same calls") in message
        assert charges == 0


def test_processes_that_do_the_same_are_accepted(found: Any) -> None:
    assert [own["the_same"] for own in found] == [3, 3]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_model_or_optimizer_that_comes_to_differ_is_refused_before_the_next_charge(found: Any, change: Any) -> None:
    told, charges = CHANGES[change]
    for own in found:
        message, paid = own[change.__name__]
        assert told in message if told else message == ""
        assert paid == charges


def test_numbers_are_compared_among_those_who_have_one(found: Any) -> None:
    assert [own["agree"] for own in found] == [[True, True, False, True]] * 2
    assert World().agree(5, None) == [True, True]
