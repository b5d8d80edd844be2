"""The loop that users write: what it does, what it refuses, and that nothing is released without a charge."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import loop
from discreet import Private, methods
from discreet.accounting.charges import Charge
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.engine import memory
from discreet.stages.aggregation import Aggregation
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Recipe
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, OwnLoader, Poisson, TruncatedPoisson

# The whole run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "relation", "batch"),
    [
        (Poisson(), Neighbouring.ADD_REMOVE, 12),
        (TruncatedPoisson(14), Neighbouring.ADD_REMOVE, 12),
        (FixedSize(), Neighbouring.REPLACE_ONE, 12),
        (BallsInBins(), Neighbouring.ADD_REMOVE, 12),
        (FullBatch(), Neighbouring.ADD_REMOVE, 60),
        (FullBatch(), Neighbouring.REPLACE_ONE, 60),
    ],
)
def test_the_ledger_holds_what_the_plan_said(sampling: Any, relation: Neighbouring, batch: int, tmp_path: Path) -> None:
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=sampling, relation=relation)
    run = loop.private(which=loop.plan(recipe, batch=batch), ledger=tmp_path / "ledger")
    before = loop.weights(run.model)
    loop.train(run)
    assert run.progress.step == run.updates == loop.STEPS
    assert run.ledger.charge() == read(tmp_path / "ledger").charge()
    assert run.ledger.charge().certified == run.plan.charge().certified
    assert run.spent().certified.epsilon == run.plan.certificate().epsilon
    assert not torch.equal(loop.weights(run.model), before)
    assert list(run) == []  # nothing is left
    run.close()


def test_epsilon_grows_as_steps_are_taken() -> None:
    run, seen = loop.private(), [0.0]
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            seen.append(run.spent().certified.epsilon)
    assert seen == sorted(set(seen))
    assert str(run.spent()).startswith("certified ")
    assert "seeded: not private" in str(run.spent())


def test_keyed_by_the_operating_system_no_two_runs_are_alike() -> None:
    found = []
    for _ in range(2):
        run = loop.private(streams=Streams.from_os())
        loop.train(run)
        found.append(loop.weights(run.model))
        assert "not private" not in str(run.spent())
    assert not torch.equal(*found)


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    found = []
    for seed in (1, 1, 2):
        run = loop.private(seed=seed)
        loop.train(run)
        found.append(loop.weights(run.model))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_without_noise_or_clip_it_is_plain_sgd() -> None:
    recipe = Recipe(method="x", bounder=FlatClip(1e9), sampling=FullBatch())
    run = loop.private(which=loop.plan(recipe, noise=0.0, batch=loop.RECORDS))
    plain = loop.model()
    optimizer = loop.sgd(plain.parameters())
    x, y = loop.data().tensors
    for _ in range(loop.STEPS):
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    loop.train(run)
    torch.testing.assert_close(loop.weights(run.model), loop.weights(plain), rtol=1e-4, atol=1e-6)
    assert run.spent().certified.epsilon == float("inf")
    assert "no proven guarantee" in str(run.spent())


@pytest.mark.parametrize("recipe", [methods.dp_sgd, methods.per_layer, methods.psac, methods.adaptive_quantile])
def test_the_micro_batch_does_not_change_the_result(recipe: Any) -> None:
    found = []
    for micro_batch in (1, 5, 512):
        run = loop.private(which=loop.plan(recipe()), micro_batch=micro_batch)
        assert loop.train(run) == loop.STEPS
        found.append(loop.weights(run.model))
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], found[2], rtol=1e-4, atol=1e-5)


def test_the_micro_batch_is_chosen_by_the_memory_that_a_record_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = math.ceil(loop.BATCH + 6 * math.sqrt(loop.BATCH))
    chosen = loop.private()
    assert chosen.micro_batch == largest  # all of it fits
    assert loop.private(views=2).micro_batch == largest
    monkeypatch.setattr(memory, "memory_of", lambda device: 8000)
    cut = loop.private()
    assert memory.LEAST <= cut.micro_batch < largest
    assert loop.private(micro_batch=512).micro_batch == 512  # the user's word counts
    assert loop.train(cut) == loop.train(chosen) == loop.STEPS
    torch.testing.assert_close(loop.weights(cut.model), loop.weights(chosen.model), rtol=1e-4, atol=1e-5)


def test_the_chosen_micro_batch_says_nothing_about_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda device: 8000)
    x, y = loop.data().tensors
    sets = (x, y), (x * 1e20, y), (torch.full_like(x, float("nan")), y), (x[:5], y[:5])
    sizes = {loop.private(dataset=TensorDataset(*tensors)).micro_batch for tensors in sets}
    assert len(sizes) == 1
    wide = nn.Sequential(nn.Linear(4, 600), nn.Tanh(), nn.Linear(600, 2))
    assert loop.private(wide).micro_batch not in sizes  # control: the public shapes do count


def test_behind_a_collate_fn_the_length_of_a_record_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the records are stays their own: it does not decide the size of micro-batches."""
    monkeypatch.setattr(memory, "memory_of", lambda device: 8000)

    class Lengths(Dataset[Any]):
        def __init__(self, length: int) -> None:
            self.length = length

        def __len__(self) -> int:
            return loop.RECORDS

        def __getitem__(self, index: int) -> Any:
            return torch.ones(self.length, 4), torch.tensor(0)

    def padded(items: list[Any]) -> Any:
        return nn.utils.rnn.pad_sequence([x for x, _ in items], True), torch.stack([y for _, y in items])

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = loop.model()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.net(x).mean(1)
            return out

    sizes = {loop.private(Mean(), dataset=Lengths(length), collate_fn=padded).micro_batch for length in (2, 90)}
    assert len(sizes) == 1


