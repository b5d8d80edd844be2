"""Rounds of contributions that others computed: bounds, noise, charges, restarts."""

from __future__ import annotations

import itertools
import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import discreet
from discreet import Horizon, Poisson, PrivateRounds, RoundTask, SampledUsers, methods
from discreet.accounting.accountants import certify
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.engine.contributions import GivenVectors
from discreet.engine.engine import Engine
from discreet.engine.layout import Layout
from discreet.stages.plan import Plan, Recipe
from discreet.stages.values import StepContext

CLIP, CLIENTS, SIZE, ALPHA = 0.5, 12, 10, 1e-6
UNIT = SampledUsers(per_user=8, name="client")
RECIPES = {
    "flat": methods.dp_sgd(clip=CLIP),
    "auto-s": methods.automatic(),
    "per-layer": methods.per_layer(clip=CLIP),
    "adaptive": methods.adaptive_quantile(clip=CLIP, count_noise=2.0),
    "frozen": methods.random_freeze(clip=CLIP, final_rate=0.5, cooling_epochs=1),
}


def net() -> nn.Module:
    made = nn.Linear(4, 2)
    for parameter in made.parameters():
        nn.init.zeros_(parameter)
    return made


def plan(recipe: Recipe | None = None, *, noise: float = 1e-9, batch: float = CLIENTS, steps: int = 4) -> Plan:
    stages = (recipe or RECIPES["flat"]).using(unit=UNIT, sampling=Poisson())
    return stages.bind(noise=noise, horizon=Horizon.of(records=CLIENTS, batch=batch, steps=steps), delta=1e-3)


def rounds(which: Plan | None = None, **options: Any) -> PrivateRounds:
    model = net()
    options.setdefault("streams", Streams.seeded(3))
    return PrivateRounds(model, torch.optim.SGD(model.parameters(), lr=1.0), which or plan(), **options)


def moved(which: PrivateRounds) -> Tensor:
    """The released sum of the rounds so far: the model begins at zero, and lr is 1."""
    flat = torch.cat([parameter.detach().flatten() for parameter in which.model.parameters()])
    return -flat.double() * which.plan.horizon.size.batch


def update(values: Tensor) -> dict[str, Tensor]:
    return {"weight": values[:8].view(2, 4), "bias": values[8:]}


def one_round(which: PrivateRounds, sent: dict[int, Tensor]) -> Tensor:
    """Release a round in which these clients reply, whatever they send."""
    which.draw(CLIENTS)
    size = (
        SIZE
        if which._open().mask is None
        else len(which.task.contribution(which.plan, update(torch.ones(SIZE))).values)
    )
    for client, values in sent.items():
        which.add(client, values[:size] if len(values) == SIZE else values, norm=1e9 if client % 2 else None)
    which.release()
    return moved(which)


