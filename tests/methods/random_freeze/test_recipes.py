"""Random and ranked freeze in a run: DP-SGD's price, noise on all that has signal, frozen means frozen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Subset

import loop
import two_processes
from discreet import methods
from discreet.accounting.accountants import rdp_epsilon
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.engine.layout import Mask
from discreet.methods import METHODS
from discreet.methods.random_freeze import masks
from discreet.methods.random_freeze.selection import Granularity, RandomFreeze, RankedFreeze, Refresh
from discreet.stages import noise as gaussian
from discreet.stages.noise import GaussianNoise
from discreet.stages.plan import Recipe
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, Horizon, OwnLoader
from discreet.stages.selection import Frozen, Order
from discreet.stages.values import Released, StepContext
from discreet.training.step import PrivateStep, RunState
from freezing import PER_EPOCH, active_of, coverage_contract, frozen_contract, steps_of

ALPHA = 1e-6  # false-alarm rate of every statistical test here
HALF = methods.random_freeze(clip=0.5, final_rate=0.5, cooling_epochs=1)
RANKED = methods.ranked_freeze(clip=0.5, final_rate=0.5, cooling_epochs=1)


# What it costs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [HALF, RANKED, methods.random_freeze(), methods.ranked_freeze()])
@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (None, Neighbouring.ADD_REMOVE),
        (FixedSize(), Neighbouring.REPLACE_ONE),
        (BallsInBins(), Neighbouring.ADD_REMOVE),
        (OwnLoader(), Neighbouring.ADD_REMOVE),
    ],
)
def test_the_certificate_is_that_of_dp_sgd_to_the_last_digit(
    recipe: Recipe, sampling: Any, relation: Neighbouring
) -> None:
    stages = {} if sampling is None else {"sampling": sampling, "relation": relation}
    horizon = Horizon.of(records=6000, batch=100, epochs=2)
    made = [
        dataclasses.replace(which, **stages).bind(noise=1.1, horizon=horizon, delta=1e-5)
        for which in (recipe, methods.dp_sgd())
    ]
    assert made[0].charge().certified == made[1].charge().certified
    assert made[0].certificate() == made[1].certificate()


def test_the_claim_is_poisson_accounting_whatever_the_sampling() -> None:
    horizon = Horizon.of(records=60_000, batch=1020, epochs=10)
    for recipe in (methods.random_freeze(), methods.ranked_freeze()):
        poisson = recipe.bind(noise=1.1, horizon=horizon, delta=1e-5)
        own = dataclasses.replace(poisson, sampling=OwnLoader())
        claims = [plan.charge().claimed for plan in (poisson, own)]
        assert claims[0] == claims[1]
        assert claims[0] is not None
        expected = rdp_epsilon(poisson.charge(), delta=1e-5, relation=Neighbouring.ADD_REMOVE)
        assert claims[0].epsilon(1e-5) == expected
        assert own.certificate().epsilon > expected  # shuffled batches are not Poisson: the claim falls short


def test_choices_come_back_from_text() -> None:
    chosen = {"granularity": Granularity.ROWS, "refresh": Refresh.STEP, "order": Order.CLIP_THEN_FREEZE}
    texts = json.loads(json.dumps(chosen))
    assert methods.random_freeze(**texts).digest == methods.random_freeze(**chosen).digest  # type: ignore[arg-type]
    assert methods.random_freeze(**chosen).digest != methods.random_freeze().digest  # type: ignore[arg-type]
    assert methods.ranked_freeze(frozen="coasting").selection.frozen is Frozen.COASTING  # type: ignore[arg-type]


# No signal without noise ----------------------------------------------------------------------------------

PLANS = {
    f"{unit.value} {refresh.value} {order.value}": dataclasses.replace(
        HALF, selection=RandomFreeze(final_rate=0.5, granularity=unit, refresh=refresh, order=order)
    )
    for unit in Granularity
    for refresh in Refresh
    for order in Order
} | {"ranked": RANKED}


@pytest.mark.parametrize("name", PLANS)
def test_no_signal_without_noise(name: str) -> None:
    coverage_contract(PLANS[name])


def test_the_check_sees_noise_on_another_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the fault of a mask that changes between the sum and the noise."""
    real = gaussian._add_noise

    def stale(value: Tensor, std: float, context: StepContext) -> Tensor:
        index = torch.arange(len(value))[::2]
        dense = value.clone()
        dense[index] = context.streams.noise.add_normal_(value[index], std)
        return dense

    monkeypatch.setattr(gaussian, "_add_noise", stale)
    with pytest.raises(AssertionError, match="without noise"):
        coverage_contract(PLANS["elements step freeze-then-clip"])
    monkeypatch.setattr(gaussian, "_add_noise", real)
    coverage_contract(PLANS["elements step freeze-then-clip"])


