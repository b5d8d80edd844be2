"""Clipped error feedback: its recursion, what one record can do to it, and DP-SGD where it is switched off."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import loop
import two_processes
from contracts import bounder_contract
from discreet import methods
from discreet.accounting.events import Gaussian, NonPrivate
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.methods.dicesgd.stages import (
    ERROR,
    MAX_CLIPS,
    ErrorFeedback,
    FeedbackClip,
    FeedbackNormalised,
    Normalising,
)
from discreet.stages.clipping import Query
from discreet.stages.plan import Recipe
from discreet.stages.sampling import Horizon
from discreet.training.step import PrivateStep, RunState

BATCH = 4


class Line:
    """A linear model whose gradient on a record is the record itself, step by step through the library's stages."""

    def __init__(self, recipe: Recipe, *, noise: float = 0.0, size: int = 3, steps: int = 50, seed: int = 0) -> None:
        horizon = Horizon.of(records=40, batch=BATCH, steps=steps)
        self.plan = recipe.bind(noise=noise, horizon=horizon, delta=1e-5)
        self.net = nn.Linear(size, 1, bias=False)
        self.engine = Engine(self.net)
        self.progress, self.streams = RunState(), Streams.seeded(seed)

    def step(self, records: Tensor) -> Tensor:
        batch = PrivateStep(
            self.plan, self.engine, self.progress, self.streams, lambda event, step: None, World.current()
        )
        if len(records):
            self.engine.begin(len(records))
            batch.add(self.net(records).squeeze(1))
        return batch.release().value.double()

    @property
    def error(self) -> Tensor:
        """On the mean."""
        kept: Tensor = self.progress.secrets[ERROR].reveal_to_mechanism()
        return kept / BATCH


def clip(vector: Tensor, bound: float) -> Tensor:
    return vector * min(1.0, bound / max(float(vector.norm()), 1e-300))


def batches(steps: int = 30, size: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(int(torch.randint(0, 7, (1,), generator=generator)), size, generator=generator) * 3
        for _ in range(steps)
    ]


# -- the algorithm --------------------------------------------------------------------------------------------


def test_it_is_algorithm_2() -> None:
    """Against the paper's lines, written down again: e += mean of raw gradients - v."""
    line, e = Line(methods.dicesgd(clip=0.7, feedback_clip=0.9)), torch.zeros(3, dtype=torch.float64)
    for records in batches():
        released = line.step(records)
        rows = [row.double() for row in records]
        zero = torch.zeros(3, dtype=torch.float64)
        v = sum((clip(row, 0.7) for row in rows), zero) / BATCH + clip(e, 0.9)
        e = e + sum(rows, zero) / BATCH - v
        assert torch.allclose(released, v, atol=1e-5)
        assert torch.allclose(line.error, e, atol=1e-4)
    assert float(e.norm()) > 0.9  # the error's clip was at work


def test_it_is_algorithm_4() -> None:
    line, e = Line(methods.dicesgd_automatic()), torch.zeros(3, dtype=torch.float64)
    for records in batches():
        released = line.step(records)
        rows = [row.double() for row in records]
        zero = torch.zeros(3, dtype=torch.float64)
        fed = e / e.norm() if float(e.norm()) > 0 else e
        v = sum((row / row.norm() for row in rows), zero) / BATCH + fed
        e = e + sum(rows, zero) / BATCH - v
        assert torch.allclose(released, v, atol=1e-5)
        assert torch.allclose(line.error, e, atol=1e-4)


def test_adam_takes_the_release() -> None:
    """Algorithm 3 is Adam on the release: any optimizer of torch."""
    for make in (torch.optim.Adam, torch.optim.RMSprop):
        run = loop.private(
            which=loop.plan(methods.dicesgd(clip=0.5, feedback_clip=0.5)),
            optimizer=lambda p, make=make: make(p, lr=0.01),
        )
        assert loop.train(run) == loop.STEPS


def test_the_noise_is_not_fed_back() -> None:
    """The error of a noisy run on the same records is that of a quiet one, bit for bit."""
    noisy, quiet = Line(methods.dicesgd(), noise=5.0), Line(methods.dicesgd())
    for records in batches(8):
        noisy.step(records)
        quiet.step(records)
    assert torch.equal(noisy.error, quiet.error)


@pytest.mark.parametrize("times", [1.0, 1.5])
def test_the_noise_has_its_size_in_every_step(times: float) -> None:
    """Kolmogorov-Smirnov on empty batches after an error was built up; false alarms 1e-6; 1.5 times is seen."""
    line = Line(methods.dicesgd(clip=2.0, feedback_clip=0.5), noise=3.0, size=4000)
    line.step(torch.full((1, 4000), 1.0))
    before = line.error.clone()
    noise = line.step(torch.zeros(0, 4000)) - clip(before, 0.5)
    value = stats.kstest((noise / (times * 3.0 * 2.0 / BATCH)).numpy(), "norm").pvalue
    assert (value > 1e-6) == (times == 1.0)


