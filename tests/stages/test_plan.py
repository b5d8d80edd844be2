"""Plans: what they refuse, and that their price is derived from their stages."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from discreet import methods
from discreet.accounting.charges import Charge
from discreet.accounting.events import BallsInBinsEpoch as BallsInBinsEvent
from discreet.accounting.events import CountQuery, Gaussian, PoissonSampled, Queries, WithoutReplacement
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.methods.dicesgd.stages import ErrorFeedback, FeedbackClip, TwoLevel
from discreet.methods.dp_ftrl.correlated_noise import CorrelatedNoise, Factorisation, Strategy
from discreet.methods.geodp.stages import Polar
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.clipping import FlatClip
from discreet.stages.participation import FixedBins
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, Horizon, OwnLoader, Poisson, TruncatedPoisson
from discreet.stages.schedule import Period, Schedule, Table
from discreet.training.private import Private

HORIZON = Horizon.of(records=1000, batch=50, steps=45)


def bound(recipe: Recipe | None = None, noise: float = 1.5, **changes: Any) -> Plan:
    recipe = (recipe or methods.dp_sgd()).using(**changes)
    return recipe.bind(noise=noise, horizon=HORIZON, delta=1e-5)


# Budgets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_noise_of_a_budget_is_on_the_safe_side_and_close(epsilon: float) -> None:
    plan = methods.dp_sgd().for_budget(epsilon=epsilon, delta=1e-5, records=1000, batch=50, epochs=2)
    assert 0.99 * epsilon <= plan.certificate().epsilon <= epsilon
    assert plan.horizon.steps == 40


def test_the_count_query_costs_noise() -> None:
    budget: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "records": 1000, "batch": 50, "steps": 20}
    plain = methods.dp_sgd().for_budget(**budget).noise
    adaptive = methods.adaptive_quantile(count_noise=2.0).for_budget(**budget)
    assert adaptive.noise > 1.01 * plain
    assert adaptive.certificate().epsilon <= 2.0


def test_no_noise_is_no_privacy() -> None:
    assert math.isinf(bound(noise=0.0).certificate().epsilon)


def test_epsilon_grows_with_steps() -> None:
    plan = bound()
    epsilons = [plan.certificate(steps).epsilon for steps in (0, 1, 10, 45)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == 0
    assert len(set(epsilons)) == 4


# The price comes from the stages --------------------------------------------------------------------------


def test_dp_sgd_is_billed_as_sampled_gaussians() -> None:
    assert bound().charge() == Charge(((PoissonSampled(0.05, Gaussian(1.5)), 45),))


def test_the_count_query_is_billed_on_the_same_sample() -> None:
    plan = bound(methods.adaptive_quantile(count_noise=4.0))
    both = Queries((Gaussian(1.5), CountQuery(4.0)))
    assert plan.charge() == Charge(((PoissonSampled(0.05, both), 45),))
    assert both.whitened.noise == pytest.approx((1.5**-2 + 8.0**-2) ** -0.5)


def test_two_sums_of_one_sample_cost_what_one_costs() -> None:
    plan = bound(Recipe(method="two", bounder=TwoLevel(clip=1.0, residual=9.0, share=1.3)))
    ((event, count),) = plan.charge().certified
    assert isinstance(event, PoissonSampled)
    assert isinstance(event.event, Queries)
    assert event.event.whitened.noise == pytest.approx(1.5)
    assert count == 45


def test_a_schedule_is_billed_step_by_step() -> None:
    plan = bound(schedule=Table((1.0, 0.5, 2.0), Period.EPOCH))
    assert plan.noise_at(19) == 1.5
    assert plan.noise_at(20) == 0.75
    assert plan.charge() == Charge(
        (
            (PoissonSampled(0.05, Gaussian(1.5)), 20),
            (PoissonSampled(0.05, Gaussian(0.75)), 20),
            (PoissonSampled(0.05, Gaussian(3.0)), 5),
        )
    )


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (Poisson(), Neighbouring.ADD_REMOVE),
        (BallsInBins(), Neighbouring.ADD_REMOVE),
        (FixedSize(), Neighbouring.REPLACE_ONE),
        (OwnLoader(), Neighbouring.ADD_REMOVE),
        (OwnLoader(), Neighbouring.REPLACE_ONE),
    ],
)
def test_the_charges_of_all_steps_are_the_charge_of_the_run(sampling: Any, relation: Neighbouring) -> None:
    plan = bound(sampling=sampling, relation=relation)
    assert sum((Charge.of(plan.event_at(step)) for step in range(45)), Charge()) == plan.charge()
    assert 0 < plan.certificate().epsilon < math.inf


def test_sampling_helps_and_replacing_costs_more() -> None:
    epsilon = {
        "poisson": bound().certificate().epsilon,
        "own": bound(sampling=OwnLoader()).certificate().epsilon,
        "own, replace": bound(sampling=OwnLoader(), relation=Neighbouring.REPLACE_ONE).certificate().epsilon,
        "fixed": bound(sampling=FixedSize(), relation=Neighbouring.REPLACE_ONE).certificate().epsilon,
    }
    # A loader that nobody knows may move the other records when one is added, so it is billed as a replacement.
    assert epsilon["poisson"] < epsilon["fixed"] < epsilon["own"] <= epsilon["own, replace"]


def test_what_charges_pay_for() -> None:
    assert [bound().steps_paid(charges) for charges in (0, 7, 45)] == [0, 7, 45]
    balls = bound(sampling=BallsInBins())
    assert [balls.steps_paid(charges) for charges in (0, 1, 2, 3)] == [0, 20, 40, 45]
    assert balls.charge() == Charge(((BallsInBinsEvent(1, Gaussian(1.5)), 3),))


def test_fixed_size_is_billed_with_the_numbers_of_the_horizon() -> None:
    plan = bound(sampling=FixedSize(), relation=Neighbouring.REPLACE_ONE)
    assert plan.event_at(3) == WithoutReplacement(1000, 50, Gaussian(1.5))


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (Poisson(), Neighbouring.REPLACE_ONE),
        (BallsInBins(), Neighbouring.REPLACE_ONE),
        (FixedSize(), Neighbouring.ADD_REMOVE),
    ],
)
def test_a_relation_without_a_proof_is_refused(sampling: Any, relation: Neighbouring) -> None:
    with pytest.raises(Refused, match="a relation that"):
        Recipe(method="x", bounder=FlatClip(1.0), sampling=sampling, relation=relation)


def test_full_batches_need_all_records() -> None:
    with pytest.raises(Refused, match="rate 1"):
        bound(sampling=FullBatch()).charge()


def test_a_recipe_is_not_a_plan() -> None:
    """A recipe has no noise and no price; whoever trains with one is told how to make a plan of it."""
    recipe = methods.dp_sgd()
    for name in ("noise", "horizon", "delta", "charge", "certificate"):
        assert name not in dir(recipe)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(Refused, match=r"a Plan.*got a Recipe.*recipe\.for_budget"):
        Private(model, optimizer, recipe, None)  # type: ignore[arg-type]
    assert not model._forward_hooks


@pytest.mark.parametrize("wrong", [{"noise": -1.0}, {"noise": math.nan}, {"delta": 0.0}, {"delta": 1.0}])
def test_wrong_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Refused):
        dataclasses.replace(bound(), **wrong)


def test_delta_has_no_default() -> None:
    with pytest.raises(TypeError, match="delta"):
        methods.dp_sgd().for_budget(epsilon=1.0, records=10, batch=1, steps=1)  # type: ignore[call-arg]


# Identity -------------------------------------------------------------------------------------------------


def test_the_digest_changes_with_everything_and_with_nothing_else() -> None:
    plan = bound()
    others = [
        bound(noise=1.6),
        bound(methods.dp_sgd(clip=2.0)),
        bound(methods.dp_adam()),
        bound(sampling=BallsInBins()),
        bound(sampling=OwnLoader(), relation=Neighbouring.REPLACE_ONE),
        bound(schedule=Table((1.0,) * 45)),
        dataclasses.replace(plan, delta=1e-6),
        dataclasses.replace(plan, horizon=dataclasses.replace(HORIZON, steps=46)),
    ]
    assert plan.digest == bound().digest
    assert len({plan.digest, *(other.digest for other in others)}) == len(others) + 1


def test_plans_are_plain_json() -> None:
    text = json.dumps(bound().to_json(), allow_nan=False)
    assert json.loads(text)["noise"] == 1.5
    assert "FlatClip" in text


def test_accounting_of_a_plan_needs_no_torch() -> None:
    program = (
        "import sys; from discreet import methods; from discreet.stages.sampling import Horizon;"
        "h = Horizon.of_rate(rate=0.01, steps=10);"
        "print(methods.dp_sgd().bind(noise=1.1, horizon=h, delta=1e-5).certificate().epsilon < 1);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# Settings that cannot change ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Given(Schedule):
    """A user's schedule with a field of any kind."""

    values: Any

    def factor(self, step: int, steps_per_epoch: int) -> float:
        return float(self.values[step])


