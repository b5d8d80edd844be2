"""Plans that protect users: their price, and the stages that are refused."""

import json
import math

import pytest

from discreet import CappedRecords, FixedSize, Horizon, OwnLoader, Poisson, SampledUsers, TruncatedPoisson, methods
from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, GroupPoissonSampled
from discreet.core.check import Refused
from discreet.core.plain import digest
from discreet.core.relation import Neighbouring
from discreet.methods import METHODS
from discreet.methods.d2p2.recipes import Projection
from discreet.stages.plan import Plan, Recipe

HORIZON = Horizon.of(records=1000, batch=20, steps=40)


def bind(recipe: Recipe, **stages: object) -> Plan:
    return recipe.using(**stages).bind(noise=2.0, horizon=HORIZON, delta=1e-5)  # type: ignore[arg-type]


def recipe_of(name: str) -> Recipe:
    return METHODS[name].recipe()


@pytest.mark.parametrize("name", METHODS)
def test_sampled_users_cost_what_records_cost(name: str) -> None:
    recipe = recipe_of(name)
    if not recipe.analysis.covers_users:
        with pytest.raises(Refused, match="an analysis that is proven for users"):
            recipe.using(unit=SampledUsers(per_user=5))
        return
    plan, records = bind(recipe, unit=SampledUsers(per_user=5, name="patient")), bind(recipe)
    assert plan.certificate().epsilon == records.certificate().epsilon
    assert any("one patient" in text for text in plan.certificate().assumptions)
    assert plan.neighbours == f"{plan.relation} of one patient"
    assert (plan.charge().claimed is None) == (records.charge().claimed is None)


REFUSED = ["dicesgd", "dicesgd-automatic", "dp-ftrl", "bandmf"]


@pytest.mark.parametrize("name", METHODS)
def test_capped_records_are_priced_or_refused_by_name(name: str) -> None:
    recipe, unit = recipe_of(name), CappedRecords(per_user=5)
    if name in REFUSED:
        with pytest.raises(Refused, match="for capped records of users"):
            bind(recipe, unit=unit)
        return
    plan = bind(recipe, unit=unit)
    records = bind(recipe).certificate().epsilon
    assert plan.certificate().epsilon > 1.5 * records or math.isinf(records)
    assert plan.charge().claimed is None
    kinds = {type(event).__name__ for event, _ in plan.events()}
    assert kinds <= {"GroupPoissonSampled", "NonPrivate"}


def test_dense_projections_are_not_priced_for_capped_records() -> None:
    dense = bind(methods.d2p2_sgd(projection=Projection.DENSE, widths=(3,)), unit=CappedRecords(per_user=5))
    with pytest.raises(Refused, match="GroupPoissonSampled is proven for these events only"):
        dense.certificate()


def test_a_certificate_for_the_final_parameters_does_not_cover_users() -> None:
    recipe = methods.dpsgd_dc(smoothness=1.0, learning_rate=0.1).using(sampling=TruncatedPoisson(cap=40))
    for unit in (SampledUsers(per_user=5), CappedRecords(per_user=5)):
        with pytest.raises(Refused, match=r"LastIterate|TruncatedPoisson"):
            recipe.using(unit=unit)


def test_the_event_of_capped_records() -> None:
    plan = bind(methods.dp_sgd(clip=1.0), unit=CappedRecords(per_user=7))
    assert plan.events() == ((GroupPoissonSampled(0.02, 7, Gaussian(2.0)), 40),)
    again = certify(Charge(plan.events()), delta=1e-5, relation=Neighbouring.ADD_REMOVE)
    assert plan.certificate().epsilon == again.epsilon


def test_a_budget_is_kept() -> None:
    recipe = methods.dp_sgd(clip=1.0).using(unit=CappedRecords(per_user=7))
    plan = recipe.for_budget(epsilon=2.0, delta=1e-5, records=1000, batch=20, steps=40)
    assert 1.95 <= plan.certificate().epsilon <= 2.0


@pytest.mark.parametrize("sampling", [TruncatedPoisson(cap=40), FixedSize()])
def test_capped_records_need_poisson_sampling(sampling: object) -> None:
    relation = sampling.relations[0]  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="Poisson for capped records"):
        bind(methods.dp_sgd(clip=1.0), unit=CappedRecords(per_user=2), sampling=sampling, relation=relation)
    users = bind(methods.dp_sgd(clip=1.0), unit=SampledUsers(per_user=2), sampling=sampling, relation=relation)
    assert math.isfinite(users.certificate().epsilon)


def test_users_are_not_drawn_from_an_own_loader() -> None:
    for unit in (SampledUsers(per_user=2), CappedRecords(per_user=2)):
        with pytest.raises(Refused, match="OwnLoader"):
            methods.dp_sgd(clip=1.0).using(unit=unit, sampling=OwnLoader())


@pytest.mark.parametrize("per_user", [0, -1, 1.5])
@pytest.mark.parametrize("kind", [SampledUsers, CappedRecords])
def test_caps_are_whole_positive_numbers(kind: type, per_user: float) -> None:
    with pytest.raises(Refused, match="per_user"):
        kind(per_user=per_user)


@pytest.mark.parametrize("name", ["", "a|b", "x" * 50, "new\nline", 3])
def test_names_are_words(name: object) -> None:
    with pytest.raises(Refused, match="a name for the unit"):
        SampledUsers(per_user=1, name=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [SampledUsers, CappedRecords])
@pytest.mark.parametrize("name", ["record", "Records", "record "])
def test_users_are_not_called_records(kind: type, name: str) -> None:
    """Results said nothing about users, and their ledgers were composed with those of runs that protect records."""
    with pytest.raises(Refused, match="a unit that is not called a record"):
        kind(per_user=2, name=name)


def test_plans_for_records_keep_their_digest() -> None:
    plan = bind(methods.dp_sgd(clip=1.0))
    assert "unit" not in plan.to_json()
    users = bind(methods.dp_sgd(clip=1.0), unit=SampledUsers(per_user=2))
    assert users.to_json()["unit"] == {"is": "SampledUsers", "per_user": 2, "name": "user"}
    assert digest(json.loads(json.dumps(users.to_json()))) == users.digest != plan.digest
    assert users.sampling == Poisson()
