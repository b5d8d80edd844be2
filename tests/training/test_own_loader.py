"""Passes over the user's own loader: one record less exchanges one record in each batch, and moves no batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import loop
from discreet import methods
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.stages.aggregation import Aggregation
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon, OwnLoader
from discreet.training.passes import aligned
from discreet.training.private import Private

BATCH, LENGTH = 4, 3
HORIZON = Horizon.of(records=BATCH * LENGTH, batch=BATCH, epochs=3)


def own(relation: Neighbouring = Neighbouring.ADD_REMOVE, **horizon: Any) -> Plan:
    recipe = methods.dp_sgd(clip=0.5).using(sampling=OwnLoader(), relation=relation)
    return loop.plan(recipe, **{"records": BATCH * LENGTH, "batch": BATCH, "epochs": 3, **horizon})


def begin(relation: Neighbouring = Neighbouring.ADD_REMOVE, **options: Any) -> Private:
    return loop.private(which=own(relation), dataset=None, **options)


def walk(run: Private, batches: Any, most: int = 1000) -> list[Tensor]:
    """One pass, for at most so many batches; returns the inputs that were used."""
    used: list[Tensor] = []
    for x, y in run.over(batches):
        if not run.is_rehearsal:
            used.append(x)
        run.step(loop.losses(run.model, x, y))
        if len(used) == most:
            break
    return used


def loader(records: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(loop.data(records), batch_size=BATCH, **options)


def batches_of(order: list[int]) -> list[Tensor]:
    return list(torch.tensor(order).split(BATCH)) if order else []


def steps(orders: list[list[int]], start: int = 0) -> list[set[int]]:
    """The records of all steps of some passes."""
    found: list[set[int]] = []
    for order in orders:
        given = aligned(batches_of(order), HORIZON, start + len(found))
        found += [set() if batch is None else set(batch.tolist()) for batch in given]
    return found


# -- the proof -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", range(1, BATCH * (LENGTH + 1) + 2))
def test_a_record_left_out_exchanges_one_record_in_each_step(records: int) -> None:
    """Every record, every number of records around the public one, orders that change from pass to pass."""
    generator = torch.Generator().manual_seed(records)
    orders = [torch.randperm(records, generator=generator).tolist() for _ in range(3)]
    whole = steps(orders)
    assert len(whole) == 3 * LENGTH
    for left_out in range(records):
        rest = steps([[one for one in order if one != left_out] for order in orders])
        assert len(rest) == len(whole)
        for one, other in zip(whole, rest, strict=True):
            assert len(one - other) <= 1
            assert len(other - one) <= 1


@pytest.mark.parametrize("start", range(LENGTH))
def test_a_pass_that_begins_inside_an_epoch_ends_with_it(start: int) -> None:
    order = list(range(BATCH * LENGTH))
    assert steps([order], start) == [set(batch.tolist()) for batch in batches_of(order)][start:]
    assert steps([order[:2]], start) == [set(order[:2]), set(), set()][start:]


@pytest.mark.parametrize("records", [BATCH * LENGTH + 1, BATCH * (LENGTH - 1) + 1, BATCH * LENGTH])
def test_sums_of_all_passes_move_by_two_clips_at_most(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are almost equal: before, a batch that moved to another step moved a sum by B - 1 clips."""
    sums: list[Tensor] = []
    original = Aggregation.sums

    def noted(self: Aggregation, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        sums.append(found.vectors[0].value.clone())
        return found

    monkeypatch.setattr(Aggregation, "sums", noted)

    def run_with(x: Tensor) -> Tensor:
        sums.clear()
        data = TensorDataset(x, torch.ones(len(x), dtype=torch.long))
        run = begin(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
        for _ in range(3):
            walk(run, DataLoader(data, batch_size=BATCH))
        run.close()
        assert run.ledger.length == 3 * LENGTH
        return torch.stack(sums)

    x = -10 - torch.rand(records, 4)
    whole, rest = run_with(x), run_with(x[1:])
    moved = (whole - rest).norm(dim=1) / 0.5
    assert len(moved) == 3 * LENGTH
    assert float(moved.max()) <= 2 + 1e-5
    assert float(whole.norm(dim=1).max()) / 0.5 > BATCH - 1  # negative control: a whole batch is far more


# -- passes --------------------------------------------------------------------------------------------------------


def test_missing_batches_are_steps_of_noise_which_are_charged(tmp_path: Path) -> None:
    run = begin(ledger=tmp_path / "ledger")
    assert len(walk(run, loader(BATCH + 1))) == 2
    assert run.progress.step == run.updates == run.ledger.length == LENGTH
    assert walk(run, []) == []
    assert run.progress.step == run.ledger.length == 2 * LENGTH
    assert run.ledger.entries[-1].event == run.plan.event_at(0)


def test_batches_beyond_an_epoch_are_left_out() -> None:
    run = begin()
    for epoch in range(1, 4):
        assert len(walk(run, loader(BATCH * LENGTH + 5))) == LENGTH
        assert run.progress.step == epoch * LENGTH
    assert walk(run, loader(BATCH)) == []  # the run is over


def test_a_pass_that_was_left_goes_on_at_its_place() -> None:
    run, (x, _) = begin(), loop.data(BATCH * LENGTH).tensors
    walk(run, loader(BATCH * LENGTH), most=1)
    used = walk(run, loader(BATCH * LENGTH))
    assert torch.equal(torch.cat(used), x[BATCH:])
    assert run.progress.step == LENGTH


def test_a_run_resumes_inside_a_pass(tmp_path: Path) -> None:
    places = {"ledger": tmp_path / "ledger"}
    run = begin(**places)
    walk(run, loader(BATCH * LENGTH), most=1)
    run.save(tmp_path / "saved")
    run.close()
    again = begin(resume=tmp_path / "saved", seed=8, **places)
    at = again.progress.step
    assert at % LENGTH
    used = walk(again, loader(BATCH * (LENGTH - 1)))
    assert len(used) == LENGTH - 1 - at
    assert again.progress.step == LENGTH  # the last step is noise alone
    again.close()


# -- what is refused -----------------------------------------------------------------------------------------------


def dropping(by_sampler: bool) -> DataLoader[Any]:
    if not by_sampler:
        return loader(9, drop_last=True)
    data = loop.data(9)
    return DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), BATCH, drop_last=True))