def test_a_sum_on_other_coordinates_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that forgets the mask puts signal on frozen coordinates: the mechanism never reads them."""
    real = Engine.add_weighted

    def forgetful(self: Engine, weights: Tensor, totals: Tensor, groups: Any, mask: Any, *, is_last: bool) -> None:
        real(self, weights, totals, groups, None, is_last=is_last)

    monkeypatch.setattr(Engine, "add_weighted", forgetful)
    for released in steps_of(loop.plan(HALF, noise=1.0)):
        assert not bool(released.value[~active_of(released)].any())


def test_one_mask_serves_a_logical_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked once a batch, before its first micro-batch; norms, sums, noise and release all use that mask."""
    asked: list[Mask | None] = []
    used: list[Any] = []
    real, norms, add = RandomFreeze.mask, Engine.norms, Engine.add_weighted

    def mask(self: RandomFreeze, context: StepContext) -> Mask | None:
        masks.cached_mask.cache_clear()  # another object at every call
        asked.append(real(self, context))
        return asked[-1]

    monkeypatch.setattr(RandomFreeze, "mask", mask)
    monkeypatch.setattr(Engine, "norms", lambda self, g, m: used.append(m) or norms(self, g, m))

    def add_weighted(self: Engine, weights: Tensor, totals: Tensor, groups: Any, mask: Any, *, is_last: bool) -> None:
        used.append(mask)
        add(self, weights, totals, groups, mask, is_last=is_last)

    monkeypatch.setattr(Engine, "add_weighted", add_weighted)
    plan = loop.plan(PLANS["elements step freeze-then-clip"], steps=3)
    released = steps_of(plan, micro=7)
    assert len(asked) == 3
    per_step = 2 * 5  # five micro-batches
    for step, one in enumerate(asked):
        assert released[step].mask is one
        assert all(own is one for own in used[step * per_step : (step + 1) * per_step])
    assert len({tuple(active_of(own).tolist()) for own in released}) == 3


def test_the_noise_is_of_the_stated_size_on_active_coordinates() -> None:
    net = nn.Linear(100, 100)
    for order in Order:
        plan = dataclasses.replace(HALF, selection=RandomFreeze(final_rate=0.5, order=order))
        (released,) = steps_of(loop.plan(plan, noise=1.5, steps=1), records=0, net=net)
        found = (released.active * loop.BATCH).double().numpy()
        assert len(found) == round(0.5 * 10_100)
        assert stats.kstest(found / (1.5 * 0.5), "norm").pvalue > ALPHA
        assert stats.kstest(found / (1.5 * 0.4), "norm").pvalue < ALPHA  # negative control


def test_only_active_noise_is_drawn() -> None:
    """r = 0.9 spends a tenth of the noise: frozen coordinates cost none."""
    spent = []
    for rate in (0.0, 0.9):
        net, streams = nn.Linear(999, 1000), Streams.seeded(1)
        engine = Engine(net)
        plan = loop.plan(methods.random_freeze(final_rate=rate, cooling_epochs=1))
        PrivateStep(plan, engine, RunState(), streams, lambda event, step: None, World.current()).release()
        spent.append(streams.noise.spent)
        engine.close()
    assert spent[1] == spent[0] // 10


@pytest.mark.parametrize("name", PLANS)
def test_a_record_moves_a_masked_sum_by_at_most_the_bound(name: str) -> None:
    """Leave-one-out, without noise: same masks, one record fewer."""
    plan = loop.plan(PLANS[name], noise=0.0, steps=1 if name == "ranked" else 7)
    for more, fewer in zip(steps_of(plan, records=11), steps_of(plan, records=10), strict=True):
        assert torch.equal(active_of(more), active_of(fewer))
        assert float((more.value - fewer.value).norm()) * loop.BATCH <= 0.5 * (1 + 1e-5)


def test_freezing_first_leaves_more_of_the_gradient() -> None:
    """The two orders differ: the paper's clips the active part, posterior freeze the whole."""
    made = {
        order: dataclasses.replace(
            methods.random_freeze(clip=0.05), selection=RandomFreeze(final_rate=0.8, order=order)
        )
        for order in Order
    }
    norms = {order: steps_of(loop.plan(plan, noise=0.0, steps=1), records=1)[0] for order, plan in made.items()}
    first, after = (float(norms[order].value.norm()) * loop.BATCH for order in Order)
    assert first == pytest.approx(0.05, rel=1e-4)
    assert after < 0.9 * first


