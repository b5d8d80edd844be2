"""Numbers that the records of a micro-batch share: leaving one record out moves others to another micro-batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import discreet
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Recipe
from discreet.stages.sampling import FullBatch, Horizon, Poisson

RECORDS = 12
Losses = Callable[[nn.Module, Tensor], Tensor]


def run(losses: Losses, **settings: Any) -> Tensor:
    """The sum that one full batch releases with next to no noise, in clips."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    sampling = settings.pop("sampling", FullBatch())
    recipe = replace(Recipe(method="x", bounder=FlatClip(1.0)), sampling=sampling)
    size, steps = settings.pop("batch", RECORDS), settings.pop("steps", 1)
    plan = recipe.bind(noise=1e-6, horizon=Horizon.of(records=RECORDS, batch=size, steps=steps), delta=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(RECORDS))
    data = TensorDataset(torch.ones(RECORDS, 3), torch.zeros(RECORDS))
    private = discreet.Private(model, optimizer, plan, data, streams=Streams.seeded(1), **settings)
    try:
        for x, _ in private:
            private.step(losses(model, x))
    finally:
        private.close()
    return before - model.weight.detach()


def sign(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * (torch.randint(0, 2, (1,)) * 2.0 - 1.0)).squeeze(1)


def scale_of_a_row(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * torch.rand(len(x))[:1]).squeeze(1)


def weight_dropout(model: nn.Module, x: Tensor) -> Tensor:
    return F.linear(x, F.dropout(torch.ones(1, 3))).squeeze(1) + model(x).squeeze(1) * F.dropout(torch.ones(1))


def rows_times_shared(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * (torch.rand(len(x), 1) * torch.rand(1))).squeeze(1)


def column(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.index_fill(1, torch.randint(0, 3, (1,)), 0.0)).squeeze(1)


def channel_dropout(model: nn.Module, x: Tensor) -> Tensor:
    """One mask for all records: they lie behind the axes that `dropout1d` draws for."""
    return model(F.dropout1d(x.t().unsqueeze(0)).squeeze(0).t()).squeeze(1)


def attention_dropout(model: nn.Module, x: Tensor) -> Tensor:
    """One mask for all records: only the values hold them. Leaving one record out moved a sum by 5.5 clips."""
    return attended(model(x).unsqueeze(2)).sum((1, 2))


def attention_dropout_of_rows(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x).unsqueeze(2) * attended(torch.ones(len(x), 1, 1))).sum((1, 2))


