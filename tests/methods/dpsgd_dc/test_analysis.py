"""Plans under LastIterate: what they cost, what they say, and everything they refuse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from discreet import methods
from discreet.accounting.events import Gaussian, LastIterateRun, TruncatedPoissonSampled, WithoutReplacement
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.methods.d2p2.projected_noise import ProjectedNoise
from discreet.methods.d2p2.recipes import InverseRoot
from discreet.methods.dp_sgd.clipping import AdaptiveQuantile, PerLayer
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.curvature import Assumed, LinearModel, Link
from discreet.methods.dpsgd_dc.domain import Ball
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages import clipping, sampling
from discreet.stages.analysis import Composition
from discreet.stages.domain import Unbounded
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon

LOGISTIC = LinearModel(link=Link.LOGISTIC, features=1.0, bias=False)  # L = 1/4


def recipe(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "method": "test",
        "bounder": clipping.FlatClip(1.0),
        "domain": Ball(radius=1.0),
        "sampling": sampling.FullBatch(),
        "analysis": LastIterate(learning_rate=8.0, curvature=LOGISTIC),
    }
    return Recipe(**(fields | changes))


def bound(recipe: Recipe, *, noise: float = math.sqrt(1000), steps: int = 50_000, batch: float = 1000) -> Plan:
    return recipe.bind(noise=noise, horizon=Horizon.of(records=1000, batch=batch, steps=steps), delta=1e-5)


# What it costs -------------------------------------------------------------------------------------------


def test_the_golden_plateau() -> None:
    """n=1000, D=2, eta=8, z=31.6: epsilon 4.377 for any number of steps, where composition has mu=7.07."""
    for steps in (2000, 50_000, 10**7):
        assert bound(recipe(), steps=steps).certificate().epsilon == pytest.approx(4.37718, rel=1e-4)
    seen = bound(recipe()).using(analysis=Composition())
    assert isinstance(seen.analysis, Composition)
    assert seen.certificate().epsilon > 5 * 4.377


def test_never_above_composition_and_equal_to_it_in_short_runs() -> None:
    for steps in (1, 10, 100, 999):
        plan = bound(recipe(), steps=steps)
        assert plan.certificate().epsilon == pytest.approx(
            plan.using(analysis=Composition()).certificate().epsilon, rel=1e-9
        )
    for steps in (1010, 5000):
        plan = bound(recipe(), steps=steps)
        assert plan.certificate().epsilon < plan.using(analysis=Composition()).certificate().epsilon


def test_minibatches_do_not_pay() -> None:
    """n=60000, b=600, eta=.5, L=.5, D=2, z=1 at T=1000: fixed size and truncated Poisson are composition."""
    horizon = Horizon.of(records=60_000, batch=600, steps=1000)
    analysis = LastIterate(learning_rate=0.5, curvature=Assumed(smoothness=0.5))
    for which, relation in (
        (sampling.FixedSize(), Neighbouring.REPLACE_ONE),
        (sampling.TruncatedPoisson(cap=750), Neighbouring.ADD_REMOVE),
    ):
        plan = recipe(sampling=which, relation=relation, analysis=analysis)
        hidden = plan.bind(noise=1.0, horizon=horizon, delta=1e-5)
        seen = hidden.using(analysis=Composition()).certificate().epsilon
        assert hidden.certificate().epsilon <= seen * (1 + 1e-9)
        assert hidden.certificate().epsilon == pytest.approx(seen, rel=6e-3)


def test_weight_decay_makes_the_plateau_early() -> None:
    """An L2 term outside of the clip contracts: the start is forgotten geometrically, whatever the diameter."""
    pulled = recipe(domain=Ball(radius=10.0), analysis=LastIterate(learning_rate=7.9, curvature=LOGISTIC, decay=1e-3))
    still = recipe(domain=Ball(radius=10.0), analysis=LastIterate(learning_rate=7.9, curvature=LOGISTIC))
    assert pulled.analysis.expansion(bound(pulled)) == pytest.approx(1 - 7.9e-3)  # type: ignore[attr-defined]
    far, further = bound(pulled).certificate().epsilon, bound(pulled, steps=10**6).certificate().epsilon
    assert far == pytest.approx(further, rel=1e-3)  # the search is coarser in longer runs
    assert far < bound(still).certificate().epsilon / 2


def test_an_earlier_stop_costs_at_most_the_plan() -> None:
    """Certificates grow with the steps, so the planned one holds for a run that stops before."""
    for decay in (0.0, 0.02):
        analysis = LastIterate(learning_rate=6.0, curvature=LOGISTIC, decay=decay)
        costs = [
            bound(recipe(analysis=analysis), steps=steps).certificate().epsilon
            for steps in (1, 3, 10, 30, 100, 300, 900, 1100, 3000, 10_000)
        ]
        assert costs == sorted(costs)


# The event -----------------------------------------------------------------------------------------------


def test_the_event_of_each_sampling() -> None:
    full = recipe().analysis.whole_run(bound(recipe()))
    assert full == LastIterateRun(
        step=Gaussian(math.sqrt(1000)),
        steps=50_000,
        clip=1.0,
        batch=1000,
        learning_rate=8.0,
        diameter=2.0,
        expansion=1.0,
    )
    fixed = recipe(sampling=sampling.FixedSize(), relation=Neighbouring.REPLACE_ONE)
    event = fixed.analysis.whole_run(bound(fixed, batch=100))
    assert isinstance(event, LastIterateRun)
    assert isinstance(event.step, WithoutReplacement)
    capped = recipe(sampling=sampling.TruncatedPoisson(cap=150))
    event = capped.analysis.whole_run(bound(capped, batch=100))
    assert isinstance(event, LastIterateRun)
    assert isinstance(event.step, TruncatedPoissonSampled)
    assert event.expansion == pytest.approx(abs(1 - 8 * 0.25 * 1.5))  # batches half as large again as the divisor


def test_one_charge_and_then_free_steps() -> None:
    plan = bound(recipe())
    assert plan.pays_at_once
    assert isinstance(plan.event_at(0), LastIterateRun)
    assert plan.charge(1).certified == plan.charge().certified
    assert plan.charge(0).certified == ()
    assert not plan.analysis.visible


def test_the_ball_counts_its_diameter() -> None:
    plan = bound(recipe(domain=Ball(radius=2.0)))
    event = plan.event_at(0)
    assert isinstance(event, LastIterateRun)
    assert event.diameter == 4.0


def test_assumed_smoothness_is_said_everywhere() -> None:
    assumed = recipe(analysis=LastIterate(learning_rate=0.5, curvature=Assumed(smoothness=2.0)))
    certificate = bound(assumed).certificate()
    assert certificate.conditions == ("if every loss is L-smooth with L = 2",)
    assert "if every loss is L-smooth with L = 2" in certificate.to_json()["assumptions"]
    assert bound(recipe()).certificate().conditions == ()


# What it refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounder": clipping.AutoS()}, "FlatClip, which projects each gradient.*got AutoS"),
        ({"bounder": PerLayer(1.0)}, "FlatClip.*got PerLayer"),
        ({"bounder": AdaptiveQuantile()}, "FlatClip.*got AdaptiveQuantile"),
        ({"mechanism": ProjectedNoise(reduction=0.5)}, "Gaussian noise on the whole gradient.*got Projected"),
        ({"selection": RandomFreeze(final_rate=0.5)}, "all coordinates in every step.*got RandomFreeze"),
        ({"schedule": InverseRoot()}, "the same noise at every step.*got InverseRoot"),
        ({"domain": Unbounded()}, "a bounded domain.*got Unbounded"),
        ({"sampling": sampling.Poisson()}, "public maximum size.*got Poisson.*TruncatedPoisson"),
        ({"sampling": sampling.BallsInBins()}, "public maximum size.*got BallsInBins"),
        ({"sampling": sampling.OwnLoader()}, "public maximum size.*got OwnLoader"),
    ],
)
def test_stages_that_the_theorem_does_not_cover(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        recipe(**changes)
    if "domain" not in changes:
        recipe(analysis=Composition(), **changes)  # composition takes it


def test_a_combination_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Remembers:
        def check(self, bounder: Any, selection: Any) -> None:
            """Fits all."""

        def gradient(self, vectors: Any, numbers: Any, context: Any) -> Any:
            return vectors[0]

    with pytest.raises(Refused, match=r"the noisy gradient itself.*got Remembers"):
        recipe(combination=Remembers())


def test_a_rate_alone_is_not_enough() -> None:
    with pytest.raises(Refused, match="a public number of records and a batch size"):
        recipe().bind(noise=1.0, horizon=Horizon.of_rate(rate=1.0, steps=10), delta=1e-5).charge()


def test_bad_settings() -> None:
    with pytest.raises(Refused, match="learning rate of every step"):
        LastIterate(learning_rate=0.0, curvature=LOGISTIC)
    with pytest.raises(Refused, match="weight decay"):
        LastIterate(learning_rate=1.0, curvature=LOGISTIC, decay=-1.0)


# The recipes ---------------------------------------------------------------------------------------------


def test_recipes() -> None:
    plain = methods.dpsgd_dc(clip=0.5, radius=2.0)
    assert isinstance(plain.analysis, Composition)
    assert plain.domain.diameter == 4.0
    hidden = methods.dpsgd_dc(link="logistic", learning_rate=2.0, centre="origin")  # type: ignore[arg-type]
    assert isinstance(hidden.analysis, LastIterate)
    assert hidden.analysis.curvature == LinearModel(link=Link.LOGISTIC, features=1.0)
    word = methods.dpsgd_dc(smoothness=3.0, learning_rate=0.1, weight_decay=0.01)
    assert isinstance(word.analysis, LastIterate)
    assert (word.analysis.curvature, word.analysis.decay) == (Assumed(smoothness=3.0), 0.01)
    assert isinstance(methods.dpsgd_gc().domain, Unbounded)
    with pytest.raises(Refused, match="either link"):
        methods.dpsgd_dc(link=Link.LOGISTIC, smoothness=1.0, learning_rate=1.0)
    with pytest.raises(Refused, match="a learning rate with link"):
        methods.dpsgd_dc(link=Link.LOGISTIC)


def test_claims_of_the_recipes() -> None:
    """Theorem 3.3 without a domain, 3.4 with one: figure 1's setting, diameter 1."""
    horizon = Horizon.of(records=8, batch=2, steps=50)
    noise = 4.0 * 2 / 2  # sigma b / C
    free = methods.dpsgd_gc(clip=2.0).bind(noise=noise, horizon=horizon, delta=1e-5).charge().claimed
    kept = (
        dataclasses.replace(
            methods.dpsgd_dc(clip=2.0, radius=0.5, smoothness=1.0, learning_rate=0.2),
            sampling=sampling.FixedSize(),
            relation=Neighbouring.REPLACE_ONE,
        )
        .bind(noise=noise, horizon=horizon, delta=1e-5)
        .charge()
        .claimed
    )
    assert free is not None
    assert kept is not None
    assert free.rdp(1.1) == pytest.approx(1.71875)  # type: ignore[attr-defined]
    assert kept.rdp(1.1) == pytest.approx(1.684375)  # type: ignore[attr-defined]
    by_rate = methods.dpsgd_gc().bind(noise=1.0, horizon=Horizon.of_rate(rate=0.1, steps=5), delta=1e-5)
    assert by_rate.charge().claimed is None