def test_micro_batches_do_not_change_the_result() -> None:
    for plan in PLANS.values():
        whole_batch, cut = (steps_of(loop.plan(plan, noise=0.0), micro=micro) for micro in (30, 4))
        for one, other in zip(whole_batch, cut, strict=True):
            assert torch.allclose(one.value, other.value, atol=1e-6)


# Ranked ---------------------------------------------------------------------------------------------------


def test_the_ranking_is_a_function_of_releases_and_the_public_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed from what left the mechanism alone, without engine, data or noise: the same masks."""
    seen: list[tuple[Released, float, int]] = []
    real = RankedFreeze.observe

    def observe(self: RankedFreeze, released: Released, std: float, context: StepContext) -> None:
        seen.append((released, std, context.step))
        real(self, released, std, context)

    monkeypatch.setattr(RankedFreeze, "observe", observe)
    plan = loop.plan(RANKED, noise=1.0, steps=3 * PER_EPOCH)
    steps_of(plan, seed=5)
    monkeypatch.setattr(RankedFreeze, "observe", real)
    memory: dict[str, Tensor] = {}
    public = Streams.seeded(5)
    frozen = 0
    for released, std, step in seen:
        now = StepContext(
            step=step,
            steps_per_epoch=PER_EPOCH,
            batch=loop.BATCH,
            layout=released.layout,
            streams=public,
            memory=memory,
        )
        mask = plan.selection.mask(now)
        again = Released.on(mask, released.value.clone(), released.layout, 1.0)
        assert torch.equal(active_of(again), active_of(released))
        assert std == 1.0 * 0.5 / loop.BATCH
        frozen += int((~active_of(again)).sum())
        plan.selection.observe(again, std, now)
    assert frozen > 0
    assert public.noise.spent == public.sampling.spent == 0


# In a run -------------------------------------------------------------------------------------------------


NEEDS_ALL = ("two-level", "geodp-sound")  # they combine whole vectors, and refuse a mask


def gaussian_methods() -> list[str]:
    """Every method with Gaussian noise whose updates are all kept."""
    recipes = {name: method.recipe() for name, method in METHODS.items()}
    return [
        name
        for name, recipe in recipes.items()
        if isinstance(recipe.mechanism, GaussianNoise) and not recipe.has_tests and name not in NEEDS_ALL
    ]


@pytest.mark.parametrize("name", gaussian_methods())
@pytest.mark.parametrize("selection", [HALF.selection, RANKED.selection], ids=["random", "ranked"])
def test_freezing_composes_with_every_bounder(name: str, selection: Any) -> None:
    recipe = dataclasses.replace(METHODS[name].recipe(), selection=selection)
    moved: list[int] = []
    run = loop.private(which=loop.plan(recipe, steps=2 * PER_EPOCH), optimizer=torch.optim.Adam)
    before = loop.weights(run.model)
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            now = loop.weights(run.model)
            moved.append(int((now != before).sum()))
            before = now
    assert moved[-1] == round(0.5 * len(before))
    assert run.ledger.charge().certified == run.plan.charge().certified


@pytest.mark.parametrize("name", [name for name in NEEDS_ALL if name in METHODS])
def test_what_needs_all_coordinates_is_refused(name: str) -> None:
    """What is defined on whole vectors says so."""
    with pytest.raises(Refused, match="all coordinates"):
        loop.train(loop.private(which=loop.plan(dataclasses.replace(METHODS[name].recipe(), selection=HALF.selection))))


@pytest.mark.parametrize("refresh", Refresh)
def test_frozen_parameters_and_state_stay_in_a_run(refresh: Refresh) -> None:
    recipe = methods.random_freeze(final_rate=0.5, cooling_epochs=1, refresh=refresh)
    frozen_contract(recipe)
    coasting = dataclasses.replace(recipe.selection, frozen=Frozen.COASTING)  # type: ignore[type-var]
    with pytest.raises(AssertionError, match="weights moves"):  # negative control
        frozen_contract(recipe.using(selection=coasting))


def test_a_checkpoint_inside_an_epoch_holds_whole_state(tmp_path: Path) -> None:
    """While a mask serves, the state of the optimizer lies packed: files and resumed runs never see that."""

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.1)

    ledger, state = tmp_path / "ledger.jsonl", tmp_path / "state.pt"
    run = loop.private(which=loop.plan(HALF), ledger=ledger, optimizer=adam)
    loop.train(run, most=PER_EPOCH + 2)
    assert run.optimizer.state[next(run.model.parameters())]["exp_avg"].dim() == 1  # packed
    run.save(state)
    run.close()
    saved = torch.load(state, weights_only=True)["optimizer"]["state"]
    for number, parameter in enumerate(run.model.parameters()):
        assert saved[number]["exp_avg"].shape == parameter.shape
    again = loop.private(which=loop.plan(HALF), ledger=ledger, resume=state, seed=8, optimizer=adam)
    for number, held in again.optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, saved[number][name]) for name, value in held.items())
    loop.train(again)
    assert again.progress.step == loop.STEPS


def test_a_closed_run_leaves_an_ordinary_optimizer() -> None:
    """Nobody asked for its state: closing makes it whole, and frozen and active values are where they belong."""
    run = loop.private(which=loop.plan(HALF))
    loop.train(run, most=PER_EPOCH + 2)
    first, state = next(run.model.parameters()), run.optimizer.state
    packed = state[first]["momentum_buffer"]
    assert packed.dim() == 1  # the state of its active coordinates alone
    run.close()
    for parameter in run.model.parameters():
        assert state[parameter]["momentum_buffer"].shape == parameter.shape
    assert torch.isin(packed, state[first]["momentum_buffer"]).all()
    loss = loop.losses(run.model, *loop.data().tensors).mean()
    loss.backward()
    run.optimizer.step()


def test_a_resumed_run_keeps_what_the_ranking_remembers(tmp_path: Path) -> None:
    """Memory holds released values; masks of a random freeze are not in the file, and are keyed afresh."""
    ledger, state = tmp_path / "ledger.jsonl", tmp_path / "state.pt"
    plan = loop.plan(RANKED, steps=3 * PER_EPOCH)
    run = loop.private(which=plan, ledger=ledger)
    loop.train(run, most=PER_EPOCH + 2)
    run.save(state)
    run.close()
    again = loop.private(which=plan, ledger=ledger, resume=state, seed=8)
    assert again.progress.step == run.progress.step
    assert set(again.progress.memory) == {masks.EPOCH, masks.ACTIVE, masks.TOTAL, masks.VARIANCE}
    for name, value in run.progress.memory.items():
        assert torch.equal(again.progress.memory[name], value)
    active = run.progress.memory[masks.ACTIVE].clone()
    steps = iter(again)
    x, y = next(steps)
    assert torch.equal(again.progress.memory[masks.ACTIVE], active)  # the epoch keeps its mask
    again.step(loop.losses(again.model, x, y))
    for x, y in steps:
        again.step(loop.losses(again.model, x, y))
    assert again.ledger.charge().certified == plan.charge().certified
    assert not torch.equal(again.progress.memory[masks.ACTIVE], active)
    random = loop.private(which=loop.plan(HALF))
    loop.train(random)
    assert random.progress.memory == {}


def test_what_was_saved_is_not_changed_by_going_on(tmp_path: Path) -> None:
    """A second resume from the same file finds the same memory: nothing in it is updated in place."""
    ledger, state = tmp_path / "ledger.jsonl", tmp_path / "state.pt"
    run = loop.private(which=loop.plan(RANKED), ledger=ledger)
    loop.train(run, most=2)
    held = {name: value.clone() for name, value in run.progress.memory.items()}
    run.save(state)
    loop.train(run, most=4)
    run.close()
    memory = torch.load(state, weights_only=True)["memory"]
    assert all(torch.equal(memory[name], value) for name, value in held.items())


def _work(rank: int, place: str) -> None:
    torch.set_num_threads(1)
    two_processes.meet(rank, place)
    plan = loop.plan(dataclasses.replace(HALF, sampling=FullBatch()), batch=60, noise=0.0, steps=3)
    run = loop.private(which=plan, streams=Streams.from_os(), dataset=Subset(loop.data(), range(rank, 60, 2)))
    before, moved = loop.weights(run.model), []
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            moved.append((loop.weights(run.model) != before).tolist())
            before = loop.weights(run.model)
    key = run.streams.mask.fingerprint
    found = {"key": key, "weights": loop.weights(run.model).tolist(), "moved": moved}
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    two_processes.part()


@pytest.mark.slow
def test_processes_share_one_mask(tmp_path: Path) -> None:
    """With keys of the operating system: the mask is that of the first, whose noise must cover all signal."""
    mp.spawn(_work, (str(tmp_path),), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert [sum(step) for step in first["moved"]] == [22] * 3