# -- switched off ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_without_feedback_it_is_dp_sgd_bit_for_bit(noise: float) -> None:
    weights = []
    for recipe in (methods.dp_sgd(clip=0.5), methods.dicesgd(clip=0.5, feedback_clip=0.0)):
        run = loop.private(which=loop.plan(recipe, noise=noise), seed=11)
        loop.train(run)
        weights.append(loop.weights(run.model))
    assert torch.equal(*weights)


def test_without_feedback_the_price_is_that_of_dp_sgd() -> None:
    off, plain = loop.plan(methods.dicesgd(clip=0.5, feedback_clip=0.0)), loop.plan(methods.dp_sgd(clip=0.5))
    assert off.charge().certified == plain.charge().certified
    assert off.charge().claimed is None


def test_records_within_the_clip_leave_no_error() -> None:
    line, plain = Line(methods.dicesgd(clip=100.0)), Line(methods.dp_sgd(clip=100.0))
    for records in batches(5):
        assert torch.allclose(line.step(records), plain.step(records), atol=1e-7)
    assert not bool(line.error.any())


def test_a_single_step_has_no_price() -> None:
    query = (Query(1.0),)
    assert ErrorFeedback(1.0).event(query, 2.0) == NonPrivate()
    assert ErrorFeedback(0.0).event(query, 2.0) == Gaussian(2.0)


# -- what a record can do -------------------------------------------------------------------------------------

HOSTILE = [1e30, 3e38, 1e19, 1e7, math.inf, math.nan]


@pytest.mark.parametrize("recipe", [methods.dicesgd(), methods.dicesgd(preclip=5.0), methods.dicesgd_automatic()])
@pytest.mark.parametrize("size", HOSTILE)
def test_a_hostile_record_poisons_nothing(recipe: Recipe, size: float) -> None:
    """The release stays within clip * records + feedback clip * batch, the error within what is kept of a record."""
    line = Line(recipe)
    usual = torch.tensor([[0.3, 0.2, -0.1], [2.0, -1.0, 0.5]])
    bounder = line.plan.bounder
    assert isinstance(bounder, FeedbackClip | FeedbackNormalised)
    for step in range(6):
        bad = torch.tensor([[size, -size, 0.0]] * 3)
        released = line.step(torch.cat([usual, bad]) if step == 1 else usual)
        assert bool(released.isfinite().all())
        assert float(released.norm()) <= (5 + BATCH) / BATCH * (1 + 1e-6)
        assert bool(line.error.isfinite().all())
        assert float(line.error.norm()) <= 3 * (bounder.kept + 10) * (1 + 1e-6) / BATCH + 6 * 2.5
    if not math.isfinite(size):
        clean = Line(recipe)
        for _ in range(6):
            last = clean.step(usual)
        assert torch.equal(last, released), "a record that is not finite left a trace"


def test_an_error_that_is_not_finite_is_forgotten() -> None:
    mechanism = ErrorFeedback(1.0)
    for bad in (math.nan, math.inf):
        error = torch.tensor([1.0, bad, 2.0], dtype=torch.float64)
        assert not bool(mechanism.shortened(error, 10.0).any())
        assert not bool(error.any())


@pytest.mark.parametrize("shortening", [ErrorFeedback(0.5), ErrorFeedback(0.5, Normalising())])
@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-20, 4.9999, 5.0, 5.00001, 1e10, 1e200])
def test_what_is_fed_back_is_bounded(shortening: ErrorFeedback, size: float) -> None:
    direction = torch.tensor([0.6, -0.8], dtype=torch.float64)
    fed = shortening.shortened(size * direction, 10.0)
    assert bool(fed.isfinite().all())
    assert float(fed.float().double().norm()) <= 5.0


@pytest.mark.parametrize("bounder", [FeedbackClip(0.7), FeedbackClip(0.7, preclip=9.0), FeedbackNormalised(2.0)])
def test_bounders(bounder: Any) -> None:
    bounder_contract(bounder)
    norms = torch.tensor(
        [[0.0, 1e-12, 0.7, 0.71, 2.0, 8.9, 9.1, 1e4, 1e19, 1e38, 1e300, math.inf, math.nan]], dtype=torch.float64
    )
    hidden = bounder.hidden(norms, 1.0)
    assert hidden.shape == (1, *norms.shape)
    assert bool((hidden[..., -2:] == 0).all())
    assert float((hidden * norms)[..., :-2].abs().max()) <= bounder.kept
    both = ((hidden + bounder.weights(norms, 1.0)) * norms)[0, 0, 1:6]
    assert torch.allclose(both, norms[0, 1:6], rtol=1e-5)  # nothing is lost of gradients below the pre-clip


def test_a_record_moves_the_hidden_sum_by_what_is_kept_of_it() -> None:
    """Leave-one-out on hard records, through the engine; the energy bound rests on it."""
    bounder = FeedbackClip(1.0, preclip=3.0)
    net, records = nn.Linear(3, 1, bias=False), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    records[1], records[2], records[3] = records[0] * 1e6, 1e30, 0.0
    moved = []
    whole = _hidden(bounder, net, records)
    for index in range(6):
        kept = torch.arange(6) != index
        moved.append(float((whole - _hidden(bounder, net, records[kept])).norm()))
    assert 0.99 * bounder.kept < max(moved) <= bounder.kept * (1 + 1e-5)


