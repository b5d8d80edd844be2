"""The noise of each step against the dense inverse of C, steps that are left out, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import discreet
import loop
from discreet import methods
from discreet.accounting.correlated import Toeplitz, bisr, bsr
from discreet.accounting.events import CorrelatedRun, CyclicPoissonRun, ReshuffledRun
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.engine.engine import Engine
from discreet.methods.dp_ftrl.correlated_noise import HISTORY, CorrelatedNoise, Factorisation, Strategy, Workload
from discreet.methods.dp_ftrl.optimised import log_cost, noise_on_parameters, optimised
from discreet.stages.clipping import AutoS
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon
from discreet.stages.schedule import Linear
from discreet.training.step import PrivateStep, RunState

REPLACE = Neighbouring.REPLACE_ONE
CLIP = 0.5
MATRICES = [CorrelatedNoise((1.0,)), CorrelatedNoise((2.0, 1.0, 0.5)), CorrelatedNoise(bisr(3), inverse=True)]


def own(sampling: Any, **options: Any) -> Recipe:
    return methods.dp_ftrl(clip=CLIP, **options).using(sampling=sampling, relation=REPLACE)


def releases(plan: Plan, steps: list[int], seed: int, state: RunState | None = None) -> np.ndarray[Any, Any]:
    """The noisy sums of empty batches at these steps: nothing but noise."""
    net = loop.model()
    engine, streams = Engine(net), Streams.seeded(seed)
    state, out = state or RunState(), []
    try:
        for step in steps:
            state.step = step
            one = PrivateStep(plan, engine, state, streams, lambda event, step: None, World.current())
            out.append((one.release().value * plan.horizon.size.batch).double().numpy())
    finally:
        engine.close()
    return np.stack(out)


def drawn(steps: int, size: int, seed: int) -> np.ndarray[Any, Any]:
    """The z of each step, from its own sub-stream."""
    noise = Streams.seeded(seed).noise
    return np.stack([noise.at(step).normal(size, dtype=torch.float64).numpy() for step in range(steps)])


def plan_with(mechanism: CorrelatedNoise) -> Plan:
    return loop.plan(methods.dp_ftrl(clip=CLIP).using(mechanism=mechanism))


@pytest.mark.parametrize("mechanism", MATRICES, ids=str)
def test_a_run_has_the_noise_of_the_dense_inverse(mechanism: CorrelatedNoise) -> None:
    plan = plan_with(mechanism)
    found = releases(plan, list(range(7)), seed=3)
    column = mechanism.matrix.column(7)
    dense = np.array([[column[row - col] if row >= col else 0.0 for col in range(7)] for row in range(7)])
    expected = np.linalg.solve(dense, drawn(7, found.shape[1], seed=3)) * plan.noise * CLIP
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    if len(mechanism.coefficients) > 1:  # negative control: independent noise of the same streams is something else
        assert np.abs(found[1:] - drawn(7, found.shape[1], seed=3)[1:] * plan.noise * CLIP).max() > 0.1


@pytest.mark.parametrize("mechanism", MATRICES[1:], ids=str)
def test_steps_that_are_left_out_have_noise_too(mechanism: CorrelatedNoise) -> None:
    """Their z enters later noise: without it the distances of the certificate would shrink."""
    plan = plan_with(mechanism)
    whole = releases(plan, list(range(7)), seed=3)
    np.testing.assert_array_equal(releases(plan, [0, 3, 6], seed=3), whole[[0, 3, 6]])


def test_no_step_is_taken_twice() -> None:
    plan = plan_with(MATRICES[1])
    with pytest.raises(Refused, match="take the steps in order"):
        releases(plan, [0, 1, 1], seed=3)
    with pytest.raises(Refused, match="the noise of earlier steps, got none at step 4"):
        releases(plan, [4], seed=3)  # a lost history must be charged, so it is never replaced silently


def test_the_history_is_hidden_and_holds_as_many_vectors_as_it_needs() -> None:
    for mechanism, kept in zip(MATRICES, (0, 2, 2), strict=True):
        state = RunState()
        releases(plan_with(mechanism), list(range(5)), seed=3, state=state)
        assert repr(state.secrets[HISTORY]) == "PrivateState(<hidden>)"
        assert len(state.secrets[HISTORY].reveal_to_mechanism()._past) == kept


def test_the_history_is_not_rounded() -> None:
    """C times the noise is z, which is independent of step and record. A rounded history would add what it left off."""
    steps, size, mechanism = 200, 50, CorrelatedNoise((1.0, 0.99, 0.98))
    assert np.abs(mechanism.matrix.noise(steps)).sum() > 20  # its inverse forgets slowly
    history = mechanism.recall((), size, 0)[HISTORY].reveal_to_mechanism()
    noise = np.stack([history.at(step, Streams.seeded(3).noise).numpy() for step in range(steps)])
    z = noise.copy()
    for lag, weight in enumerate(mechanism.coefficients[1:], start=1):
        z[lag:] += weight * noise[:-lag]
    assert np.abs(z - drawn(steps, size, seed=3)).max() < 1e-13


def test_a_recalled_history_goes_on_as_if_nothing_had_happened() -> None:
    for mechanism in MATRICES:
        plan = plan_with(mechanism)
        whole = releases(plan, list(range(7)), seed=3)
        old = Streams.seeded(3).noise
        secrets = mechanism.recall((old.at(step) for step in range(5)), whole.shape[1], 5)
        found = releases(plan, [5, 6], seed=3, state=RunState(secrets=secrets))
        np.testing.assert_array_equal(found, whole[5:])


# -- plans -------------------------------------------------------------------------------------------------------


def test_events_by_sampler() -> None:
    horizon = Horizon.of(records=1000, batch=100, epochs=3)

    def event(recipe: Recipe, horizon: Horizon = horizon) -> Any:
        plan = recipe.bind(noise=4.0, horizon=horizon, delta=1e-5)
        ((whole, count),) = plan.events()
        assert count == 1
        assert plan.event_at(0) == whole
        assert plan.event_at(1).kind == "free"
        assert plan.events(steps=1) == plan.events()  # a run that ends early has spent as much
        return whole

    three = {"bands": 3, "strategy": Strategy.BSR}
    spread = CorrelatedRun(noise=4.0, coefficients=bsr(3), inverse=False, steps=30, most=3, apart=10)
    assert event(methods.dp_ftrl(**three)) == spread
    assert event(own(discreet.FixedOrder(), **three)) == spread
    stream = Horizon.of(records=3000, batch=100, epochs=1)
    assert event(own(discreet.OnePass(), **three), stream) == CorrelatedRun(
        noise=4.0, coefficients=bsr(3), inverse=False, steps=30, most=1, apart=30
    )
    assert event(own(discreet.Reshuffled(), **three)) == ReshuffledRun(
        noise=4.0, coefficients=bsr(3), inverse=False, steps=30, steps_per_epoch=10
    )
    banded = event(methods.bandmf(bands=4))
    assert isinstance(banded, CyclicPoissonRun)
    assert (banded.rate, banded.parts, len(banded.coefficients)) == (0.4, 4, 4)
    most = event(methods.bandmf(bands=64))  # as many parts as batches fit into the records
    assert (most.rate, most.parts, len(most.coefficients)) == (1.0, 10, 10)


def test_one_band_of_fixed_bins_costs_what_balls_in_bins_cost() -> None:
    horizon = Horizon.of(records=1000, batch=100, epochs=3)
    one = methods.dp_ftrl(bands=1).bind(noise=4.0, horizon=horizon, delta=1e-5)
    balls = methods.dp_sgd().using(sampling=discreet.BallsInBins()).bind(noise=4.0, horizon=horizon, delta=1e-5)
    assert one.certificate().epsilon == pytest.approx(balls.certificate().epsilon, rel=1e-9)


def test_the_certificate_says_what_is_checked_and_what_is_the_users_word() -> None:
    horizon = Horizon.of(records=1000, batch=100, epochs=3)

    def conditions(recipe: Recipe) -> tuple[str, ...]:
        return recipe.bind(noise=4.0, horizon=horizon, delta=1e-5).certificate().conditions

    once = "if a pass over the loader gives no record twice"
    assert conditions(methods.dp_ftrl()) == ()
    assert conditions(own(discreet.FixedOrder())) == (once,)
    unchecked = conditions(own(discreet.FixedOrder(checked=False)))
    assert unchecked == (once, "if every pass over the loader has the same order")
    assert conditions(own(discreet.Reshuffled())) == (once,)
    horizon = Horizon.of(records=1000, batch=100, epochs=1)
    assert conditions(own(discreet.OnePass())) == ("if the stream gives no record twice",)


def test_strategies_by_name() -> None:
    """As a stored configuration gives them."""
    for strategy in Strategy:
        assert methods.dp_ftrl(strategy=str(strategy)) == methods.dp_ftrl(strategy=strategy)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="a member of Strategy, got 'bsr'"):
        Factorisation("bsr", bands=2)  # type: ignore[arg-type]


def test_a_stream_of_several_epochs_is_refused() -> None:
    """Its records come back, so the price of one step each would be too low."""
    twice = own(discreet.OnePass()).bind(noise=4.0, horizon=Horizon.of(records=1000, batch=100, steps=11), delta=1e-5)
    with pytest.raises(Refused, match="at most 10 steps, which are one epoch"):
        twice.certificate()
    with pytest.raises(Refused, match="at most 10 steps"):
        own(discreet.OnePass()).for_budget(epsilon=3.0, delta=1e-5, records=1000, batch=100, epochs=2)


def test_every_clip_with_one_query_may_be_used() -> None:
    plan = loop.plan(methods.dp_ftrl().using(bounder=AutoS(clip=CLIP)))
    assert math.isfinite(plan.certificate().epsilon)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"sampling": discreet.Poisson()}, "a sampler for correlated noise, got Poisson"),
        ({"sampling": discreet.OwnLoader()}, "a sampler for correlated noise, got OwnLoader"),
        ({"sampling": discreet.BallsInBins()}, "a sampler for correlated noise, got BallsInBins"),
        ({"schedule": Linear(last=0.5, periods=3)}, "Constant, got Linear"),
        ({"selection": methods.random_freeze().selection}, "Everything, got RandomFreeze"),
        ({"bounder": methods.adaptive_quantile().bounder}, "a bounder with one query"),
        ({"bounder": methods.two_level().bounder}, "a bounder with one query"),
        ({"bounder": methods.gep().bounder}, "a bounder with one query"),
        ({"mechanism": methods.dp_sgd().mechanism}, "CorrelatedNoise or Factorisation, got GaussianNoise"),
        ({"relation": REPLACE}, "a relation that FixedBins is proven for"),
        ({"sampling": discreet.FixedOrder()}, "a relation that FixedOrder is proven for"),
        ({"acceptance": methods.sur().acceptance}, "Poisson or FullBatch sampling for tested updates"),
    ],
)
def test_stages_without_a_proof_are_refused(stages: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        methods.dp_ftrl().using(**stages)


def test_samplers_of_correlated_noise_have_no_price_for_other_mechanisms() -> None:
    for sampling in (discreet.FixedBins(), discreet.CyclicPoisson(2)):
        with pytest.raises(Refused, match=r"correlated noise for .*methods.dp_ftrl\(bands=1\)"):
            loop.plan(methods.dp_sgd().using(sampling=sampling)).certificate()
    with pytest.raises(Refused, match="a banded C, got a banded inverse"):
        loop.plan(methods.dp_ftrl(bands=2).using(sampling=discreet.CyclicPoisson())).certificate()
    plan = loop.plan(methods.dp_ftrl(bands=2, strategy=Strategy.BSR).using(sampling=discreet.CyclicPoisson(parts=7)))
    with pytest.raises(Refused, match=r"parts \* batch <= records"):
        plan.certificate()


# -- samplers ----------------------------------------------------------------------------------------------------


def test_fixed_bins_put_every_record_at_one_place_of_every_epoch() -> None:
    horizon = Horizon.of(records=600, batch=60, epochs=4)
    drawn = list(discreet.FixedBins().batches(600, horizon, Streams.seeded(1).sampling, 0))
    assert sorted(np.concatenate(drawn[:10]).tolist()) == list(range(600))
    for step, batch in enumerate(drawn):
        np.testing.assert_array_equal(batch, drawn[step % 10])
    sizes = [len(batch) for batch in drawn[:10]]
    assert 30 < min(sizes) < max(sizes) < 95  # 600 independent draws, within 5 deviations
    again = list(discreet.FixedBins().batches(600, horizon, Streams.seeded(1).sampling, 13))
    np.testing.assert_array_equal(again[0], drawn[13])  # from any step on, the same assignment
    fewer = list(discreet.FixedBins().batches(599, horizon, Streams.seeded(1).sampling, 0))
    for with_it, without in zip(drawn, fewer, strict=True):  # the last record moves no other
        np.testing.assert_array_equal(with_it[with_it != 599], without)


def test_cyclic_poisson_samples_one_part_after_the_other() -> None:
    horizon = Horizon.of(records=600, batch=60, steps=900)
    drawn = list(discreet.CyclicPoisson(3).batches(600, horizon, Streams.seeded(1).sampling, 0))
    parts = [set(np.concatenate(drawn[part::3]).tolist()) for part in range(3)]
    assert sum(map(len, parts)) == 600
    assert set.union(*parts) == set(range(600))
    joined = sum(map(len, drawn))
    assert abs(joined - 900 * 60) < 5 * math.sqrt(900 * 60)  # 300 samples of each part at rate 0.3
    assert len({tuple(batch.tolist()) for batch in drawn}) == len(drawn)
    again = list(discreet.CyclicPoisson(3).batches(600, horizon, Streams.seeded(1).sampling, 500))
    np.testing.assert_array_equal(again[0], drawn[500])


# -- coefficients ------------------------------------------------------------------------------------------------


def test_optimised_coefficients_fall_and_beat_bsr_and_independent_noise() -> None:
    steps, worst = 120, tuple(range(0, 120, 12))
    for workload in (Workload(), Workload(momentum=0.9), Workload(shrinkage=0.05, last_rate=0.1)):
        found = optimised(12, steps, worst, workload)
        assert all(one >= other >= 0 for one, other in itertools.pairwise(found))

        def cost(coefficients: tuple[float, ...], workload: Workload = workload) -> float:
            matrix = Toeplitz(coefficients)
            return noise_on_parameters(matrix.noise(steps), workload) * matrix.separated(steps=steps, most=10, apart=12)

        assert cost(found) < min(cost(bsr(12)), cost((1.0,)))


def test_the_gradient_of_the_cost() -> None:
    workload, at = Workload(0.9, 0.01, 0.2), np.array([1.0, 0.6, 0.3, 0.1])
    _, gradient = log_cost(at, 50, (0, 10, 20), workload)
    for index in range(4):
        low, high = at.copy(), at.copy()
        low[index] -= 1e-5
        high[index] += 1e-5
        slope = log_cost(high, 50, (0, 10, 20), workload)[0] - log_cost(low, 50, (0, 10, 20), workload)[0]
        assert gradient[index] == pytest.approx(slope / 2e-5, rel=1e-4)