class Rows(Dataset[Any]):
    """The small task as rows, so that workers have something to collate."""

    def __len__(self) -> int:
        return loop.RECORDS

    def __getitem__(self, index: int) -> Any:
        x, y = loop.data().tensors
        return x[index], y[index]


def test_workers_do_not_change_the_result() -> None:
    found = []
    for dataset, workers in ((loop.data(), 0), (Rows(), 0), (Rows(), 2)):
        run = loop.private(dataset=dataset, num_workers=workers, micro_batch=5)
        loop.train(run)
        found.append(loop.weights(run.model))
    assert torch.equal(found[0], found[1])
    # Batches of workers are cut at other places, so sums of the same records are rounded otherwise.
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-6)


def test_step_says_when_the_parameters_moved() -> None:
    run, now = loop.private(micro_batch=4), None
    for x, y in run:
        now = loop.weights(run.model)
        moved = run.step(loop.losses(run.model, x, y))
        assert moved == (not torch.equal(now, loop.weights(run.model)))


def test_global_random_state_is_left_alone() -> None:
    net = loop.model()
    states = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())
    loop.train(loop.private(net, micro_batch=5))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


# Optimizers and schedulers --------------------------------------------------------------------------------


def test_any_optimizer_groups_decay_and_schedulers() -> None:
    net = loop.model()

    def adam(_: Any) -> torch.optim.Optimizer:
        groups = [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[2].parameters(), "lr": 0.0}]
        return torch.optim.AdamW(groups, weight_decay=0.0)

    run = loop.private(net, optimizer=adam)
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=2, gamma=0.5)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for x, y in run:
        if run.step(loop.losses(net, x, y)):
            scheduler.step()
    assert not torch.equal(net[0].weight, before["0.weight"])
    assert torch.equal(net[2].weight, before["2.weight"])  # learning rate 0
    assert run.optimizer.param_groups[0]["lr"] < 0.1


def test_frozen_parameters_stay() -> None:
    net = loop.model()
    net[0].requires_grad_(False)
    before = net[0].weight.detach().clone()
    loop.train(loop.private(net))
    assert torch.equal(net[0].weight, before)


