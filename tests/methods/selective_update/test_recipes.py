"""Selective updates: tested on a fresh sample, every test charged, rejected updates leave no trace."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import discreet
from discreet import Private, methods
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, PoissonSampled, SelectionQuery
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.streams import Stream, Streams
from discreet.core.world import World
from discreet.stages.acceptance import LossTest
from discreet.stages.aggregation import sum_of_numbers
from discreet.stages.analysis import Unproven
from discreet.stages.clipping import Clipping
from discreet.stages.grid_noise import GridNoise
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import BallsInBins, FullBatch, Horizon

HORIZON = Horizon.of(records=60, batch=20, steps=8)
GRADIENT = PoissonSampled(HORIZON.rate, Gaussian(1.0))
TEST = PoissonSampled(HORIZON.rate, SelectionQuery(sigma=4.0 * 0.01, sensitivity=0.01))


def data(records: int = 60) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 5, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def bound(noise: float = 1.0, acceptance: LossTest | None = None, **changes: Any) -> Plan:
    plan = methods.dp_sgd(clip=1.0).using(acceptance=acceptance or LossTest(), **changes)
    return plan.bind(noise=noise, horizon=HORIZON, delta=1e-5)


def start(plan: Plan, *, seed: int = 1, records: int = 60, rate: float = 0.5, **more: Any) -> Private:
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return Private(model, optimizer, plan, data(records), streams=Streams.seeded(seed), **more)


def go(private: Private, stop: int | None = None) -> list[bool]:
    moved = []
    for x, y in private:
        moved.append(private.step(F.cross_entropy(private.model(x), y, reduction="none")))
        if private.settled and private.progress.step == stop:
            break
    return moved


def state(private: Private) -> tuple[Tensor, dict[str, Any]]:
    return nn.utils.parameters_to_vector(private.model.parameters()).detach().clone(), {
        str(key): {name: float(value.sum()) for name, value in kept.items()}
        for key, kept in private.optimizer.state_dict()["state"].items()
    }


def test_every_test_is_charged_kept_or_not(tmp_path: Path) -> None:
    for threshold in (-0.009, 0.009):
        plan = bound(acceptance=LossTest(threshold=threshold, share=0.05))
        place = tmp_path / f"{threshold}"
        run = start(plan, ledger=place)
        go(run)
        test = PoissonSampled(HORIZON.rate, SelectionQuery(sigma=0.05 * 0.01, sensitivity=0.01))
        assert [entry.event for entry in run.ledger.entries] == [GRADIENT, test] * 8
        assert run.ledger.charge().certified == plan.charge().certified == read(place).charge().certified
    assert bound().charge() == Charge(((GRADIENT, 8), (TEST, 8)))
    assert (
        bound().certificate().epsilon
        > dataclasses.replace(methods.dp_sgd()).bind(noise=1.0, horizon=HORIZON, delta=1e-5).certificate().epsilon
    )


def test_the_charge_is_on_disk_before_the_test_is_released(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watching(LossTest):  # type: ignore[misc]
        def accepts(self, noisy_mean: float) -> bool:
            seen.append(len(read(tmp_path / "ledger").entries))
            return True

    go(start(bound(acceptance=Watching()), ledger=tmp_path / "ledger"))
    assert seen == [2, 4, 6, 8, 10, 12, 14, 16]


@pytest.mark.parametrize("micro_batch", [3, 512])
def test_a_rejected_update_leaves_no_trace(micro_batch: int) -> None:
    """The noise of 50 makes every update bad; without noise on the test, all of them are rejected."""
    never = LossTest(loss_clip=1.0, threshold=-0.999999, share=1e-9)
    run = start(bound(noise=50.0, acceptance=never), micro_batch=micro_batch)
    before = state(run)
    moved = go(run)
    assert not any(moved)
    assert run.updates == 0
    after = state(run)
    assert torch.equal(before[0], after[0])
    assert after[1] == before[1] == {}  # nor of the momentum

    always = LossTest(loss_clip=1.0, threshold=0.999999, share=1e-9)
    run = start(bound(noise=0.1, acceptance=always), micro_batch=micro_batch)
    moved = go(run)
    assert sum(moved) == run.updates == 8
    plain = dataclasses.replace(methods.dp_sgd(clip=1.0)).bind(noise=0.1, horizon=HORIZON, delta=1e-5)
    expected = start(plain, micro_batch=micro_batch)
    go(expected)
    # The test draws from the noise stream too, so that later gradients differ by their noise alone.
    assert (state(run)[0] - state(expected)[0]).norm() < 0.2 * (state(expected)[0] - before[0]).norm()


def test_the_test_sees_old_and_new_parameters_on_the_same_fresh_records() -> None:
    run = start(bound(noise=1.0))
    phases: list[tuple[Tensor, Tensor]] = []
    pieces: list[Tensor] = []
    for x, y in run:
        if not run.is_rehearsal:
            pieces.append(x.clone())
        ends = run._loop.sample_ended  # the first batch comes in several pieces
        parameters = nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()
        run.step(F.cross_entropy(run.model(x), y, reduction="none"))
        if not run._engine.watch.is_rehearsed:
            pieces = pieces if run.is_rehearsal else pieces[:-1]  # the first one of a test comes again
        elif ends:
            phases.append((torch.cat(pieces), parameters))
            pieces = []
    assert len(phases) == 24
    for step in range(8):
        (first, _), (old, at_old), (new, at_new) = phases[3 * step : 3 * step + 3]
        assert torch.equal(old, new)
        assert not torch.equal(first, old) or len(first) == 0
        assert not torch.equal(at_old, at_new)
        assert torch.equal(phases[3 * step][1], at_old)


def test_gradients_and_tests_draw_the_noise_that_they_are_charged_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    real = Stream.add_normal_

    def add(self: Stream, value: Tensor, std: float) -> Tensor:
        drawn.append(std)
        return real(self, value, std)

    monkeypatch.setattr(Stream, "add_normal_", add)
    run = start(bound(noise=1.7), ledger=tmp_path / "ledger")
    go(run)
    charged = [entry.event for entry in read(tmp_path / "ledger").entries]
    assert len(drawn) == len(charged) == 16
    for event, std in zip(charged, drawn, strict=True):
        release = event.event  # type: ignore[attr-defined]
        priced = release.sigma if isinstance(release, SelectionQuery) else release.noise * 1.0  # the clip is 1
        assert std == pytest.approx(priced, rel=1e-12)


def test_good_updates_are_kept_and_bad_ones_are_not() -> None:
    """Statistics: with half a clip of headroom the noise of share 0.1 on 20 records decides wrongly < 1e-4."""
    good = start(bound(noise=0.01, acceptance=LossTest(loss_clip=0.01, share=0.1)), rate=0.1)
    assert sum(go(good)) >= 7
    bad = start(bound(noise=0.01, acceptance=LossTest(loss_clip=0.01, share=0.1)), rate=0.1)
    for group in bad.optimizer.param_groups:
        group["maximize"] = True
    assert sum(go(bad)) <= 1


@pytest.mark.parametrize(
    "losses",
    [[1e30, -1e30], [math.nan, 1.0], [math.inf, -math.inf], [0.5, 0.5], []],
    ids=["huge", "nan", "infinite", "equal", "none"],
)
def test_one_record_moves_the_tested_sum_by_at_most_its_bound(losses: list[float]) -> None:
    world, values = World(), torch.tensor(losses, dtype=torch.float64)
    whole = float(sum_of_numbers(values, 0.25, world).value)
    assert math.isfinite(whole)
    assert abs(whole) <= 0.25 * len(losses)
    for index in range(len(losses)):
        without = torch.cat([values[:index], values[index + 1 :]])
        assert abs(whole - float(sum_of_numbers(without, 0.25, world).value)) <= 0.25
    assert sum_of_numbers(values, 0.25, world).sensitivity == 0.25


def test_losses_of_a_poisoned_model_reject_and_do_not_crash() -> None:
    run = start(bound(acceptance=LossTest(loss_clip=0.01, share=0.01)))
    for x, y in run:
        losses = F.cross_entropy(run.model(x), y, reduction="none")
        run.step(losses * discreet.public(1.0 if run.settled else math.nan))
    assert run.updates == 0


def test_empty_samples_are_tested_and_charged() -> None:
    run = start(bound(), records=0)
    assert go(run) == []
    assert run.progress.step == 8
    assert run.ledger.charge().certified == run.plan.charge().certified


def test_a_run_stopped_between_step_and_test_has_lost_that_step(tmp_path: Path) -> None:
    plan, ledger = bound(), tmp_path / "ledger"
    first = start(plan, ledger=ledger)
    go(first, stop=3)
    first.save(tmp_path / "checkpoint")
    for x, y in first:
        first.step(F.cross_entropy(first.model(x), y, reduction="none"))
        if not first.settled:
            break
    with pytest.raises(Refused, match="is tested"):
        first.save(tmp_path / "other")
    with pytest.raises(Refused, match="in the middle of a logical batch"):
        next(iter(first))
    first.close()
    assert read(ledger).length == 7
    again = start(plan, seed=2, ledger=ledger, resume=tmp_path / "checkpoint")
    assert again.progress.step == 4
    go(again)
    assert again.ledger.length == 16  # the test that was never made is paid all the same
    assert [entry.event for entry in again.ledger.entries] == [GRADIENT, TEST] * 8


def test_crashes_in_every_trial_never_spend_more_than_was_planned(tmp_path: Path) -> None:
    plan, ledger = bound(), tmp_path / "ledger"
    run = start(plan, ledger=ledger)
    run.save(tmp_path / "checkpoint")
    for seed in range(2, 20):
        for x, y in run:
            run.step(F.cross_entropy(run.model(x), y, reduction="none"))
            if not run.settled:
                break  # a crash between the release and its test
        run.close()
        if read(ledger).length >= 15:
            break
        run = start(plan, seed=seed, ledger=ledger, resume=tmp_path / "checkpoint")
    events = [entry.event for entry in read(ledger).entries]
    assert events == ([GRADIENT, TEST] * 8)[: len(events)]
    assert events.count(GRADIENT) == 8


def test_a_pass_that_writes_into_the_model_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = Private(model, optimizer, bound(), data(), streams=Streams.seeded(1))

    def train() -> None:
        for x, y in run:
            model.train(not run.settled)
            run.step(F.cross_entropy(model(x), y, reduction="none"))

    with pytest.raises(Refused, match=r"no BatchNorm in training mode"):
        train()


def test_the_next_charge_of_a_torn_ledger() -> None:
    plan = bound()
    assert [plan.due(charges) for charges in range(4)] == [GRADIENT, TEST, GRADIENT, TEST]
    assert [plan.steps_paid(charges) for charges in (0, 1, 2, 3, 15, 16)] == [0, 1, 1, 2, 8, 8]
    assert plan.due(16) == GRADIENT


def test_what_is_not_proven_is_refused() -> None:
    with pytest.raises(Refused, match="for tested updates"):
        bound(sampling=BallsInBins())
    with pytest.raises(Refused, match="charges every release"):
        methods.dicesgd().using(acceptance=LossTest())
    with pytest.raises(Refused, match="threshold"):
        LossTest(loss_clip=0.01, threshold=0.02)
    with pytest.raises(Refused, match="share"):
        LossTest(share=0.0)
    full = methods.dp_sgd().using(acceptance=LossTest(), sampling=FullBatch())
    horizon = Horizon.of(records=60, batch=60, steps=2)
    full.bind(noise=1.0, horizon=horizon, delta=1e-5).charge()


@pytest.mark.parametrize(
    "recipe", [methods.sur(clipping=Clipping.PSAC), methods.sur(clipping=Clipping.AUTO_S), methods.geodp_sound()]
)
def test_companions_cost_what_their_releases_and_tests_cost(recipe: Recipe) -> None:
    plan = recipe.using(acceptance=LossTest()).bind(noise=1.0, horizon=HORIZON, delta=1e-5)
    assert plan.certificate().epsilon == bound().certificate().epsilon
    private = start(plan)
    assert len(go(private)) == 3 * HORIZON.steps + 5  # rehearsals of both kinds of passes; the first test comes again
    assert private.ledger.charge().certified == plan.charge().certified


def test_an_unproven_release_stays_unproven_beside_its_tests() -> None:
    plan = bound(analysis=Unproven("no reason"))
    assert plan.certificate().epsilon == math.inf
    assert any("no reason" in line for line in plan.certificate().assumptions)


class Attention(nn.Module):
    """A layer that the engine takes apart while it keeps factors, and not while it tests an update."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.inside(x, x, x, need_weights=False)[0].mean(1))
        return outputs


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_the_passes_of_a_test_make_calls_of_their_own(micro_batch: int | None) -> None:
    model, horizon = Attention(), Horizon.of(records=12, batch=12, steps=2)
    plan = methods.sur().bind(noise=1.0, horizon=horizon, delta=1e-3)
    data = TensorDataset(torch.randn(12, 5, 4), torch.zeros(12, dtype=torch.int64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = Private(model, optimizer, plan, data, streams=Streams.seeded(1), micro_batch=micro_batch)
    for x, y in private:
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    assert private.progress.step == 2


def test_noise_on_a_grid_is_that_of_the_tests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement says that all noise was rounded to a grid."""
    monkeypatch.setattr(Stream, "add_normal_", None)
    private = start(bound(mechanism=GridNoise()))
    assert len(go(private)) >= 3 * HORIZON.steps
