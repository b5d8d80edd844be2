"""Runs that protect users: what a step sums, who is drawn, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import discreet
from discreet import CappedRecords, FullBatch, Poisson, SampledUsers, methods
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from discreet.training.draws import CappedUsers, Draw, Users
from discreet.training.owners import Owners
from discreet.training.private import Private

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(3))
DATA = TensorDataset(X, (X.sum(1) > 0).long())
OWNERS = [0] * 12 + [1] * 1 + [2] * 7 + [3 + place // 2 for place in range(20)]  # 13 users
USERS = 13


def plan(unit: Any, *, noise: float = 1e-9, recipe: Any = None, **numbers: Any) -> Plan:
    full = {"records": USERS, "batch": USERS, "steps": 1} | numbers
    sampling = FullBatch() if full["records"] == full["batch"] and isinstance(unit, SampledUsers) else Poisson()
    stages = (recipe or methods.dp_sgd(clip=0.5)).using(unit=unit, sampling=sampling)
    return stages.bind(noise=noise, horizon=Horizon.of(**full), delta=1e-3)


def run(which: Plan, data: Any = DATA, owners: Any = OWNERS, net: nn.Module | None = None, **options: Any) -> nn.Module:
    net = net or linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    private = Private(net, optimizer, which, data, unit=owners, streams=Streams.seeded(5), **options)
    for x, y in private:
        private.step(F.cross_entropy(net(x), y, reduction="none"))
    private.close()
    return net


def linear() -> nn.Module:
    net = nn.Linear(4, 2)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


def moved(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def gradients(data: TensorDataset = DATA) -> Tensor:
    found = []
    for x, y in data:
        net = linear()
        F.cross_entropy(net(x), y).backward()
        found.append(torch.cat([p.grad.flatten() for p in net.parameters()]))  # type: ignore[union-attr]
    return torch.stack(found)


def expected(owners: list[int], clip: float = 0.5, batch: float = USERS) -> Tensor:
    """One step of the optimizer on the sum of the users' clipped mean gradients."""
    grads, total = gradients(), torch.zeros(10)
    for user in set(owners):
        mean = grads[[place for place, owner in enumerate(owners) if owner == user]].mean(0)
        total += mean * min(1.0, clip / float(mean.norm()))
    return -total / batch


# What a step sums ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [None, 12, 13, 40])
def test_a_step_sums_the_clipped_means_of_users(micro_batch: int | None) -> None:
    net = run(plan(SampledUsers(per_user=12)), micro_batch=micro_batch)
    torch.testing.assert_close(moved(net), expected(OWNERS), rtol=1e-4, atol=1e-6)


def test_views_are_averaged_too() -> None:
    net = run(plan(SampledUsers(per_user=12)), views=3)
    torch.testing.assert_close(moved(net), expected(OWNERS), rtol=1e-4, atol=1e-6)


def test_workers_load_the_same() -> None:
    net = run(plan(SampledUsers(per_user=12)), num_workers=1, micro_batch=12)
    torch.testing.assert_close(moved(net), expected(OWNERS), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "owners",
    [
        torch.tensor(OWNERS),
        np.array(OWNERS),
        np.array([str(owner) for owner in OWNERS]),
        [f"user {owner}" for owner in OWNERS],
        [b"%d" % owner for owner in OWNERS],
        tuple(OWNERS),
    ],
    ids=["tensor", "array", "array of strings", "strings", "bytes", "tuple"],
)
def test_owners_have_many_forms(owners: Any) -> None:
    torch.testing.assert_close(moved(run(plan(SampledUsers(per_user=12)), owners=owners)), expected(OWNERS))