@dataclasses.dataclass
class _Changing(Schedule):
    value: float = 1.0

    def factor(self, step: int, steps_per_epoch: int) -> float:
        return self.value


@pytest.mark.parametrize("values", [[1.0], np.ones(1), torch.ones(1), {"a": 1.0}, ((1.0, [2.0]),), _Changing()])
def test_settings_that_could_change_after_the_charge_are_refused(values: Any) -> None:
    with pytest.raises(Refused, match=r"schedule\.values.* to be a number, text, tuple or frozen dataclass"):
        methods.dp_sgd().using(schedule=_Given(values))


def test_a_stage_that_is_not_frozen_is_refused() -> None:
    with pytest.raises(Refused, match=r"schedule to be .*frozen dataclass.*@dataclass\(frozen=True\)"):
        methods.dp_sgd().using(schedule=_Changing())


def test_settings_of_numpy_and_own_frozen_stages_are_accepted() -> None:
    given = methods.dp_sgd(clip=np.float64(1.5)).using(schedule=_Given((1.0, np.float32(0.5), Period.STEP, None)))
    assert given.bounder == FlatClip(1.5)
    counted = methods.dp_sgd().using(sampling=TruncatedPoisson(cap=np.int64(30)))  # type: ignore[arg-type]
    assert counted.digest == methods.dp_sgd().using(sampling=TruncatedPoisson(cap=30)).digest