def _hidden(bounder: FeedbackClip, net: nn.Module, records: Tensor) -> Tensor:
    from discreet.stages.aggregation import Aggregation
    from discreet.stages.selection import Order

    engine = Engine(net)
    sums = Aggregation(bounder, 1.0, engine, None, Order.FREEZE_THEN_CLIP)
    engine.begin(len(records))
    engine.backward(net(records).squeeze(1))
    sums.add()
    engine.close()
    (value,) = sums.sums(World.current()).hidden.reveal_to_mechanism()
    return value.double()  # type: ignore[no-any-return]


def test_the_energy_of_a_run_is_bounded() -> None:
    """sum of squared shifts <= (sqrt(n) C1 + n (G - C1))^2 / batch^2, worlds with and without a record."""
    recipe = methods.dicesgd(clip=1.0, feedback_clip=0.4, preclip=3.0)
    common = batches(20)
    loud = torch.tensor([[50.0, 0.0, 0.0]])
    joins = {2, 3, 7, 11}
    one, other = Line(recipe), Line(recipe)
    energy = sum(
        float((one.step(rows) - other.step(torch.cat([rows, loud]) if step in joins else rows)).square().sum())
        for step, rows in enumerate(common)
    )
    n = len(joins)
    bound = (math.sqrt(n) * 1.0 + n * 2.0) / BATCH
    assert 0.1 * bound < math.sqrt(energy) <= bound * (1 + 1e-5)


# -- what stays inside ----------------------------------------------------------------------------------------


def test_the_error_never_leaves() -> None:
    line = Line(methods.dicesgd())
    line.step(batches(1)[0] if len(batches(1)[0]) else torch.ones(1, 3))
    secret = line.progress.secrets[ERROR]
    assert "hidden" in repr(secret)
    assert "tensor" not in repr(line.progress)
    with pytest.raises(Refused, match="stay in memory"):
        pickle.dumps(secret)


def test_a_resumed_run_begins_without_an_error(tmp_path: Any) -> None:
    plan = loop.plan(methods.dicesgd(clip=0.1, feedback_clip=0.1))
    first = loop.private(which=plan, ledger=tmp_path / "l.jsonl", seed=1)
    loop.train(first, most=4)
    assert ERROR in first.progress.secrets
    first.save(tmp_path / "c.pt")
    first.close()
    again = loop.private(which=plan, ledger=tmp_path / "l.jsonl", resume=tmp_path / "c.pt", seed=2)
    assert not again.progress.secrets
    loop.train(again)
    assert again.ledger.charge().certified == plan.charge().certified


def test_masks_and_other_bounders_are_refused() -> None:
    recipe = methods.dicesgd()
    for change in (
        {"bounder": methods.dp_sgd().bounder},
        {"selection": methods.random_freeze().selection},
        {"schedule": methods.d2p_sgd().schedule},
    ):
        with pytest.raises(Refused):
            recipe.using(**change)


def test_the_loudest_is_loud() -> None:
    """Gradients up to a million clips pass as Algorithm 2 has them."""
    line = Line(methods.dicesgd())
    line.step(torch.tensor([[0.5 * MAX_CLIPS, 0.0, 0.0]]))
    assert float(line.error[0]) == pytest.approx((0.5 * MAX_CLIPS - 1) / BATCH, rel=1e-5)


# -- several processes ----------------------------------------------------------------------------------------


def _shared(rank: int, place: str) -> None:
    """One of two processes, each with a part of the records and noise of its own."""
    torch.set_num_threads(1)
    two_processes.meet(rank, place)
    x, y = loop.data().tensors
    part = slice(0, 20) if rank == 0 else slice(20, 60)
    records = TensorDataset(x[part], y[part])
    moved, error = _full_run(records, seed=7 + rank, rate=0.5)
    torch.save((moved, error, _full_run(records, seed=7 + rank, rate=0.0)[1]), f"{place}/{rank}.pt")
    two_processes.part()


def _full_run(records: TensorDataset, seed: int, rate: float) -> tuple[Tensor, Tensor]:
    plan = loop.plan(methods.dicesgd(clip=0.05, feedback_clip=0.1), batch=60)
    run = loop.private(which=plan, dataset=records, seed=seed, optimizer=lambda p: torch.optim.SGD(p, lr=rate))
    loop.train(run)
    return loop.weights(run.model), run.progress.secrets[ERROR].reveal_to_mechanism()


@pytest.mark.slow
def test_two_processes_hold_one_error(tmp_path: Path) -> None:
    mp.start_processes(_shared, args=(str(tmp_path),), nprocs=2, start_method="spawn")
    (first, error, still), (second, other, too) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(first, second)
    assert torch.equal(error, other)
    # Noise differs from that of one process. At parameters that do not move, the error is a function of the sums.
    _, kept = _full_run(loop.data(), seed=7, rate=0.0)
    assert bool(still.any())
    assert torch.allclose(still, kept, atol=1e-4)
    assert torch.allclose(too, kept, atol=1e-4)