def test_a_function_names_the_owner() -> None:
    place = torch.tensor(OWNERS)
    data = TensorDataset(X, (X.sum(1) > 0).long(), place)
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    which = plan(SampledUsers(per_user=12))
    private = Private(net, optimizer, which, data, unit=lambda record: record[2], streams=Streams.seeded(5))
    for x, y, _ in private:
        private.step(F.cross_entropy(net(x), y, reduction="none"))
    torch.testing.assert_close(moved(net), expected(OWNERS), rtol=1e-4, atol=1e-6)


def test_a_user_with_a_record_that_is_not_finite_contributes_nothing() -> None:
    bad = X.clone()
    bad[12] = math.nan  # the only record of user 1
    bad[0] = math.inf  # one of the records of user 0
    net = run(plan(SampledUsers(per_user=12)), TensorDataset(bad, (X.sum(1) > 0).long()))
    without = [place for place, owner in enumerate(OWNERS) if owner not in (0, 1)]
    rest = TensorDataset(X[without], (X.sum(1) > 0).long()[without])
    other = run(plan(SampledUsers(per_user=12)), rest, [OWNERS[place] for place in without])
    torch.testing.assert_close(moved(net), moved(other))


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x.new_full((30, 4), 1e30), y.new_zeros(30)),  # many huge records
        lambda x, y: (x.new_full((1, 4), math.nan), y.new_zeros(1)),
        lambda x, y: (x[:1].repeat(200, 1), 1 - y[:1].repeat(200)),  # one record 200 times
        lambda x, y: (x, 1 - y),
    ],
    ids=["many huge records", "not a number", "copies", "as many as all others"],
)
def test_one_user_more_moves_the_sum_by_one_clip(change: Any) -> None:
    x, y = DATA.tensors
    more_x, more_y = change(x, y)
    whole = TensorDataset(torch.cat([x, more_x]), torch.cat([y, more_y]))
    for size in (1, 12, 300):
        which = plan(SampledUsers(per_user=size), records=20, batch=20)
        one = moved(run(which, DATA, OWNERS, micro_batch=300))
        many = moved(run(which, whole, OWNERS + [99] * len(more_x), micro_batch=300))
        if size >= 12:  # with fewer, the records of other users are drawn again
            assert float((one - many).norm()) * 20 <= 0.5 * (1 + 1e-4)
        assert bool(many.isfinite().all())


def test_the_update_test_averages_over_a_user() -> None:
    which = plan(SampledUsers(per_user=3), recipe=methods.sur(clip=0.5), records=USERS, batch=USERS, steps=3)
    run(which)


@pytest.mark.parametrize("name", ["polar", "gep", "adaptive-quantile", "random-freeze", "per-layer", "dicesgd"])
def test_methods_run_on_users(name: str) -> None:
    recipe = methods.METHODS[name].recipe()
    which = recipe.using(unit=SampledUsers(per_user=3)).bind(
        noise=1.0, horizon=Horizon.of(records=USERS, batch=6, steps=4), delta=1e-3
    )
    options = {"public": DATA} if which.bounder.public_records else {}
    x, y = DATA.tensors
    assert bool(moved(run(which, TensorDataset(x.clone(), y.clone()), **options)).isfinite().all())


# Who is drawn -----------------------------------------------------------------------------------------------


class Counting(Dataset[Any]):
    """Counts how often each record is read after `begin`."""

    def __init__(self) -> None:
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, place: int) -> Any:
        self.read[place] += 1
        return DATA[place]


def test_capped_records_are_the_same_in_all_steps() -> None:
    data, net = Counting(), linear()
    which = plan(CappedRecords(per_user=2), records=40, batch=30, steps=30)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    private = Private(net, optimizer, which, data, unit=OWNERS)
    data.read.clear()
    for x, y in private:
        private.step(F.cross_entropy(net(x), y, reduction="none"))
    by_user = Counter(OWNERS[place] for place in data.read)
    assert max(by_user.values()) == 2
    assert set(by_user) == set(OWNERS)