def test_the_average_follows_the_iterates() -> None:
    run = loop.private(average=0.6)
    total, weight = torch.zeros_like(loop.weights(run.model)), 0.0
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            total, weight = 0.6 * total + 0.4 * loop.weights(run.model), 0.6 * weight + 0.4
    own = loop.weights(run.model)
    with run.averaged():
        torch.testing.assert_close(loop.weights(run.model), total / weight)
    assert torch.equal(loop.weights(run.model), own)
    with pytest.raises(Refused, match=r"average=0\.99"), loop.private().averaged():
        pass


# Views ----------------------------------------------------------------------------------------------------


def test_views_are_averaged_before_clipping() -> None:
    """One record, two views with gradients that cancel: clipped after averaging it moves nothing."""
    net = nn.Linear(1, 1, bias=False)
    recipe = Recipe(method="x", bounder=FlatClip(1.0), sampling=FullBatch())
    flip = torch.tensor([[1.0], [-1.0]])

    def opposite(batch: Any) -> Any:
        (x,) = batch
        return (x * flip.repeat(len(x) // 2, 1),)

    one = TensorDataset(torch.full((1, 1), 100.0))
    which = loop.plan(recipe, noise=0.0, records=1, batch=1, steps=1)
    run = loop.private(net, which, dataset=one, views=2, augment=opposite)
    before = net.weight.detach().clone()
    for (x,) in run:
        run.step(net(x)[:, 0])
        assert run.is_rehearsal or x.tolist() == [[100.0], [-100.0]]
    assert torch.equal(net.weight, before)


def test_views_do_not_count_twice() -> None:
    """Equal views change nothing, and a record stays within the clip whatever its views."""
    found = []
    for views in (1, 3):
        run = loop.private(which=loop.plan(noise=0.0), views=views)
        loop.train(run)
        found.append(loop.weights(run.model))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


# Hard data ------------------------------------------------------------------------------------------------


def test_an_empty_batch_is_a_charged_step_of_noise() -> None:
    which = loop.plan(records=10**6, batch=1, steps=5)  # rate 1e-6 on 60 records: all batches are empty
    run = loop.private(which=which)
    before, steps = loop.weights(run.model), []
    for x, y in run:
        steps.append((run.is_rehearsal, run.step(loop.losses(run.model, x, y))))
    assert steps == [(True, True)] * 5
    assert run.progress.step == run.updates == 5
    assert run.ledger.charge().certified == which.charge().certified
    assert not torch.equal(loop.weights(run.model), before)


@pytest.mark.parametrize("records", [1, 2, 60])
def test_what_a_loop_does_once_a_step_does_not_show_which_draws_were_empty(records: int) -> None:
    """A scheduler that the loop steps: with one record most draws are empty, with 60 none is."""
    run = loop.private(which=loop.plan(batch=12), dataset=loop.data(records))
    scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: 1 / (1 + step))
    moved = []
    for x, y in run:
        moved.append(run.step(loop.losses(run.model, x, y)))
        if moved[-1]:
            scheduler.step()
    assert sum(moved) == run.updates == loop.STEPS
    assert scheduler.get_last_lr() == [0.5 / (1 + loop.STEPS)]


def test_made_up_records_of_an_empty_draw_move_nothing() -> None:
    """The same noise without a record as with records that are never drawn, up to the sum, which is 0."""
    which = loop.plan(records=10**6, batch=1, steps=5)
    runs = [loop.private(which=which, dataset=loop.data(count)) for count in (1, 60)]
    sums = [torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()]) for run in runs]
    assert [loop.train(run) for run in runs] == [5, 5]
    ends = [loop.weights(run.model) for run in runs]
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], sums[0])


def test_what_a_loop_writes_to_made_up_records_does_not_come_back() -> None:
    which = loop.plan(records=10**6, batch=1, steps=5)
    run = loop.private(which=which, collate_fn=_in_a_dictionary, inputs=lambda batch: (batch["x"],))
    for batch in run:
        labels = batch.pop("labels")
        labels -= 1
        run.step(loop.losses(run.model, batch["x"], labels + 1))
    assert run.updates == 5


def _in_a_dictionary(records: Any) -> dict[str, Tensor]:
    return {"x": torch.stack([x for x, _ in records]), "labels": torch.stack([y for _, y in records])}


