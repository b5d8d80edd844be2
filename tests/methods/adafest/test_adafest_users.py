"""DP-AdaFEST with users: all records of a user touch a row once, and the counts are bounded for a user."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import discreet
from discreet import CappedRecords, Horizon, SampledUsers, methods
from discreet.accounting.events import GroupPoissonSampled
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.factors.groups import UnitRows
from discreet.methods.adafest.selection import TouchedRows
from discreet.stages.aggregation import RowCounts
from discreet.stages.unit import Unit

WORDS, WIDTH, LONG, RECORDS = 40, 3, 6, 14
USERS = [[0, 1, 2, 3, 4, 5, 6], [7], [8], [9, 10], [11, 12], [13]]  # one with many records, some with one


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor, size: Tensor) -> Tensor:
        scores: Tensor = self.scale(self.words(tokens).sum(1) * size.unsqueeze(1))
        return scores


def text() -> Text:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Text()


def records() -> tuple[Tensor, Tensor]:
    """The first user touches every row that its records can; others one row, huge ones, or none that is finite."""
    tokens = torch.arange(RECORDS * LONG).view(RECORDS, LONG) % WORDS
    tokens[7], tokens[9], tokens[10] = 3, 5, 5
    size = torch.ones(RECORDS)
    size[3], size[8], size[11], size[13] = 1e6, math.inf, math.nan, 0.0
    return tokens, size


def losses(net: nn.Module, tokens: Tensor, size: Tensor) -> Tensor:
    return F.cross_entropy(net(tokens, size), torch.zeros(len(tokens)).long(), reduction="none")


def counts_of(users: list[list[int]], selection: TouchedRows, *, by_user: bool = True) -> Tensor:
    net, (tokens, size) = text(), records()
    engine = Engine(net)
    total = RowCounts(selection, engine)
    users = sorted(users, key=len)
    rows = torch.tensor([record for user in users for record in user])
    engine.begin(len(rows), units=UnitRows(tuple(map(len, users))) if by_user else None)
    engine.backward(losses(net, tokens[rows], size[rows]))
    total.add()
    engine.close()
    return total.sum(World.current()).value


def test_a_row_counts_once_for_all_records_of_a_user() -> None:
    net, (tokens, size) = text(), records()
    expected = torch.zeros(WORDS, dtype=torch.float64)
    for user in USERS:
        (grad,) = torch.autograd.grad(losses(net, tokens[user], size[user]).mean(), [net.words.weight])
        touched = grad.abs().sum(1) != 0 if bool(grad.isfinite().all()) else torch.zeros(WORDS).bool()
        expected += touched * min(1.0, 1.5 / math.sqrt(max(int(touched.sum()), 1)))
    found = counts_of(USERS, TouchedRows(clip=1.5, least_rows=20))
    assert torch.allclose(found, expected, rtol=1e-5)
    assert float(found[3]) == pytest.approx(1 + 1.5 / math.sqrt(WORDS), rel=1e-5)  # user 1 and all of user 0's records


def largest_move(clip: float, *, by_user: bool = True) -> float:
    """Leave every user out in turn: the largest move of the counts, as a share of their sensitivity."""
    selection = TouchedRows(clip=clip, least_rows=20)
    whole, moves = counts_of(USERS, selection, by_user=by_user), []
    for user in range(len(USERS)):
        without = counts_of(USERS[:user] + USERS[user + 1 :], selection, by_user=by_user)
        moves.append(float((whole - without).norm()))
    return max(moves) / selection.query().sensitivity


@pytest.mark.parametrize("clip", [0.3, 1.0, 1.5, 50.0])
def test_each_user_moves_the_counts_by_at_most_the_clip(clip: float) -> None:
    moved = largest_move(clip)
    assert moved <= 1
    assert moved > 0.999 or clip == 50.0, "no user reaches the bound"


def test_leave_one_user_out_sees_counts_of_single_records() -> None:
    assert largest_move(1.0, by_user=False) > 2


@pytest.mark.parametrize("unit", [SampledUsers(per_user=3), CappedRecords(per_user=3)], ids=["users", "records"])
def test_a_run_protects_users(unit: Unit) -> None:
    tokens, size = records()
    size = size.nan_to_num(1.0, posinf=1.0)
    owners = [owner for owner, user in enumerate(USERS) for _ in user]
    recipe = methods.adafest(least_rows=20).using(unit=unit)
    plan = recipe.bind(noise=2.0, horizon=Horizon.of(records=8, batch=4, steps=3), delta=1e-3)
    net = text()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    private = discreet.Private(net, optimizer, plan, TensorDataset(tokens, size), inputs=tuple, unit=owners)
    for some, of in private:
        private.step(losses(net, some, of))
    assert "of one user" in str(private.spent())
    private.close()


def test_capped_records_pay_for_counts_and_gradient_together() -> None:
    plan = (
        methods.adafest()
        .using(unit=CappedRecords(per_user=3))
        .bind(noise=2.0, horizon=Horizon.of(records=100, batch=10, steps=3), delta=1e-3)
    )
    ((event, _),) = plan.events()
    assert isinstance(event, GroupPoissonSampled)
    gradient = (
        methods.dp_sgd()
        .using(unit=CappedRecords(per_user=3))
        .bind(noise=2.0 / math.sqrt(1 + 1 / 16), horizon=Horizon.of(records=100, batch=10, steps=3), delta=1e-3)
    )
    assert plan.certificate().epsilon == pytest.approx(gradient.certificate().epsilon, rel=1e-6)
