"""Gradients of users: the mean over the records of each, against torch.func, and their bounded influence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from problems import PROBLEMS, losses_of
from test_exact import KINDS
from test_exact import STRATEGIES as WAYS
from test_leave_one_out import BOUNDERS, FAMILIES, STRATEGIES, plain_losses, squared_losses, tolerance
from torch import Tensor, nn
from truths import TOLERANCE, Answer, cast, disagreement, truth_of

from discreet.core.check import Refused
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.factors.groups import UnitRows
from discreet.engine.layout import Mask
from discreet.stages.aggregation import Aggregation
from discreet.stages.selection import Order

SIZES = [(1, 1, 2, 3), (7,), (1,) * 7, (2, 2, 3), (1, 6)]


def means(truth: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return torch.stack([rows.mean(0) for rows in truth.split(list(sizes))])


def answer(engine: Engine, inputs: Any, sizes: tuple[int, ...], weights: Tensor, views: int = 1) -> Answer:
    args, kwargs = inputs
    engine.begin(sum(sizes), views, units=UnitRows(sizes))
    engine.backward(losses_of(engine.model(*args, **kwargs)))
    total = engine.zeros()
    engine.add_weighted(weights.view(1, 1, -1), total)
    return Answer(engine.norms()[0], total[0], engine.per_sample(0, len(sizes)))


@pytest.mark.parametrize("name", [*KINDS, "gpt", "lstm"])
def test_a_user_has_the_mean_gradient_of_its_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in PROBLEMS:
        name = next(other for other in PROBLEMS if other.startswith(name))
    problem = PROBLEMS[name]
    for dtype in (torch.float64, torch.float32):
        model = problem.model().to(dtype)
        inputs = cast(problem.inputs(7), dtype)
        truth = truth_of(problem, model, inputs, 7)
        engine = Engine(model)
        for sizes in SIZES:
            weights, allowed = torch.rand(len(sizes), dtype=torch.float64), 2 * TOLERANCE[dtype] * problem.rounds
            found = answer(engine, inputs, sizes, weights)
            assert disagreement(found, means(truth, sizes), weights) < allowed
        for strategy in WAYS.values():
            with monkeypatch.context() as patched:
                for module, constant, value in strategy:
                    patched.setattr(module, constant, value)
                found = answer(engine, inputs, SIZES[0], weights := torch.rand(4, dtype=torch.float64))
            assert disagreement(found, means(truth, SIZES[0]), weights) < allowed


def test_views_and_users_are_averaged_together() -> None:
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double(), torch.randn(10, 4).double()
    truth = truth_of(PROBLEMS["linear 3-D"], model, ((x,), {}), 10)  # two views of each of five records
    found = answer(Engine(model), ((x,), {}), (1, 4), weights := torch.rand(2).double(), views=2)
    assert disagreement(found, means(truth, (2, 8)), weights) < 1e-10


def test_a_mask_is_applied_to_the_sum_of_a_user() -> None:
    model, x = nn.Linear(6, 5).double(), torch.randn(7, 6).double()
    engine = Engine(model)
    active = torch.rand(5, 6) > 0.5
    mask = Mask((active, True))
    engine.begin(7, units=UnitRows((1, 2, 4)))
    engine.backward(losses_of(model(x)))
    whole, part = engine.per_sample(0, 3), engine.norms(mask=mask)[0]
    kept = torch.cat([active.flatten(), torch.ones(5, dtype=torch.bool)])
    torch.testing.assert_close(part, whole[:, kept].norm(dim=1), rtol=1e-6, atol=0)


def test_units_without_records_or_out_of_order_are_refused() -> None:
    for sizes in ((), (0, 1), (2, 1)):
        with pytest.raises(Refused, match="non-decreasing"):
            UnitRows(sizes)
    with pytest.raises(Refused, match="a unit for each record"):
        Engine(nn.Linear(2, 1)).begin(3, units=UnitRows((1, 1)))


# Influence ---------------------------------------------------------------------------------------------------


def bounded(engine: Engine, x: Tensor, users: list[list[int]], losses: Any) -> dict[str, list[Any]]:
    users = sorted(users, key=len)
    rows = torch.tensor([row for user in users for row in user])
    found = {}
    for name, bounder in BOUNDERS.items():
        engine.begin(len(rows), units=UnitRows(tuple(map(len, users))))
        engine.backward(losses(engine.model(x[rows]), rows))
        aggregation = Aggregation(bounder, 1.0, engine, None, Order.FREEZE_THEN_CLIP)
        aggregation.add()
        sums = aggregation.sums(World())
        found[name] = [*sums.vectors, *sums.scalars]
    return found


def worst_move(engine: Engine, x: Tensor, users: list[list[int]], losses: Any) -> float:
    """The largest move of any sum over its sensitivity, when one user leaves with all records."""
    whole, worst = bounded(engine, x, users, losses), 0.0
    for user in range(len(users)):
        without = bounded(engine, x, users[:user] + users[user + 1 :], losses)
        for name in BOUNDERS:
            for a, b in zip(whole[name], without[name], strict=True):
                assert bool(a.value.isfinite().all())
                worst = max(worst, float((a.value.double() - b.value.double()).norm()) / a.sensitivity)
    return worst


def populations(records: int) -> dict[str, list[list[int]]]:
    everyone = list(range(records))
    return {
        "many and few": [everyone[: records - 3], *([row] for row in everyone[records - 3 :])],
        "pairs": [everyone[at : at + 2] for at in range(0, records, 2)],
        "copies": [[0] * 40, [1], [0, 1], everyone],
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_user_moves_a_sum_by_its_sensitivity_at_most(
    family: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, constant, value in STRATEGIES[strategy]:
        monkeypatch.setattr(module, constant, value)
    make, inputs = FAMILIES[family]
    engine, x = Engine(make()), inputs()
    ordinary = x.flatten(1).isfinite().all(1).nonzero().flatten()
    for values in (x, x[ordinary]):
        engine.script((values,), {}, len(values))
        for name, users in populations(len(values)).items():
            losses = squared_losses if name == "pairs" else plain_losses
            records = sum(map(len, users))
            assert worst_move(engine, values, users, losses) <= 1 + tolerance(records)


def test_users_that_are_not_averaged_exceed_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: records that are clipped one by one move the sum by several clips."""
    real = UnitRows
    monkeypatch.setitem(globals(), "UnitRows", lambda sizes: real((1,) * sum(sizes)))
    x = torch.ones(4, 3) * 50
    assert worst_move(Engine(nn.Linear(3, 1)), x, [[0, 1, 2], [3]], plain_losses) > 2.9


def test_one_record_that_is_not_finite_silences_its_user_only() -> None:
    engine, x = Engine(nn.Linear(3, 2)), torch.randn(6, 3)
    x[1] = math.nan
    users = [[0, 1, 2], [3, 4], [5]]
    whole, without = bounded(engine, x, users, plain_losses), bounded(engine, x, users[1:], plain_losses)
    torch.testing.assert_close(whole["flat"][0].value, without["flat"][0].value, rtol=0, atol=1e-6)


def test_a_micro_batch_of_one_large_user_takes_no_more_memory_than_its_records() -> None:
    """No padding: a user of 400 records beside 100 users of one record makes 500 rows of factors."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    engine, sizes = Engine(model), (*(1,) * 100, 400)
    engine.begin(500, units=UnitRows(sizes))
    engine.backward(model(torch.randn(500, 8)).squeeze(1))
    assert engine.norms().shape == (1, 101)
    for factors in engine._collected().factors():
        assert factors is not None
        elements = 0
        for member in factors.members:  # type: ignore[attr-defined]
            part = getattr(member, "part", member)
            tensors = [value for value in vars(part).values() if isinstance(value, Tensor)]
            elements += sum(tensor.numel() for tensor in tensors)
        assert elements <= 500 * 16 + 101