def attended(values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(torch.zeros(1, 3, 2), torch.zeros(1, 1, 2), values, dropout_p=0.5)


def declared_draw(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * discreet.public(torch.rand(1))).squeeze(1)


SHARED = {
    one.__name__: one
    for one in (
        *(sign, scale_of_a_row, weight_dropout, rows_times_shared, column, channel_dropout, declared_draw),
        *(attention_dropout, attention_dropout_of_rows),
    )
}


@pytest.mark.parametrize("losses", SHARED.values(), ids=SHARED.keys())
def test_a_shared_draw_is_refused_where_batches_are_cut(losses: Losses) -> None:
    with pytest.raises(Refused, match=r"one draw for all records of a micro-batch, in .*test_cuts\.py"):
        run(losses, micro_batch=4)


@pytest.mark.parametrize("losses", [sign, weight_dropout, rows_times_shared, column, attention_dropout])
@pytest.mark.parametrize("settings", [{}, {"micro_batch": RECORDS}, {"fixed_rows": 4}], ids=str)
def test_it_is_accepted_where_they_are_not(losses: Losses, settings: dict[str, Any]) -> None:
    run(losses, **settings)


def test_a_poisson_batch_that_may_be_cut_is_refused_before_one_is() -> None:
    with pytest.raises(Refused, match="one draw for all records"):
        run(sign, micro_batch=8, batch=4, sampling=Poisson())
    run(sign, micro_batch=RECORDS, batch=4, sampling=Poisson())


INNOCENT: dict[str, Losses] = {
    "a row for each record": lambda model, x: (model(x) * torch.rand(len(x), 1)).squeeze(1),
    "dropout": lambda model, x: model(F.dropout(x)).squeeze(1),
    "like the records": lambda model, x: model(x + torch.randn_like(x)).squeeze(1),
    "drop path": lambda model, x: (model(x) * x.new_empty(len(x), 1).bernoulli_(0.5)).squeeze(1),
    "a mask of rows, computed": lambda model, x: (model(x) * (torch.rand(len(x), 1) > 0.5).float()).squeeze(1),
    "channels of a record": lambda model, x: model(F.dropout1d(x.unsqueeze(2)).squeeze(2)).squeeze(1),
    "channels of a row": lambda model, x: model(x * F.dropout2d(torch.ones(1, len(x), 1, 1))[0, :, 0]).squeeze(1),
    "attention to the record": lambda model, x: model(
        F.scaled_dot_product_attention(torch.zeros(1, 3, 1), x.unsqueeze(2), x.unsqueeze(2), dropout_p=0.5).squeeze(2)
    ).squeeze(1),
    "made by size after dropout": lambda model, x: model(F.dropout(x) * F.dropout(x).new_ones(1)).squeeze(1),
    "no draw": lambda model, x: model(x).squeeze(1),
}


@pytest.mark.parametrize("losses", INNOCENT.values(), ids=INNOCENT.keys())
def test_draws_of_single_records_are_accepted(losses: Losses) -> None:
    run(losses, micro_batch=4)
    run(losses, micro_batch=1)


def test_declared_numbers_stay_the_same_within_a_step() -> None:
    chosen = random.Random(0)

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).squeeze(1) * discreet.public(chosen.random())

    with pytest.raises(Refused, match="declared values that stay the same"):
        run(losses, micro_batch=4)
    run(losses, micro_batch=RECORDS, steps=3)
    run(losses, fixed_rows=4)


def test_declared_numbers_may_change_from_step_to_step() -> None:
    passes = []

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        passes.append(len(x))
        done = max(0, len(passes) - 3) // 3  # two rehearsals, and three micro-batches a step
        return model(x).squeeze(1) * discreet.public(1.0 + done if len(passes) > 2 else 1.0)

    run(losses, micro_batch=4, steps=3)


def test_a_buffer_that_was_replaced_is_no_longer_public() -> None:
    """It may be written to between batches, and nobody compares it."""
    model = nn.Linear(3, 1, bias=False)
    model.register_buffer("centre", torch.ones(1))
    recipe = replace(Recipe(method="x", bounder=FlatClip(1.0)), sampling=FullBatch())
    plan = recipe.bind(noise=1.0, horizon=Horizon.of(records=RECORDS, batch=RECORDS, steps=3), delta=1e-6)
    data = TensorDataset(torch.randn(RECORDS, 3), torch.zeros(RECORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = discreet.Private(model, optimizer, plan, data, streams=Streams.seeded(1))
    kept, updates = model.centre, []

    def loop() -> None:
        for x, _ in private:
            updates.append(private.step((model(x) * kept).squeeze(1)))
            if updates[-1]:
                model.centre = model.centre.clone()
                kept.copy_(x.mean().sign())

    with pytest.raises(Refused, match="each record stands alone"):
        loop()
    assert sum(updates) == 1
    private.close()


def test_a_sum_with_a_shared_draw_moves_by_more_than_a_clip() -> None:
    """The reason: signs that a record meets by its micro-batch."""
    records = torch.tensor([1.0, -1.0, -1.0, 1.0] * 3)
    signs = torch.tensor([1.0, -1.0] * 3)

    def total(kept: Tensor) -> float:
        return float(sum(part.sum() * own for part, own in zip(kept.split(2), signs, strict=False)))

    assert abs(total(records) - total(records[1:])) > 5