def test_public_records_stand_in_where_there_are_none() -> None:
    empty = TensorDataset(torch.zeros(0, 4), torch.zeros(0).long())
    run = loop.private(dataset=empty, rehearsal=(torch.rand(3, 4), torch.ones(3).long()))
    assert loop.train(run) == loop.STEPS


def test_no_records_at_all() -> None:
    empty = TensorDataset(torch.zeros(0, 4), torch.zeros(0).long())
    run = loop.private(dataset=empty)
    assert list(run) == []
    assert run.ledger.length == loop.STEPS


def test_one_record() -> None:
    run = loop.private(which=loop.plan(records=1, batch=1), dataset=loop.data(1))
    assert loop.train(run) == loop.STEPS
    assert loop.weights(run.model).isfinite().all()


def test_a_million_records() -> None:
    which = loop.plan(records=10**6, batch=1, steps=20)
    big = TensorDataset(torch.ones(10**6, 4), torch.zeros(10**6, dtype=torch.int64))
    run = loop.private(which=which, dataset=big)
    sizes = [len(x) for x, _ in _stepped(run) if not run.is_rehearsal]
    assert run.ledger.length == run.updates == 20
    assert 0 < len(sizes) < 20  # seeded: some batches of this run are empty, and some are not
    assert max(sizes) < 10


def _stepped(run: Any) -> Iterator[Any]:
    for x, y in run:
        run.step(loop.losses(run.model, x, y))
        yield x, y


def test_a_record_that_is_not_a_number_changes_nothing_but_its_own_absence() -> None:
    x, y = (tensor.clone() for tensor in loop.data().tensors)
    with_nan = x.clone()
    with_nan[17] = float("nan")
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=FullBatch())
    found = []
    for values, kept in ((with_nan, torch.arange(60)), (x, torch.arange(60) != 17)):
        run = loop.private(which=loop.plan(recipe, batch=60), dataset=TensorDataset(values[kept], y[kept]))
        loop.train(run)
        found.append(loop.weights(run.model))
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_a_thousand_copies_of_a_record_stay_within_a_thousand_clips() -> None:
    x, y = loop.data(1).tensors
    copies = TensorDataset(x.repeat(1000, 1) * 1e4, y.repeat(1000))
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=FullBatch())
    which = loop.plan(recipe, noise=0.0, records=1000, batch=1000, steps=1)
    net = loop.model()
    before = loop.weights(net)
    run = loop.private(net, which, dataset=copies, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    loop.train(run)
    assert float((loop.weights(net) - before).norm()) <= 0.5 * (1 + 1e-4)


@pytest.mark.parametrize("size", [59, 61])
def test_replace_one_needs_the_size_that_was_planned(size: int) -> None:
    for sampling, batch in ((FixedSize(), 12), (FullBatch(), 60)):
        recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=sampling, relation=Neighbouring.REPLACE_ONE)
        run = loop.private(which=loop.plan(recipe, batch=batch), dataset=loop.data(size))
        with pytest.raises(Refused, match="exactly records=60"):
            list(run)


# Refusals -------------------------------------------------------------------------------------------------


def test_a_scalar_loss_is_refused_and_nothing_is_spent() -> None:
    run = loop.private()
    batches = iter(run)
    x, y = loop.last_of_step(run, batches)
    with pytest.raises(Refused, match='reduction="none"'):
        run.step(F.cross_entropy(run.model(x), y))
    assert run.ledger.length == 0
    assert run.step(loop.losses(run.model, x, y))  # the batch is still there
    del batches


def test_a_batch_of_a_loop_that_has_ended_is_refused() -> None:
    """`next(iter(run))` drops the loop, and with it the watch over the batch."""
    run = loop.private()
    x, y = next(iter(run))
    with pytest.raises(Refused, match="whose loop has ended"):
        run.step(loop.losses(run.model, x, y))
    assert run.ledger.length == 0


