"""The price of error feedback: certificates, claims, what each noise guarantees, and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

import loop
import replay
from discreet import methods
from discreet.accounting.accountants import certify
from discreet.accounting.events import ClippedFeedback as FeedbackEvent
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.methods.dicesgd.analysis import FeedbackRun
from discreet.methods.dicesgd.stages import ErrorFeedback, Normalising
from discreet.stages.analysis import Composition
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import BallsInBins, FixedSize, FullBatch, Horizon, TruncatedPoisson

DELTA = 1e-5
CIFAR = Horizon.of(records=50_000, batch=1000, steps=100)  # the paper's ablation


def bound(recipe: Recipe, *, std: float, clip: float = 1.0) -> Plan:
    """The CIFAR setting with this noise on the mean."""
    return recipe.bind(noise=std * 1000 / clip, horizon=CIFAR, delta=DELTA)


def claimed(plan: Plan) -> float:
    claim = plan.charge().claimed
    assert claim is not None
    epsilon = claim.epsilon(DELTA)
    assert epsilon is not None
    return epsilon


def test_the_event_is_the_run() -> None:
    plan = bound(methods.dicesgd(clip=2.0, feedback_clip=0.5, preclip=7.0), std=0.3, clip=2.0)
    assert plan.charge().certified == (
        (
            FeedbackEvent(
                rate=0.02, steps=100, batch=1000, clip=2.0, feedback_clip=0.5, noise_std_on_mean=0.3, preclip=7.0
            ),
            1,
        ),
    )
    assert plan.pays_at_once


@pytest.mark.parametrize(("std", "mixture", "one_shot"), [(20.0, 4.3783, 4.2061), (80.0, 0.9297, 0.8350)])
def test_golden_certificates(std: float, mixture: float, one_shot: float) -> None:
    """The certificate is the least of its bounds, so below both golden ones, and not far below."""
    epsilon = bound(methods.dicesgd(), std=std).certificate().epsilon
    assert 0.75 * one_shot < epsilon < one_shot < mixture


def test_a_small_feedback_clip_is_the_golden_mixture() -> None:
    epsilon = bound(methods.dicesgd(feedback_clip=0.001), std=0.1).certificate().epsilon
    assert epsilon <= 0.73364 * 1.005


def test_budgets_need_the_golden_noise() -> None:
    """Noise on the mean for epsilon 2: 0.000881 for DP-SGD, 0.01396 with G = 2 by the energy bound alone."""
    for recipe, most, least in (
        (methods.dicesgd(feedback_clip=0.0), 0.000881 * 1.01, 0.000881 * 0.995),
        (methods.dicesgd(preclip=2.0), 0.01396, 0.0132),
    ):
        plan = recipe.for_horizon(epsilon=2.0, delta=DELTA, horizon=CIFAR)
        assert least <= plan.noise / 1000 <= most
        assert 1.99 <= plan.certificate().epsilon <= 2.0


def test_the_claim_is_theorem_3_8() -> None:
    """sigma^2 = 32 T (C1^2 + 2 C^2) ln(1/delta) / (N eps)^2 with C = B C2 gives epsilon back."""
    std = math.sqrt(32 * 100 * (1 + 2 * 1000**2) * math.log(1e5)) / (50_000 * 2.0)
    assert claimed(bound(methods.dicesgd(), std=std)) == pytest.approx(2.0)
    with_g = math.sqrt(32 * 100 * (1 + 2 * 4.0**2) * math.log(1e5)) / (50_000 * 2.0)
    assert claimed(bound(methods.dicesgd(preclip=5.0), std=with_g)) == pytest.approx(2.0)


def test_the_claim_of_algorithm_4_drops_the_batch() -> None:
    std = math.sqrt(96 * 100 * math.log(1e5)) / (50_000 * 2.0)
    assert claimed(bound(methods.dicesgd_automatic(), std=std)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("recipe", "attacked"),
    [(methods.dicesgd(), 45.60), (methods.dicesgd_automatic(), 45.60)],
    ids=["dicesgd", "automatic"],
)
def test_the_claimed_noise_has_a_true_certificate(recipe: Recipe, attacked: float) -> None:
    """Calibrated to the claim, epsilon 2: the certificate stands beside it, above the known attack."""
    plan = recipe.for_claim(epsilon=2.0, delta=DELTA, horizon=CIFAR)
    assert 1.99 <= claimed(plan) <= 2.0
    assert plan.certificate().epsilon > attacked


def test_nothing_is_claimed_where_the_theorem_is_silent() -> None:
    small_error = bound(methods.dicesgd(clip=1.0, feedback_clip=0.5), std=1.0).charge().claimed
    assert small_error is not None
    assert small_error.epsilon(DELTA) is None
    dense = methods.dicesgd_automatic().bind(
        noise=1.0, horizon=Horizon.of(records=1000, batch=300, steps=10), delta=DELTA
    )
    claim = dense.charge().claimed
    assert claim is not None
    assert claim.epsilon(DELTA) is None


def test_automatic_clipping_gets_no_energy_bound() -> None:
    """A pre-clip with a normalised error is priced as if nothing bounded the gradients."""
    recipe = methods.dicesgd(preclip=2.0).using(mechanism=ErrorFeedback(1.0, Normalising()))
    event = bound(recipe, std=1.0).analysis.whole_run(bound(recipe, std=1.0))
    assert isinstance(event, FeedbackEvent)
    assert event.preclip is None


def test_composition_prices_feedback_as_non_private() -> None:
    plan = bound(methods.dicesgd().using(analysis=Composition()), std=80.0)
    assert plan.certificate().epsilon == math.inf


def test_without_noise_nothing_is_certified() -> None:
    assert bound(methods.dicesgd(), std=0.0).certificate().epsilon == math.inf


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": BallsInBins()},
        {"sampling": TruncatedPoisson(cap=30)},
        {"sampling": FullBatch()},
        {"sampling": FixedSize(), "relation": Neighbouring.REPLACE_ONE},
        {"mechanism": methods.dp_sgd().mechanism},
        {"bounder": methods.two_level().bounder},
        {"schedule": methods.d2p_sgd().schedule},
        {"selection": methods.random_freeze().selection},
    ],
    ids=lambda change: type(next(iter(change.values()))).__name__,
)
def test_what_no_proof_covers_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        methods.dicesgd().using(**change)


def test_the_ledger_holds_the_run_once_and_counts_its_steps() -> None:
    run = loop.private(which=loop.plan(methods.dicesgd(clip=0.5)))
    loop.train(run)
    assert run.ledger.length == loop.STEPS
    assert [type(entry.event).__name__ for entry in run.ledger.entries][:2] == ["ClippedFeedback", "Free"]
    spent = run.spent()
    assert spent.certified.epsilon == certify(run.plan.charge(), delta=DELTA, relation=Neighbouring.ADD_REMOVE).epsilon
    assert spent.claimed == claimed(run.plan)


# -- record and replay ----------------------------------------------------------------------------------------


def _three_steps(recipe: Recipe) -> Plan:
    return recipe.bind(noise=1.0, horizon=Horizon.of(records=8, batch=8, steps=3), delta=DELTA)


def test_replay_sees_an_error_that_is_fed_back_unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hidden state is compared too: given all releases, one record moves the next one within the bound only."""
    plan = _three_steps(methods.dicesgd(clip=0.1, feedback_clip=0.01))
    assert replay.leave_one_out(plan) > 0.5
    monkeypatch.setattr(ErrorFeedback, "shortened", lambda self, error, batch: error.clone())
    with pytest.raises(Refused, match="without its bound"):
        replay.leave_one_out(plan)


def test_the_analysis_says_that_iterates_may_be_seen() -> None:
    assert FeedbackRun().visible
    assert FeedbackRun().assumptions(methods.dicesgd()) == ()