def test_a_user_s_records_are_drawn_uniformly_and_again() -> None:
    """12 records, 3 in each of 4000 draws: each about 1000 times. Chi-square, false alarms below 1e-6."""
    population = Users(Owners(OWNERS), 3, Streams.seeded(1).sampling)
    seen: Counter[int] = Counter()
    for _ in range(4000):
        draw = population.draw(np.array([0, 1, 2]))
        assert draw.sizes == (1, 3, 3)
        mine = [place for place in draw.records.tolist() if OWNERS[place] == 0]
        assert len(set(mine)) == 3
        seen.update(mine)
    statistic = sum((seen[place] - 1000) ** 2 / 750 for place in range(12))  # variance n p (1-p), correlated a little
    assert statistic < 60
    assert len(seen) == 12


def test_choices_differ_between_runs_and_are_secret() -> None:
    def kept() -> list[int]:
        return CappedUsers(Owners([0] * 500), 10, Streams.from_os().sampling).draw(np.arange(10)).records.tolist()

    assert kept() != kept()


def test_micro_batches_keep_a_user_together() -> None:
    sizes = (1, 1, 1, 2, 3, 3, 5)
    draw = Draw(np.arange(16), sizes)
    for most in (5, 6, 7, 16, 100):
        parts = list(draw.cut(most))
        assert [size for part in parts for size in part.sizes or ()] == list(sizes)
        assert all(len(part.records) == sum(part.sizes or ()) <= most for part in parts)
        assert np.concatenate([part.records for part in parts]).tolist() == list(range(16))
    assert [len(part.records) for part in Draw(np.empty(0, dtype=np.int64), ()).cut(4)] == [0]


def test_users_join_at_the_rate_of_the_plan() -> None:
    """Expected 4000 of 13000 chances at 4/13; five standard deviations, false alarms below 1e-6."""
    net, seen, steps = linear(), 0, 1000
    which = plan(SampledUsers(per_user=1), records=USERS, batch=4, steps=steps, noise=1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    private = Private(net, optimizer, which, DATA, unit=OWNERS)
    for x, y in private:
        seen += 0 if private.is_rehearsal else len(x)
        private.step(F.cross_entropy(net(x), y, reduction="none"))
    rate = 4 / 13
    assert abs(seen - 4 * steps) < 5 * math.sqrt(USERS * steps * rate * (1 - rate))


# What is refused ---------------------------------------------------------------------------------------------


class Odd(int):
    """A number that equals nothing."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return False


class OddName(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


class Changing:
    """An owner that changes from call to call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, record: Any) -> int:
        self.calls += 1
        return self.calls % 7


BAD = {
    "not a number": ([math.nan] * 40, "a str, an int or bytes"),
    "fractions": ([1.0] * 40, "a str, an int or bytes"),
    "bools": ([True] * 40, "a str, an int or bytes"),
    "1 and '1'": ([1, "1"] * 20, "of one type"),
    "1 and True": ([1] * 39 + [True], "a str, an int or bytes"),
    "missing": ([*["a"] * 39, None], "an owner for each record"),
    "empty": ([*["a"] * 39, ""], "an owner for each record"),
    "several": ([[1, 2]] * 40, "one owner for each record"),
    "sets": ([frozenset({1})] * 40, "one owner for each record"),
    "a subclass of int": ([Odd(1)] * 40, "a str, an int or bytes"),
    "a subclass of str": ([OddName("a")] * 40, "a str, an int or bytes"),
    "a function that changes": (Changing(), "names the same owner whenever it is asked"),
    "objects": ([object()] * 40, "a str, an int or bytes"),
    "too few": ([1] * 39, "as many owners as records"),
    "too many": ([1] * 41, "as many owners as records"),
    "one string": ("a" * 40, "a function or a sequence"),
    "an iterator": (iter([1] * 40), "a function or a sequence"),
    "a table": (torch.ones(40, 2), "a row of owners"),
    "a tensor of fractions": (torch.ones(40), "a str, an int or bytes"),
    "a function of several": (lambda record: record[0], "one owner for each record"),
}