def test_a_skipped_micro_batch_is_refused_before_anything_is_released() -> None:
    run = loop.private()
    before = loop.weights(run.model)
    batches = iter(run)
    next(batches)
    with pytest.raises(Refused, match="a batch without a call of step"):
        next(batches)
    assert run.ledger.length == 0
    assert torch.equal(loop.weights(run.model), before)


def test_a_sample_that_was_not_released_is_followed_by_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the last losses and the release, caught by the loop: two samples would share one charge."""
    run = loop.private()
    batches = iter(run)
    x, y = loop.last_of_step(run, batches)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Private, "_end_sample", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.step(loop.losses(run.model, x, y))
    with pytest.raises(Refused, match="an interrupted step"):
        next(batches)
    assert run.ledger.length == 0


def _interrupt(private: Private) -> bool:
    raise KeyboardInterrupt


def test_two_calls_of_step_are_refused() -> None:
    run = loop.private()
    batches = iter(run)
    x, y = loop.last_of_step(run, batches)
    run.step(loop.losses(run.model, x, y))
    with pytest.raises(Refused, match="a call without a new batch"):
        run.step(loop.losses(run.model, x, y))
    assert run.ledger.length == 1


def test_step_outside_of_the_loop_is_refused() -> None:
    run = loop.private()
    x, y = loop.data().tensors
    with pytest.raises(Refused, match="a call without a new batch"):
        run.step(loop.losses(run.model, x, y))


def test_a_loop_that_is_left_and_collected_late_does_not_disturb_another() -> None:
    """Python may close it in the middle of another's batch; both key torch's generators and watch torch's calls."""
    left = loop.private()
    batches = iter(left)
    next(batches)
    left._engine.watch.close()  # as after a backward pass that fails
    run = loop.private()
    for x, y in run:
        losses = loop.losses(run.model, x, y)
        if run.progress.step == 1:
            batches.close()
        run.step(losses + loop.losses(run.model, x, y))
    assert run.progress.step == loop.STEPS


def test_an_abandoned_logical_batch_is_refused() -> None:
    run = loop.private(micro_batch=2)
    for x, y in run:
        run.step(loop.losses(run.model, x, y))
        break
    with pytest.raises(Refused, match="in the middle of a logical batch"):
        next(iter(run))
    assert run.ledger.length == 0


def test_a_loop_may_end_between_steps_and_go_on() -> None:
    run = loop.private()
    assert loop.train(run, most=3) == 3
    loop.train(run)
    assert run.ledger.length == loop.STEPS


def test_runs_take_turns_between_steps_alone() -> None:
    runs = loop.private(), loop.private()
    first, second = map(iter, runs)
    for _ in range(4):
        for run, batches in zip(runs, (first, second), strict=True):
            run.step(loop.losses(run.model, *next(batches)))
    assert runs[0].progress.step == runs[1].progress.step > 0
    x, y = next(first)
    with pytest.raises(Refused, match="in the middle of a batch of another"):
        next(second)
    runs[0].step(loop.losses(runs[0].model, x, y))


def test_a_run_does_not_begin_in_the_middle_of_anothers_batch() -> None:
    runs = loop.private(), loop.private()
    with pytest.raises(Refused, match="in the middle of a batch of another"):
        next(zip(*runs, strict=True))


def test_two_loops_at_once_are_refused() -> None:
    run = loop.private()
    first, second = iter(run), iter(run)
    for batches in (first, second):
        x, y = loop.last_of_step(run, batches)
        run.step(loop.losses(run.model, x, y))
    with pytest.raises(Refused, match="one loop over the steps at a time"):
        next(first)


def test_balls_in_bins_does_not_go_on_inside_an_epoch() -> None:
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=BallsInBins())
    run = loop.private(which=loop.plan(recipe))
    loop.train(run, most=3)
    with pytest.raises(Refused, match="resume at the next epoch"):
        loop.train(run)


def test_the_optimizer_steps_through_private_only() -> None:
    run = loop.private()
    before = loop.weights(run.model)
    with pytest.raises(Refused, match=r"optimizer\.step"):
        run.optimizer.step()
    assert torch.equal(loop.weights(run.model), before)
    run.close()
    run.optimizer.step()  # a closed Private lets go of it