def liars() -> dict[int, Tensor]:
    """Replies of one honest client and of clients that lie."""
    honest = torch.linspace(-0.1, 0.1, SIZE)
    broken = honest.clone()
    broken[3] = math.nan
    endless = honest.clone()
    endless[0] = math.inf
    tiny = torch.full((SIZE,), 0.7 * 2.0**-537, dtype=torch.float64)  # squares of all but one underflow
    tiny[0] = 2.0**-537
    return {
        0: honest,
        1: torch.full((SIZE,), 1e30),
        2: torch.full((SIZE,), -1e300, dtype=torch.float64),
        3: broken,
        4: endless,
        5: torch.ones(3),
        6: torch.ones(SIZE, 1),
        7: torch.ones(SIZE, dtype=torch.long),
        8: torch.zeros(SIZE),
        9: torch.full((SIZE,), 5e-324, dtype=torch.float64),
        10: torch.full((SIZE,), 60000.0, dtype=torch.float16),
        11: tiny,
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_client_moves_the_sum_by_at_most_the_clip(name: str) -> None:
    which, sent = plan(RECIPES[name]), liars()
    bound = which.bounder.vectors(1.0)[0].sensitivity
    whole = one_round(rounds(which), sent)
    assert bool(whole.isfinite().all())
    for client in sent:
        rest = one_round(rounds(which), {other: values for other, values in sent.items() if other != client})
        assert float((whole - rest).norm()) <= bound * (1 + 1e-5), client
    assert float((whole - one_round(rounds(which), {})).norm()) > 0.9 * bound  # the test sees something


@pytest.mark.parametrize("scale", [2.0**-537, 2.0**-149, 1e-30, 1.0, 1e38, 1e39])
def test_norms_hold_at_every_scale(scale: float) -> None:
    """Bounders that divide by the norm need it: squares of float64 numbers underflow one by one."""
    size = 10_000
    row = torch.full((1, size), 0.7 * scale, dtype=torch.float64)
    row[0, 0] = scale
    vectors = GivenVectors(Layout(("weight",), ((size,),)))
    vectors.give(row)
    (norm,), total = vectors.norms()[0].tolist(), vectors.zeros()
    vectors.add_weighted(torch.full((1, 1, 1), 1 / norm if 0 < norm < math.inf else 0.0, dtype=torch.float64), total)
    assert float(total.norm()) <= 1 + 1e-6


def test_replies_in_several_threads_count_once() -> None:
    which = rounds(plan(batch=CLIENTS))
    drawn = which.draw(CLIENTS).tolist()
    replies = {client: torch.eye(SIZE)[client % SIZE] * CLIP for client in drawn}
    with ThreadPoolExecutor(16) as pool:
        counted = list(pool.map(lambda client: which.add(client, replies[client]), drawn * 20))
    assert sum(counted) == len(drawn)
    which.release()
    assert torch.allclose(moved(which), sum(replies.values()).double(), atol=1e-4)  # type: ignore[union-attr]


def test_the_ledger_says_what_is_assumed_of_clients() -> None:
    assumed = rounds().ledger.charge().assumptions
    assert any("when rounds begin and end" in sentence for sentence in assumed)


def test_without_the_bound_a_liar_moves_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(
        type(RECIPES["flat"].bounder), "weights", lambda self, norms, scale: torch.ones_like(norms)[None]
    )
    whole = one_round(rounds(), liars())
    assert float((whole - one_round(rounds(), {0: liars()[0]})).norm()) > 100 * CLIP


def test_a_client_counts_once_and_only_if_it_was_drawn() -> None:
    which = rounds(plan(batch=6))
    drawn, values = which.draw(CLIENTS).tolist(), torch.full((SIZE,), 0.1)
    left_out = next(client for client in range(CLIENTS) if client not in drawn)
    assert not which.add(left_out, values)
    assert not which.add(CLIENTS + 5, values)
    assert which.add(drawn[0], values)
    assert not which.add(drawn[0], values)
    which.release()
    assert torch.allclose(moved(which), values.double(), atol=1e-6)


def test_drop_outs_neither_change_the_divisor_nor_the_charge() -> None:
    """Of all clients that are drawn, one replies: the sum is still divided by the public number."""
    which = rounds()
    which.draw(CLIENTS)
    which.add(0, torch.full((SIZE,), 0.1))
    which.release()
    assert torch.allclose(which.model.bias.detach(), torch.full((2,), -0.1 / CLIENTS))
    assert which.spent().certified.epsilon == which.plan.certificate(1).epsilon


@pytest.mark.parametrize("name", ["flat", "frozen"])
def test_an_empty_round_is_noise_of_the_stated_size(name: str) -> None:
    noise = 1.5
    model = nn.Linear(200, 100)
    which = plan(RECIPES[name], noise=noise, steps=1)
    run = PrivateRounds(model, torch.optim.SGD(model.parameters(), lr=1.0), which, streams=Streams.seeded(11))
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    run.draw(0)
    run.release()
    change = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before
    values = (change[change != 0] * CLIENTS).double().numpy()
    assert len(values) == pytest.approx(len(before) * (0.5 if name == "frozen" else 1), rel=1e-3)
    std = noise * CLIP
    assert stats.kstest(values / std, "norm").pvalue > ALPHA
    for wrong in (0.8, 1.25):  # negative control
        assert stats.kstest(values / (wrong * std), "norm").pvalue < ALPHA


def test_poisson_draws_have_the_public_rate() -> None:
    which = rounds(plan(batch=3, steps=400))
    counts = torch.zeros(CLIENTS)
    for _ in range(400):
        counts[torch.from_numpy(which.draw(CLIENTS))] += 1
        which.release()
    low, high = stats.binom.interval(1 - ALPHA, 400, 3 / CLIENTS)
    assert low <= float(counts.min())
    assert float(counts.max()) <= high


# Epsilon for 1,000 clients, 100 a round, 50 rounds, delta 1e-4, by noise multiplier; by dp_accounting 0.6.0 (PLD).
GOLDEN = {1.0: 4.26474, 2.0: 1.36750}


@pytest.mark.parametrize("noise", GOLDEN)
def test_the_certificate_is_that_of_the_same_plan_for_records(noise: float) -> None:
    horizon = Horizon.of(records=1000, batch=100, steps=50)
    records = methods.dp_sgd(clip=CLIP).bind(noise=noise, horizon=horizon, delta=1e-4)
    clients = methods.dp_sgd(clip=CLIP).using(unit=UNIT).bind(noise=noise, horizon=horizon, delta=1e-4)
    run = rounds(clients)
    for _ in range(50):
        run.draw(0)
        run.release()
    spent = run.spent()
    assert spent.certified.epsilon == records.certificate().epsilon == clients.certificate().epsilon
    assert spent.certified.epsilon == pytest.approx(GOLDEN[noise], rel=2e-3)
    assert "add/remove of one client" in str(spent)


def test_the_adaptive_clip_is_charged_and_follows_the_norms() -> None:
    recipe = methods.adaptive_quantile(clip=8.0, quantile=0.5, rate=0.5, count_noise=0.1)
    which = rounds(plan(recipe, noise=1.0, steps=20))
    plain = plan(methods.dp_sgd(clip=8.0), noise=1.0, steps=20)
    assert which.plan.certificate().epsilon > plain.certificate().epsilon
    for _ in range(20):
        for client in which.draw(CLIENTS).tolist():
            sent = which.task.contribution(which.plan, update(torch.full((SIZE,), (client + 1) / 10)))
            assert float(sent.values.norm()) <= 8.0 * which.progress.scale
            assert which.add(client, sent.values, sent.norm)
        which.release()
    median = 0.65 * math.sqrt(SIZE)
    assert 8.0 * which.progress.scale == pytest.approx(median, rel=0.3)


def test_a_client_sends_active_values_only_and_draws_the_mask_itself() -> None:
    which = rounds(plan(methods.random_freeze(clip=CLIP, final_rate=0.7, cooling_epochs=1)))
    drawn = which.draw(CLIENTS)
    task = RoundTask.from_json(which.task.to_json())
    sent = task.contribution(which.plan, update(torch.arange(1.0, SIZE + 1)))
    assert len(sent.values) == 3
    assert sent.norm is None
    assert float(sent.values.norm()) == pytest.approx(CLIP, rel=1e-4)
    which.add(int(drawn[0]), sent.values)
    which.release()
    change = moved(which)
    active = change.nonzero().flatten()
    assert len(active) == 3
    assert torch.allclose(change[active], sent.values.double(), atol=1e-6)
    expected = torch.arange(1.0, SIZE + 1)[active]
    assert torch.allclose(sent.values / sent.values[0], expected / expected[0], rtol=1e-4)


def test_the_server_would_bound_again_what_the_client_bounded() -> None:
    which = rounds()
    which.draw(CLIENTS)
    values = torch.full((SIZE,), 7.0)
    sent = which.task.contribution(which.plan, update(values))
    which.add(0, sent.values)
    which.add(1, values)
    which.release()
    assert torch.allclose(moved(which), 2 * sent.values.double(), rtol=1e-5)


# -- restarts --------------------------------------------------------------------------------------------


def test_a_restart_continues_with_new_keys(tmp_path: Path) -> None:
    ledger, saved = tmp_path / "ledger.jsonl", tmp_path / "checkpoint"
    which, first = plan(noise=1.0), Streams.from_os()
    run = rounds(which, ledger=ledger, streams=first)
    run.draw(CLIENTS)
    run.release()
    run.save(saved)
    after_one = moved(run)
    run.draw(CLIENTS)
    run.release()  # seen by clients, and lost to the checkpoint
    lost = moved(run) - after_one
    run.close()
    with pytest.raises(Refused, match="streams that another run has used"):
        rounds(which, ledger=ledger, resume=saved, streams=first)
    again = rounds(which, ledger=ledger, resume=saved, streams=Streams.from_os())
    assert again.left == 2  # the lost round is not run again
    assert torch.equal(moved(again), after_one)
    again.draw(CLIENTS)
    again.release()
    assert not torch.allclose(moved(again) - after_one, lost)  # no noise is repeated
    assert [entry.step for entry in again.ledger.entries] == [0, 1, 2]
    again.draw(CLIENTS)
    again.release()
    assert again.left == 0
    with pytest.raises(Refused, match="a round that is left"):
        again.draw(CLIENTS)
    again.close()
    charge = read(ledger).charge()
    assert certify(charge, delta=1e-3, relation=which.relation).epsilon == which.certificate().epsilon


def killed_between_charge_and_release(folder: Path) -> None:
    """Run in a child process, which ends when the noise is about to be added."""
    run = rounds(plan(noise=1.0), ledger=folder / "ledger.jsonl", streams=Streams.from_os())
    run.save(folder / "checkpoint")
    run.draw(CLIENTS)
    type(run.plan.mechanism).release = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    run.release()


def test_a_round_that_was_killed_after_its_charge_is_paid_and_not_run_again(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        try:
            killed_between_charge_and_release(tmp_path)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    ledger = tmp_path / "ledger.jsonl"
    assert read(ledger).length == 1
    run = rounds(plan(noise=1.0), ledger=ledger, resume=tmp_path / "checkpoint", streams=Streams.from_os())
    assert run.left == 3
    assert not bool(moved(run).any())  # nothing was released
    assert run.spent().certified.epsilon == plan(noise=1.0).certificate(1).epsilon
    run.close()


def test_a_round_whose_charge_fails_releases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rounds(plan(noise=1.0), ledger=tmp_path / "ledger.jsonl")
    run.draw(CLIENTS)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(run.ledger, "append", full)
    with pytest.raises(OSError, match="full"):
        run.release()
    assert not bool(moved(run).any())
    with pytest.raises(Refused, match="one that failed"):
        run.draw(CLIENTS)
    with pytest.raises(Refused, match="between two rounds"):
        run.save(tmp_path / "checkpoint")
    run.close()


# -- refusals --------------------------------------------------------------------------------------------


def test_what_is_refused(tmp_path: Path) -> None:
    horizon = Horizon.of(records=CLIENTS, batch=6, steps=4)

    def bound(recipe: Recipe) -> Plan:
        return recipe.bind(noise=1.0, horizon=horizon, delta=1e-3)

    flat = methods.dp_sgd(clip=CLIP)
    for which, match in (
        (bound(flat), "protects users"),
        (bound(flat.using(unit=UNIT, sampling=discreet.BallsInBins())), "decides for each client alone"),
        (bound(flat.using(unit=UNIT, sampling=discreet.TruncatedPoisson(8))), "decides for each client alone"),
        (bound(methods.ranked_freeze(clip=CLIP, cooling_epochs=1).using(unit=UNIT)), "from a public key"),
        (bound(methods.d2p2_sgd().using(unit=UNIT)), "independent or correlated Gaussian noise"),
        (flat.using(unit=UNIT).bind(noise=1.0, horizon=Horizon.of_rate(rate=0.1, steps=3), delta=1e-3), "batch size"),
    ):
        with pytest.raises(Refused, match=match):
            rounds(which, ledger=tmp_path / "never")
    assert not (tmp_path / "never").exists()
    run = rounds()
    with pytest.raises(Refused, match="an open round"):
        run.release()
    with pytest.raises(Refused, match="an open round"):
        run.add(0, torch.zeros(SIZE))
    run.draw(CLIENTS)
    with pytest.raises(Refused, match="a round that has ended"):
        run.draw(CLIENTS)
    with pytest.raises(Refused, match="clipping and selection of the server"):
        run.task.contribution(methods.dp_sgd(clip=9.0), update(torch.ones(SIZE)))
    with pytest.raises(Refused, match="an update of bias"):
        run.task.contribution(run.plan, {"weight": torch.ones(2, 4)})
    with pytest.raises(Refused, match="the ledger of the resumed run"):
        rounds(resume=tmp_path / "checkpoint")


# -- given vectors against the engine --------------------------------------------------------------------


@pytest.mark.parametrize(("per_layer", "frozen"), list(itertools.product([False, True], repeat=2)))
def test_given_gradients_are_summed_as_the_engine_sums_them(per_layer: bool, frozen: bool) -> None:
    """The same gradients, once computed by the engine and once given as vectors."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    engine, x = Engine(model), torch.randn(5, 4)
    given = GivenVectors(engine.layout)
    engine.begin(5)
    engine.backward(model(x).square().sum(1))
    given.give(torch.cat(list(engine.rows())))
    groups = [[index] for index in range(4)] if per_layer else None
    mask = None
    if frozen:
        selection = methods.random_freeze(final_rate=0.5, cooling_epochs=1).selection
        context = StepContext(step=0, steps_per_epoch=1, batch=1.0, layout=engine.layout, streams=Streams.seeded(1))
        mask = selection.mask(context)
    assert torch.allclose(given.norms(groups, mask), engine.norms(groups, mask), rtol=1e-4)
    weights = torch.rand(2, 4 if per_layer else 1, 5)
    theirs, ours = engine.zeros(2), given.zeros(2)
    engine.add_weighted(weights, theirs, groups, mask)
    given.add_weighted(weights.double(), ours, groups, mask)
    assert torch.allclose(ours.float(), theirs, atol=1e-5)

    def total(rows: Tensor) -> Tensor:
        return rows.square().sum(0, keepdim=True)

    mapped = given.mapped_sum(total, mask, chunk=2).float()
    assert torch.allclose(mapped, engine.mapped_sum(total, mask, chunk=2), rtol=1e-4, atol=1e-6)
    engine.close()


def test_vectors_of_another_size_are_refused() -> None:
    with pytest.raises(Refused, match="rows of 4 values"):
        GivenVectors(Layout(("w",), ((2, 2),))).give(torch.zeros(1, 5))
