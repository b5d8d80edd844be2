"""Passes over the user's own loader: one record less exchanges one record in each batch, and moves no batch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tqdm
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import loop
from discreet import methods
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.stages.aggregation import Aggregation
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon, OwnLoader
from discreet.training.passes import aligned, check_order
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


def test_batches_need_no_gradient_and_lie_in_memory_in_the_order_of_their_axes() -> None:
    """Kernels go by both, so that one record that differs would decide for its batch: 33 and 36 clips."""
    plain = list(loader(BATCH * LENGTH))
    used = walk(begin(), [(x.t().contiguous().t().requires_grad_(), y) for x, y in plain])
    assert torch.equal(torch.cat(used), torch.cat([x for x, _ in plain]))
    assert {(x.stride(), x.requires_grad) for x in used} == {(plain[0][0].stride(), False)}


def batches_of(order: list[int]) -> list[Tensor]:
    return list(torch.tensor(order).split(BATCH)) if order else []


def steps(orders: list[list[int]], start: int = 0) -> list[set[int]]:
    """The records of all steps of some passes."""
    found: list[set[int]] = []
    for order in orders:
        given = aligned(iter(batches_of(order)), HORIZON, start + len(found), has_end=True)
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


@pytest.mark.parametrize("records", [BATCH, BATCH + 1])
def test_the_loop_runs_in_every_step_after_a_resume(records: int, tmp_path: Path) -> None:
    """One record more is a batch more: what the loop does once a step must not show it."""
    run = begin(ledger=tmp_path / "ledger")
    walk(run, loader(records), most=1)
    run.save(tmp_path / "saved")
    run.close()
    again = begin(resume=tmp_path / "saved", seed=8, ledger=tmp_path / "ledger")
    left, moved = LENGTH - again.progress.step, 0
    for x, y in again.over(loader(records)):
        moved += again.step(loop.losses(again.model, x, y))
    assert moved == left > 0
    again.close()


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


# -- the order -----------------------------------------------------------------------------------------------------


def orders(seed: int | None = 7, passes: int = 2, **options: Any) -> list[list[int]]:
    """The orders of some passes of one run, after the user has set every seed."""
    records = BATCH * LENGTH
    x = torch.arange(records, dtype=torch.float).unsqueeze(1).expand(-1, 4)
    given = DataLoader(TensorDataset(x, torch.zeros(records, dtype=torch.long)), batch_size=BATCH, **options)
    run = begin() if seed is None else begin(seed=seed)
    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    found = [torch.cat(walk(run, given))[:, 0].int().tolist() for _ in range(passes)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])
    run.close()
    assert all(sorted(order) == list(range(records)) for order in found)
    return found


def plainly_shuffled() -> list[int]:
    """The order that a known seed gives."""
    torch.manual_seed(0)
    return list(RandomSampler(range(BATCH * LENGTH)))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_a_seed_of_the_user_does_not_say_the_order(options: dict[str, Any]) -> None:
    first, second = orders(shuffle=True, **options)
    other, _ = orders(seed=8, shuffle=True, **options)
    assert first != second
    assert other not in (first, second)  # it follows the key of the run, not the seed of the user
    assert plainly_shuffled() not in (first, second, other)


def test_a_seeded_run_has_the_same_orders_again() -> None:
    assert orders(shuffle=True) == orders(shuffle=True)


def test_a_shuffle_has_all_bits_of_the_key() -> None:
    """RandomSampler draws a seed for a generator of its own, which takes 32 bits of it."""
    seen: list[Any] = []

    class Noted(RandomSampler):
        def __iter__(self) -> Iterator[int]:
            seen.append(self.generator)
            return super().__iter__()

    sampler = Noted(range(BATCH * LENGTH))
    orders(sampler=sampler)
    assert seen == [torch.default_generator] * 2
    assert sampler.generator is None


def test_a_generator_of_the_loader_is_the_word_of_the_user() -> None:
    again = [orders(seed=seed, shuffle=True, generator=torch.Generator().manual_seed(5)) for seed in (7, 8)]
    assert again[0] == again[1]


def test_distributed_sampler_is_refused_under_add_remove() -> None:
    data = loop.data(11)
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    for given in (
        DataLoader(data, batch_size=BATCH, sampler=sampler),
        DataLoader(data, batch_sampler=BatchSampler(sampler, BATCH, drop_last=False)),
    ):
        run = begin()
        with pytest.raises(Refused, match=r"got DistributedSampler. Remedy: draw from the dataset.*REPLACE_ONE"):
            walk(run, given)
        assert run.progress.step == 0
    assert len(walk(begin(Neighbouring.REPLACE_ONE), given)) == LENGTH


class Divided(IterableDataset[Any]):
    """Its records in order, divided among the workers."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter([self.data[place] for place in range(start, len(self.data), step)])