@pytest.mark.parametrize(
    ("choose", "match"),
    [
        (lambda net: list(net[0].parameters()), "every trainable parameter"),
        (lambda net: [*net.parameters(), nn.Parameter(torch.zeros(1))], "got other parameters"),
    ],
)
def test_another_set_of_parameters_is_refused(choose: Any, match: str) -> None:
    net = loop.model()
    with pytest.raises(Refused, match=match):
        loop.private(net, optimizer=lambda _: torch.optim.SGD(choose(net), lr=0.1))


def _rest(run: Any, batches: Iterator[Any]) -> None:
    for x, y in batches:
        run.step(loop.losses(run.model, x, y))


def test_half_a_step_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors inside of a step: going on would mix two samples in one sum, or charge a step twice."""

    def crash(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    for place in ("ledger", "optimizer", "sum"):
        run = loop.private(ledger=tmp_path / place)
        owner, name = {
            "ledger": (run.ledger, "append"),
            "optimizer": (torch.optim.SGD, "step"),
            "sum": (Aggregation, "add"),
        }[place]
        batches = iter(run)
        x, y = loop.last_of_step(run, batches)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, crash)
            with pytest.raises(OSError, match="no space"):
                run.step(loop.losses(run.model, x, y))
        charged = run.ledger.length
        assert charged == (place == "optimizer")  # the charge comes before the release
        with pytest.raises(Refused):
            run.step(loop.losses(run.model, x, y))
        with pytest.raises(Refused):
            _rest(run, batches)
        with pytest.raises(Refused):
            loop.train(run)
        assert run.ledger.length == charged


def test_lbfgs_is_refused() -> None:
    with pytest.raises(Refused, match="LBFGS"):
        loop.private(optimizer=torch.optim.LBFGS)


def test_a_gradient_of_ones_own_is_refused() -> None:
    run = loop.private(micro_batch=3)
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            break
    for parameter in run.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(Refused, match="no gradient left"):
        loop.train(run)


def test_a_recipe_without_a_budget_is_refused() -> None:
    with pytest.raises(Refused, match="for_budget"):
        loop.private(which=methods.dp_sgd())


@pytest.mark.parametrize("wrong", [{"micro_batch": 0}, {"views": 0}, {"average": 1.0}])
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        loop.private(**wrong)


class WithBatchNorm(nn.Module):
    """Mixes records."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(x))
        return out


def test_a_model_that_mixes_records_is_refused_at_construction_and_left_clean() -> None:
    net = WithBatchNorm()
    with pytest.raises(Refused):
        loop.private(net)
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


def test_the_dry_run_never_computes_on_private_values() -> None:
    """Its data changes every value and keeps the shapes: model calls must be the same."""
    seen: list[list[Tensor]] = []
    for fill in (0.0, 123.0):
        net, calls = loop.model(), []
        net.register_forward_pre_hook(lambda _, args, calls=calls: calls.append(args[0].detach().clone()))
        x, y = loop.data().tensors
        loop.private(net, dataset=TensorDataset(torch.full_like(x, fill), y))
        seen.append(calls)
    assert len(seen[0]) == len(seen[1]) > 0
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_a_model_with_other_arguments_says_how() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            out: Tensor = self.head(x) * scale[:, None]
            return out

    with pytest.raises(Refused, match="inputs=lambda batch"):
        loop.private(Two())
    run = loop.private(Two(), inputs=lambda batch: (batch[0], batch[1].float()))
    for x, y in run:
        run.step(F.cross_entropy(run.model(x, y.float()), y, reduction="none"))
    assert run.updates == loop.STEPS


@pytest.mark.parametrize("error", [ValueError("no end of the text."), KeyError("x"), AssertionError()], ids=repr)
def test_errors_of_a_model_on_random_inputs_are_told(error: Exception) -> None:
    def fails(_: Any, args: Any) -> None:
        raise error

    net = loop.model()
    net.register_forward_pre_hook(fails)
    name = type(error).__name__
    with pytest.raises(Refused, match=rf"model that runs on random inputs .* got {name}: [^.]*\. Remedy"):
        loop.private(net)