# Stages that do not fit together --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"mechanism": ErrorFeedback(1.0)}, "one sum of all coordinates, and a hidden one"),
        ({"mechanism": ErrorFeedback(1.0), "bounder": TwoLevel(1.0, 9.0)}, "and a hidden one"),
        (
            {"mechanism": ErrorFeedback(1.0), "bounder": FeedbackClip(1.0), "selection": RandomFreeze(final_rate=0.5)},
            "RandomFreeze",
        ),
        (
            {"mechanism": CorrelatedNoise((1.0, 0.5)), "selection": RandomFreeze(final_rate=0.5)},
            "one query on all coordinates",
        ),
        ({"mechanism": CorrelatedNoise((1.0, 0.5)), "bounder": Polar(1.0)}, "one query on all coordinates"),
        ({"mechanism": Factorisation(Strategy.BSR, 4)}, r"a sampler for correlated noise.*got Poisson"),
    ],
)
def test_a_mechanism_refuses_stages_before_a_step_runs(stages: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        methods.dp_sgd().using(**stages)


def test_mechanisms_that_do_not_correlate_fit_everything() -> None:
    methods.dp_sgd().using(mechanism=ErrorFeedback(0.0), selection=RandomFreeze(final_rate=0.5))
    methods.dp_sgd().using(mechanism=ErrorFeedback(1.0), bounder=FeedbackClip(1.0))
    methods.dp_sgd().using(mechanism=Factorisation(Strategy.BSR, 4), sampling=FixedBins())