@pytest.mark.parametrize("by_sampler", [False, True])
def test_a_loader_that_drops_the_rest_is_refused(by_sampler: bool) -> None:
    run = begin()
    with pytest.raises(Refused, match=r"got drop_last=True. Remedy: use drop_last=False"):
        walk(run, dropping(by_sampler))
    assert run.progress.step == 0
    assert len(walk(begin(Neighbouring.REPLACE_ONE), dropping(by_sampler))) == 2  # their number is public


def test_larger_batches_are_refused() -> None:
    run = begin()
    with pytest.raises(Refused, match="batches of the plan's size, batch=4, got a larger one"):
        walk(run, DataLoader(loop.data(12), batch_size=BATCH + 1))
    assert run.progress.step == 0


def test_a_smaller_batch_before_the_last_is_refused() -> None:
    x, y = loop.data(12).tensors
    batches = [(x[:4], y[:4]), (x[4:7], y[4:7]), (x[7:], y[7:])]
    run = begin()
    with pytest.raises(Refused, match="up to the last batch of a pass, got a smaller one before the last"):
        walk(run, batches)
    assert run.progress.step == 1  # refused before it was used
    with pytest.raises(Refused, match="a smaller one before the last"):
        walk(begin(), itertools.chain(loader(6), loader(6)))


def endless(records: int) -> Iterator[Any]:
    """A walk over the records again and again, whose batches reach from one pass into the next."""
    data = loop.data(records)
    places = itertools.cycle(range(records))
    while True:
        yield data[list(itertools.islice(places, BATCH))]


def test_an_iterator_that_goes_on_is_refused() -> None:
    run = begin()
    with pytest.raises(Refused, match="ends after a pass, which is 3 batches of the plan, got one that goes on"):
        walk(run, endless(11))
    assert run.progress.step == LENGTH - 1
    replacing = begin(Neighbouring.REPLACE_ONE)
    assert len(walk(replacing, endless(11))) == 3 * LENGTH


def test_an_iterator_is_one_pass() -> None:
    run, ahead = begin(), iter(endless(11))
    walk(run, ahead, most=1)
    with pytest.raises(Refused, match="a pass from its beginning, got an iterator that the last call has read"):
        walk(run, ahead)
    given = loader(BATCH * LENGTH)
    walk(begin(), (batch for batch in given))
    run = begin()
    for _ in range(3):
        assert len(walk(run, (batch for batch in given))) == LENGTH


def test_the_certificate_says_what_a_pass_is() -> None:
    assert any("every pass begins anew" in word for word in own().certificate().assumptions)