def test_a_stream_that_workers_divide_is_refused_under_add_remove() -> None:
    """One record less moved those behind it to other workers' batches: 3.8 clips where two are charged."""
    data = Divided(loop.data(11))
    for workers in (0, 1):
        assert len(walk(begin(), DataLoader(data, BATCH, num_workers=workers))) == LENGTH
    run, given = begin(), DataLoader(data, BATCH, num_workers=2)
    with pytest.raises(Refused, match=r"an IterableDataset that several workers divide.*num_workers=1.*REPLACE_ONE"):
        walk(run, given)
    assert run.progress.step == 0
    check_order(DataLoader(data.data, BATCH, num_workers=2))  # the sampler fixes the batches


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


def again_and_again(how: str) -> DataLoader[Any]:
    """Loaders that give a record more than once a pass."""
    data, twice = loop.data(12), [0, 1, 2, 3, 4, 5, 6, 0]
    drawn = {
        "random": RandomSampler(data, replacement=True),
        "more": RandomSampler(data, num_samples=13),
        "weighted": WeightedRandomSampler([1.0] * 12, 12, replacement=True),
        "list": twice,
        "tensor": torch.tensor(twice),
        "end": [*range(12), -1],
    }
    kind, _, place = how.partition(" in ")
    sampler: Any = drawn[kind]
    if place == "batches":
        batches = BatchSampler(sampler, BATCH, drop_last=False)
        return DataLoader(data, batch_sampler=list(batches) if kind in ("list", "tensor", "end") else batches)
    if place == "sampler":  # batches that the dataset itself puts together
        return DataLoader(data, batch_size=None, sampler=BatchSampler(sampler, BATCH, drop_last=False))
    return DataLoader(data, batch_size=BATCH, sampler=sampler)


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize("place", ["", " in batches", " in sampler"])
@pytest.mark.parametrize("kind", ["random", "more", "weighted", "list", "tensor", "end"])
def test_a_loader_that_gives_a_record_again_is_refused(kind: str, place: str, relation: Neighbouring) -> None:
    run = begin(relation)
    with pytest.raises(Refused, match="gives each record at most once a pass"):
        walk(run, again_and_again(kind + place))
    with pytest.raises(Refused, match="gives each record at most once a pass"):
        walk(run, bar(again_and_again(kind + place)))
    assert run.progress.step == 0


def test_plain_sequences_of_indices_are_samplers() -> None:
    data, order = loop.data(12), [5, 4, 3, 2, 1, 0]
    for given in (
        DataLoader(data, batch_size=BATCH, sampler=order),
        DataLoader(data, batch_sampler=[order[:4], order[4:]]),
        DataLoader(data, batch_sampler=[tuple(order[:4]), torch.tensor(order[4:])]),  # type: ignore[list-item]
        DataLoader(data, batch_size=None, sampler=[order[:4], order[4:]]),
    ):
        assert torch.equal(torch.cat(walk(begin(), given)), data.tensors[0][order])


def bar(batches: Any, **options: Any) -> Any:
    return tqdm.tqdm(batches, disable=True, **options)


class Stream:
    """An iterator with a length, which is a part of what it gives."""

    def __init__(self, ahead: Iterator[Any]) -> None:
        self._ahead = ahead

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._ahead)


class Same:
    """Gives the same iterator again and again."""

    def __init__(self, ahead: Iterator[Any]) -> None:
        self._ahead = ahead

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[Any]:
        return self._ahead


def test_a_length_is_no_end_of_an_iterator() -> None:
    goes_on = "got one that goes on"
    for given in (bar(endless(11), total=LENGTH), bar(bar(endless(11)), total=LENGTH), Stream(endless(11))):
        run = begin()
        with pytest.raises(Refused, match=goes_on):
            walk(run, given)
        assert run.progress.step == LENGTH - 1
    with pytest.raises(Refused, match=goes_on):
        walk(begin(), iter(loader(BATCH * (LENGTH + 1))))


def test_an_iterator_behind_a_bar_or_a_length_is_one_pass() -> None:
    ahead = endless(11)
    for again in (lambda: bar(ahead, total=LENGTH), lambda: Same(ahead), lambda: Stream(ahead)):
        run, given = begin(), again()
        walk(run, given, most=1)
        with pytest.raises(Refused, match="got an iterator that the last call has read"):
            walk(run, given if isinstance(given, Stream) else again())


def test_a_bar_around_a_loader_is_accepted() -> None:
    run, given = begin(), loader(BATCH * LENGTH + 5)
    for _ in range(3):
        assert len(walk(run, bar(given))) == LENGTH
    with pytest.raises(Refused, match="drop_last=True"):
        walk(begin(), bar(dropping(by_sampler=True)))


def test_a_loader_that_keeps_its_workers_begins_anew() -> None:
    run, given = begin(), loader(BATCH * LENGTH, num_workers=1, persistent_workers=True)
    for _ in range(2):
        assert len(walk(run, given)) == LENGTH


def test_none_is_not_the_end_of_a_pass() -> None:
    x, y = loop.data(12).tensors
    run = begin()
    with pytest.raises(Refused, match="got a smaller one before the last"):
        walk(run, iter([(x[:3], y[:3]), None, (x[3:7], y[3:7])]))
    assert run.progress.step == 0


def test_the_certificate_says_what_a_pass_is() -> None:
    assert any("every pass begins anew" in word for word in own().certificate().assumptions)
