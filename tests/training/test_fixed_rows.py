"""Fixed rows: how a record's gradient is rounded depends on no other record (docs/proofs/FixedRows.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import discreet
import loop
from discreet import FixedSize, FullBatch, OwnLoader, Poisson, Private, Streams, TruncatedPoisson, methods
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.engine.factors.linear import Outer, merge
from discreet.stages.grid_noise import GridNoise
from discreet.stages.plan import Plan
from discreet.stages.sampling import Horizon
from discreet.stages.unit import SampledUsers
from discreet.training.draws import Draw, Slots

ROWS, CAP = 16, 40
CAPPED = TruncatedPoisson(CAP)


# -- attacks: records that lie exactly on a threshold in one order of summation ------------------------------------


class OnThreshold(nn.Module):
    """A record passes its gradient if a rounded value exceeds the threshold that the record brings along."""

    def __init__(self, rounded: Callable[[nn.Module, Tensor], Tensor], size: int) -> None:
        super().__init__()
        self.weight, self.linear, self.rounded = nn.Linear(size, 1, bias=False), nn.Linear(size, 1, bias=False), rounded
        self.linear.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        over = F.relu(self.rounded(self, x[:, :-1]) - x[:, -1:])
        return (over * 1e12) * self.weight(x[:, :-1])


def by_linear(net: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = net.linear(x)  # type: ignore[operator]
    return out


def by_time_first_sum(net: nn.Module, x: Tensor) -> Tensor:
    return x.t().contiguous().sum(0).unsqueeze(1)


ATTACKS = {"linear": (by_linear, 64, 4), "time first": (by_time_first_sum, 7, 64)}


def attack(name: str) -> tuple[OnThreshold, Tensor]:
    """A model, and records whose gradients are there in a batch of all of them, and gone without the last (or back)."""
    rounded, size, count = ATTACKS[name]
    net = OnThreshold(rounded, size)
    x = 3 + torch.randn(400, size) / 10
    with torch.no_grad():
        crafted = []
        for one in x:
            rows = torch.cat([one, torch.zeros(1)]).repeat(count, 1)  # with strides as in the forward pass
            many, fewer = rounded(net, rows[:, :-1])[-2], rounded(net, rows[:-1, :-1])[-1]
            if many > fewer:
                crafted.append(torch.cat([one, fewer]))
    if len(crafted) < count:
        pytest.skip("the kernels of this machine round both numbers of rows alike")
    return net, torch.stack(crafted[:count])


def clips_moved(net: nn.Module, x: Tensor, fixed_rows: int | None, left_out: int = -1) -> float:
    """By how many clips the sum moves if one record is left out; the others keep their rows (and noise)."""
    order = [*(i for i in range(len(x)) if i != left_out % len(x)), left_out % len(x)]
    sums = []
    for records in (order, order[:-1]):  # the streams are seeded: the first records get the same rows again
        sums.append(released_sum(net, x[records], len(x), fixed_rows))
    return float((sums[0] - sums[1]).norm())


def released_sum(net: nn.Module, x: Tensor, public_records: int, fixed_rows: int | None) -> Tensor:
    horizon = Horizon.of(records=public_records, batch=public_records, steps=1)
    recipe = methods.dp_sgd(clip=1.0).using(sampling=FullBatch())
    plan = recipe.bind(noise=1e-7, horizon=horizon, delta=1e-5)
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    data = TensorDataset(x, torch.zeros(len(x)))
    optimizer = torch.optim.SGD(trained, lr=1.0)
    run = Private(net, optimizer, plan, data, streams=Streams.seeded(3), fixed_rows=fixed_rows)
    for inputs, _ in run:
        run.step(net(inputs).squeeze(1))
    run.close()
    moved = torch.cat([(old - new.detach()).flatten() for old, new in zip(before, trained, strict=True)])
    with torch.no_grad():
        for old, parameter in zip(before, trained, strict=True):
            parameter.copy_(old)
    return moved.double() * public_records


@pytest.mark.parametrize("name", ATTACKS)
def test_rounding_by_the_batch_moves_a_sum_by_many_clips_without_fixed_rows(name: str) -> None:
    net, x = attack(name)
    assert clips_moved(net, x, None) > 1.5


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("rows", [4, 64])
def test_a_record_moves_a_sum_by_one_clip_with_fixed_rows(name: str, rows: int) -> None:
    net, x = attack(name)
    worst = max(clips_moved(net, x, rows, left_out) for left_out in (0, -1))
    assert worst <= 1.001


def test_fixed_rows_keep_the_gradients_that_all_rows_round_alike() -> None:
    """The bound is not met by losing every gradient: crafted for four rows, they are there in every pass of four."""
    net, x = attack("linear")
    assert released_sum(net, x, 4, 4).norm() > 3


# -- the places of records -------------------------------------------------------------------------------------------


def test_places_are_a_uniform_injection() -> None:
    """Two records in four places: 12 outcomes. False alarms: 1e-6 (chi-square of 11 degrees above 48)."""
    slots, seen, draws = Slots(2, 4, Streams.seeded(1).sampling), Counter[tuple[int, int]](), 6000
    for _ in range(draws):
        laid = slots.lay(Draw(np.array([5, 9])))
        assert laid.vacant is not None
        assert laid.vacant.sum() == 2
        at = np.flatnonzero(~laid.vacant)
        where = {int(laid.records[place]): int(place) for place in at}
        seen[where[5], where[9]] += 1
    assert len(seen) == 12
    assert sum((count - draws / 12) ** 2 / (draws / 12) for count in seen.values()) < 48


def test_without_one_record_the_others_keep_their_places() -> None:
    """The coupling of the proof: the same words give the common records the same places."""
    records = np.arange(10, 17)
    whole, fewer = (Slots(4, 9, Streams.seeded(2).sampling).lay(Draw(some)) for some in (records, records[:-1]))
    assert whole.vacant is not None
    assert fewer.vacant is not None
    common = ~fewer.vacant
    assert not whole.vacant[common].any()
    assert (whole.records[common] == fewer.records[common]).all()
    assert len(whole.records) == len(fewer.records) == 12


def test_more_records_than_places_are_refused() -> None:
    with pytest.raises(Refused, match="no more records than the plan's largest batch"):
        Slots(2, 4, Streams.seeded(1).sampling).lay(Draw(np.arange(5)))


@pytest.mark.parametrize("batch", [12, 0.01])
def test_number_and_sizes_of_passes_do_not_depend_on_the_sample(batch: float) -> None:
    """Also in steps whose sample is empty, as nearly all are at a batch of 0.01."""
    sizes: list[int] = []
    run = loop.private(which=plan(batch=batch), fixed_rows=ROWS)
    for x, y in run:
        if not run.is_rehearsal:
            sizes.append(len(x))
        run.step(loop.losses(run.model, x, y))
    assert run.micro_batch == ROWS
    assert sizes == [ROWS] * 3 * loop.STEPS


# -- the same sums as without ----------------------------------------------------------------------------------------


def plan(recipe: Any = None, sampling: Any = CAPPED, **horizon: Any) -> Plan:
    return loop.plan((recipe or methods.dp_sgd(clip=0.5)).using(sampling=sampling), **horizon)


def trained(which: Plan, **options: Any) -> Tensor:
    net = loop.model()
    run = loop.private(net, which, **options)
    loop.train(run)
    run.close()
    return loop.weights(net)


RECIPES = {
    "dp-sgd": methods.dp_sgd(clip=0.5),
    "auto-s": methods.automatic(),
    "per-layer": methods.per_layer(clip=0.5),
    "adaptive": methods.adaptive_quantile(clip=0.5),
    "two-level": methods.two_level(),
    "polar": methods.polar(),
    "geodp-sound": methods.geodp_sound(),
    "random-freeze": methods.random_freeze(),
    "b-gep": methods.b_gep(),
}


@pytest.mark.parametrize("name", RECIPES)
def test_methods_train_as_without_fixed_rows(name: str) -> None:
    which = plan(RECIPES[name])
    torch.testing.assert_close(trained(which, fixed_rows=ROWS), trained(which), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [3, CAP, 100])
def test_any_number_of_rows_gives_the_same_sums(rows: int) -> None:
    torch.testing.assert_close(trained(plan(), fixed_rows=rows), trained(plan()), rtol=1e-5, atol=1e-6)


def test_tested_updates_see_each_record_once() -> None:
    """The losses of the fresh batch, too: both passes over it have the same places, and vacant ones count nothing."""
    which = plan(methods.sur(), FullBatch(), batch=loop.RECORDS)
    torch.testing.assert_close(trained(which, fixed_rows=ROWS), trained(which), rtol=1e-5, atol=1e-6)


def test_a_fixed_size_under_replace_one_needs_no_vacant_rows() -> None:
    recipe = methods.dp_sgd(clip=0.5).using(sampling=FixedSize(), relation=Neighbouring.REPLACE_ONE)
    which = plan(recipe, FixedSize())
    torch.testing.assert_close(trained(which, fixed_rows=6), trained(which), rtol=1e-5, atol=1e-6)


def test_views_collate_and_dictionaries() -> None:
    class Named(Dataset[Any]):
        def __len__(self) -> int:
            return loop.RECORDS

        def __getitem__(self, i: int) -> dict[str, Any]:
            x, y = loop.data()[i]
            return {"x": x, "y": int(y), "name": f"record {i}"}

    def collate(records: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "x": torch.stack([one["x"] for one in records]),
            "y": torch.tensor([one["y"] for one in records]),
            "name": [one["name"] for one in records],
            "classes": 2,
        }

    found = []
    for rows in (None, ROWS):
        net, names = loop.model(), set[str]()
        options: dict[str, Any] = {"inputs": lambda batch: (batch["x"],), "collate_fn": collate, "views": 2}
        run = loop.private(net, plan(), dataset=Named(), fixed_rows=rows, **options)
        for batch in run:
            names |= set() if run.is_rehearsal else set(batch["name"])
            run.step(F.cross_entropy(net(batch["x"]), batch["y"], reduction="none"))
        found.append(loop.weights(net))
        assert ("1" in names) is (rows is not None)  # made up in vacant rows
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_vacant_rows_add_exact_zero_also_where_they_are_not_numbers() -> None:
    """Made-up fractions lie below 1, where this loss is NaN; records lie above 3, where it is not."""
    x = torch.rand(loop.RECORDS, 4) + 3
    data = TensorDataset(x, torch.zeros(loop.RECORDS))
    found = []
    for rows in (None, ROWS):
        net, odd = nn.Linear(4, 1), 0
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(0.5)
        run = loop.private(net, plan(), dataset=data, fixed_rows=rows)
        for inputs, _ in run:
            losses = net(inputs).squeeze(1) * (inputs[:, 0] - 2).log()
            odd += 0 if run.is_rehearsal else int(losses.isnan().sum())
            run.step(losses)
        found.append(loop.weights(net))
        assert (odd > 0) is (rows is not None)
    assert found[1].isfinite().all()
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_public_rehearsals_fill_vacant_rows() -> None:
    """Labels from 5 on: made-up ones would be 1, which this loop does not take."""
    x, y = loop.data().tensors
    data, public = TensorDataset(x, y + 5), (torch.zeros(3, 4), torch.full((3,), 5))
    net = loop.model()
    run = loop.private(net, plan(), dataset=data, fixed_rows=ROWS, rehearsal=public)
    for inputs, labels in run:
        assert labels.min() >= 5
        run.step(F.cross_entropy(net(inputs), labels - 5, reduction="none"))
    assert run.updates == loop.STEPS


# -- what the proof assumes of kernels --------------------------------------------------------------------------------

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3)), (30,)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten()), (3, 9, 9)),
    "attention": (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (6, 16)),
}


@pytest.mark.parametrize("rows", [5, 16, 33])
@pytest.mark.parametrize("name", LAYERS)
def test_the_bits_of_a_row_do_not_depend_on_the_values_of_others(name: str, rows: int) -> None:
    layer, shape = LAYERS[name]
    own, place = torch.randn(shape), rows // 2

    def bits(others: Tensor) -> tuple[Tensor, Tensor]:
        x = others.clone()
        x[place] = own
        x.requires_grad_()
        out = layer(x)
        (gradient,) = torch.autograd.grad(out.square().flatten(1).sum(1).sum(), x)
        return out[place].detach(), gradient[place]

    first = bits(torch.randn(rows, *shape))
    for others in (torch.randn(rows, *shape) * 1e3, torch.zeros(rows, *shape), torch.full((rows, *shape), torch.nan)):
        for one, other in zip(first, bits(others), strict=True):
            assert torch.equal(one, other)


def test_a_gradient_whose_terms_cancel_is_made_by_itself() -> None:
    """Its last bits are the same whichever other gradients of the batch cancel."""
    left, right = torch.randn(12, 30, 5), torch.randn(12, 30, 400)
    left[:, 15:], right[:, 15:] = -left[:, :15], right[:, :15] + 1e-6 * torch.randn(12, 15, 400)
    alone = merge([Outer(left[:1], right[:1], (5, 400))], (5, 400), 1 << 28)
    whole = merge([Outer(left, right, (5, 400))], (5, 400), 1 << 28)
    assert torch.equal(alone.instantiate(0, 1)[0], whole.instantiate(0, 1)[0])
    assert alone.norms[0] == whole.norms[0]


# -- refusals, ledger and statement ------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "poisson": (lambda: {"which": plan(sampling=Poisson())}, r"TruncatedPoisson\(cap=\d+\)"),
    "balls in bins": (lambda: {"which": plan(sampling=discreet.BallsInBins())}, "no public limit"),
    "micro_batch": (lambda: {"micro_batch": 4}, "which fixed_rows replaces"),
    "own loader": (lambda: {"which": plan(sampling=OwnLoader()), "dataset": None}, "your own loader"),
    "users": (lambda: {"which": plan(methods.dp_sgd().using(unit=SampledUsers(per_user=2)))}, "protects users"),
    "no rows": (lambda: {"fixed_rows": 0}, "fixed_rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused_by_name(name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(Refused, match=message):
        loop.private(**{"which": plan(), "fixed_rows": ROWS, **options()})


def test_full_batches_need_a_public_upper_bound() -> None:
    which = plan(sampling=FullBatch(), batch=loop.RECORDS)
    run = loop.private(which=which, dataset=loop.data(4 * ROWS + 1), fixed_rows=ROWS)
    with pytest.raises(Refused, match=r"larger `records`"):
        loop.train(run)


def test_ledger_spending_and_statement_say_what_is_covered(tmp_path: Path) -> None:
    run = loop.private(which=plan(), fixed_rows=ROWS, ledger=tmp_path / "ledger.jsonl", streams=Streams.from_os())
    loop.train(run)
    assert run.spent().fixed_rows == ROWS
    assert "rounding of records by the batch is covered" in str(run.spent())
    assert any("rounding of records" in text for text in run.spent().certified.assumptions)
    text = discreet.statement(run, data="the records")
    assert f"Rounding of records by the batch is covered: every forward pass had {ROWS} rows" in text
    assert "does not cover records" not in text
    run.close()
    assert read(tmp_path / "ledger.jsonl").header["fixed_rows"] == ROWS
    without = loop.private(which=plan(), streams=Streams.from_os())
    loop.train(without)
    text = discreet.statement(without, data="the records")
    assert "does not cover records that are made to lie exactly on a threshold" in text
    assert "is covered" not in text


def test_with_grid_noise_both_roundings_are_covered() -> None:
    which = plan(methods.dp_sgd(clip=0.5).using(mechanism=GridNoise()))
    run = loop.private(which=which, fixed_rows=ROWS, streams=Streams.from_os())
    loop.train(run, most=1)
    text = discreet.statement(run, data="the records")
    assert "covers the last bits of what was released." in text
    assert "is covered" in text


def test_a_run_is_resumed_with_its_fixed_rows(tmp_path: Path) -> None:
    run = loop.private(which=plan(), fixed_rows=ROWS, ledger=tmp_path / "l.jsonl", seed=1)
    loop.train(run, most=3)
    run.save(tmp_path / "c.pt")
    run.close()
    for rows in (None, 8):
        with pytest.raises(Refused, match="fixed_rows"):
            loop.private(which=plan(), fixed_rows=rows, ledger=tmp_path / "l.jsonl", resume=tmp_path / "c.pt", seed=2)
    again = loop.private(which=plan(), fixed_rows=ROWS, ledger=tmp_path / "l.jsonl", resume=tmp_path / "c.pt", seed=2)
    loop.train(again)
    assert again.progress.step == loop.STEPS