@pytest.mark.parametrize("name", BAD)
def test_owners_that_are_no_names_are_refused(name: str) -> None:
    owners, match = BAD[name]
    with pytest.raises(Refused, match=match) as refused:
        run(plan(SampledUsers(per_user=2)), owners=owners)
    assert "nan" not in str(refused.value)


def test_a_plan_for_users_needs_owners_and_another_none() -> None:
    with pytest.raises(Refused, match="owners of the records, because the plan protects every user"):
        run(plan(SampledUsers(per_user=2)), owners=None)
    records = methods.dp_sgd(clip=1.0).bind(noise=1.0, horizon=Horizon.of(records=40, batch=4, steps=1), delta=1e-3)
    with pytest.raises(Refused, match="no owners, because the plan protects records"):
        run(records)


def test_a_micro_batch_holds_one_user() -> None:
    with pytest.raises(Refused, match="micro_batch >= per_user=12"):
        run(plan(SampledUsers(per_user=12)), micro_batch=11)


class TwoProcesses:
    """A world in which the other process holds the records of `others`."""

    size, rank, is_first = 2, 0, True

    def __init__(self, others: list[int]) -> None:
        self.others = others

    def broadcast_(self, value: Tensor) -> Tensor:
        self.salt = bytes(value.tolist())
        return value

    def gather(self, mine: list[str]) -> list[list[str]]:
        import hashlib

        digests = [hashlib.blake2b(str(o).encode(), key=self.salt, digest_size=16).hexdigest() for o in self.others]
        return [mine, digests]


def test_processes_that_share_a_user_are_refused() -> None:
    Owners([1, 2]).check_apart(TwoProcesses([3, 4]), "patient")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="all records of a patient in one process") as refused:
        Owners([1, 2]).check_apart(TwoProcesses([2, 4]), "patient")  # type: ignore[arg-type]
    assert "2, 4" not in str(refused.value)
    Owners([1, 1]).check_apart(World(), "patient")


def test_owner_names_are_never_shown() -> None:
    assert "secret" not in repr(Owners(["secret"]))


# What is said -------------------------------------------------------------------------------------------------


def test_statement_ledger_and_spending_name_the_unit(tmp_path: Path) -> None:
    net, path = linear(), tmp_path / "ledger.jsonl"
    which = plan(SampledUsers(per_user=2, name="patient"), noise=1.0, batch=4, steps=3)
    private = Private(net, torch.optim.SGD(net.parameters(), lr=0.1), which, DATA, unit=OWNERS, ledger=path)
    for x, y in private:
        private.step(F.cross_entropy(net(x), y, reduction="none"))
    text = discreet.statement(private, data="the visits of 2024")
    assert "for every patient, with all records" in text
    assert "a person with several records is protected less" not in text
    assert "each patient joins each step independently" in text
    assert "of one patient" in str(private.spent())
    assert private.spent().to_json()["unit"] == "patient"
    private.close()
    assert read(path).header["unit"] == "patient"


def test_a_run_resumes(tmp_path: Path) -> None:
    which = plan(SampledUsers(per_user=2), noise=1.0, batch=4, steps=6)

    def made(**options: Any) -> Private:
        net = linear()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return Private(net, optimizer, which, DATA, unit=OWNERS, ledger=tmp_path / "ledger.jsonl", **options)

    first = made()
    for x, y in first:
        if first.step(F.cross_entropy(first.model(x), y, reduction="none")) and first.progress.step == 3:
            break
    first.save(tmp_path / "checkpoint.pt")
    first.close()
    second = made(resume=tmp_path / "checkpoint.pt")
    for x, y in second:
        second.step(F.cross_entropy(second.model(x), y, reduction="none"))
    assert second.progress.step == 6
    assert second.spent().certified.epsilon == pytest.approx(which.certificate().epsilon)
    second.close()