def test_inputs_may_be_a_single_tensor() -> None:
    run = loop.private(inputs=lambda batch: batch[0])
    loop.train(run)
    assert run.updates == loop.STEPS


# A loader of one's own ------------------------------------------------------------------------------------


def own(**horizon: Any) -> Any:
    recipe = Recipe(method="x", bounder=FlatClip(0.5), sampling=OwnLoader())
    return loop.private(which=loop.plan(recipe, **horizon), dataset=None)


def test_a_loader_of_ones_own_is_billed_without_amplification() -> None:
    run, loader = own(steps=7), DataLoader(loop.data(), batch_size=12)
    for x, y in itertools.chain(run.over(loader), run.over(loader)):
        run.step(loop.losses(run.model, x, y))
    assert run.updates == run.ledger.length == 7  # and no more than was planned
    assert run.ledger.charge().certified == run.plan.charge().certified
    amplified = dataclasses.replace(run.plan, sampling=Poisson())
    assert run.spent().certified.epsilon > amplified.certificate().epsilon
    assert run.ledger.charge().certified == (Charge.of(run.plan.event_at(0)) * 7).certified


def test_what_the_loop_writes_to_a_batch_of_ones_own_does_not_come_back() -> None:
    """The mean over a batch, written into a list of batches, moved the sum of the next epoch by 9 clips."""
    run, (x, y) = own(records=12, batch=6, steps=4), loop.data().tensors
    batches = [(x[:6].clone(), y[:6].numpy().copy()), (x[6:12].clone(), y[6:12].numpy().copy())]
    before = copy.deepcopy(batches)
    for inputs, labels in itertools.chain(run.over(batches), run.over(batches)):
        run.step(run.model(inputs).square().sum(1))
        inputs.sub_(inputs.mean(0))
        labels[:] = 0
    assert run.updates == 4
    for (inputs, labels), (as_given, labels_as_given) in zip(batches, before, strict=True):
        assert torch.equal(inputs, as_given)
        assert (labels == labels_as_given).all()


def test_an_empty_batch_of_ones_own_is_a_step_of_noise() -> None:
    run, (x, y) = own(steps=3), loop.data().tensors
    for batch in itertools.chain(run.over([(x[:12], y[:12]), (x[:0], y[:0])]), run.over([])):
        run.step(loop.losses(run.model, *batch))
    assert run.updates == run.ledger.length == 3
    with pytest.raises(Refused, match="a batch of tensors"):
        list(own().over([["no", "tensors"]]))


def test_loaders_and_samplers_are_not_mixed_up() -> None:
    with pytest.raises(Refused, match=r"private\.over"):
        list(own())
    with pytest.raises(Refused, match="OwnLoader"):
        list(loop.private().over([]))


def test_a_skipped_batch_of_ones_own_is_refused() -> None:
    run = own()
    with pytest.raises(Refused, match="without a call of step"):
        list(run.over(DataLoader(loop.data(), batch_size=12)))


# A word of the plan: certified, not seeded ----------------------------------------------------------------


def test_a_budget_is_kept() -> None:
    which = methods.dp_sgd().for_budget(epsilon=2.0, delta=1e-5, records=loop.RECORDS, batch=loop.BATCH, epochs=2)
    run = loop.private(which=which)
    loop.train(run)
    assert 1.98 < run.spent().certified.epsilon <= 2.0


@pytest.mark.parametrize("kind", ["loader", "iterable"])
def test_data_that_the_plan_cannot_draw_from_is_refused(kind: str) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from loop.data()

    data = DataLoader(loop.data(), batch_size=5) if kind == "loader" else Stream()
    model = loop.model()
    with pytest.raises(Refused, match=r"loader.dataset|__getitem__"):
        Private(model, torch.optim.SGD(model.parameters(), lr=0.1), loop.plan(), data)  # type: ignore[arg-type]
