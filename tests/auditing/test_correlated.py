"""Attacks on whole runs with correlated noise stay below the certificate, and come close to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discreet
from discreet import methods
from discreet.auditing import truth
from discreet.auditing.correlated import CorrelatedCanaries
from discreet.auditing.games import play
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.methods import METHODS
from discreet.methods.dp_ftrl.correlated_noise import Strategy
from discreet.runs.audit_rows import read_audit
from discreet.stages.plan import Recipe

DELTA = 1e-2
TABLE = Path(__file__).parents[2] / "results" / "truth-table.json"


def own(sampling: Any, **settings: Any) -> Any:
    return methods.dp_ftrl(**settings).using(sampling=sampling, relation=Neighbouring.REPLACE_ONE)


RECIPES = {
    "dp-ftrl": methods.dp_ftrl(),
    "bandmf": methods.bandmf(),
    "fixed order": own(discreet.FixedOrder()),
    "reshuffled": own(discreet.Reshuffled(), strategy=Strategy.BSR, bands=2),
    "one pass": own(discreet.OnePass()),
}
# Its columns reach the end of the run, where the certificate is not exact.
LONG_COLUMNS = own(discreet.Reshuffled())


def audited(game: CorrelatedCanaries, trials: int) -> float:
    return play(game, trials=trials, delta=DELTA, generator=np.random.default_rng(5)).epsilon


@pytest.mark.parametrize("recipe", [*RECIPES.values(), LONG_COLUMNS], ids=[*RECIPES, "reshuffled, long columns"])
def test_a_short_audit_stays_below_the_certificate(recipe: Recipe) -> None:
    game = CorrelatedCanaries(recipe, delta=DELTA)
    certified = game.attacked.plan.certificate().epsilon
    assert 0.4 * certified < audited(game, 8000) < certified


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_long_audit_reaches_four_fifths(name: str) -> None:
    game = CorrelatedCanaries(RECIPES[name], delta=DELTA)
    certified = game.attacked.plan.certificate().epsilon
    assert certified <= 4
    assert 0.8 * certified < audited(game, 200_000) < certified


def test_the_committed_table_reaches_four_fifths_of_every_certificate_of_correlated_noise() -> None:
    rows = [row for row in read_audit(TABLE) if row.method in ("dp-ftrl", "bandmf")]
    assert {row.method for row in rows} == {"dp-ftrl", "bandmf"}
    told = " ".join(row.parameters["game"] for row in rows)
    assert all(words in told for words in truth.OWN_LOADERS)
    for row in rows:
        assert row.certified is not None
        assert row.certified <= 4
        assert 0.8 * row.certified < row.audited < row.certified


def test_less_noise_than_certified_is_noticed() -> None:
    """Negative control: half of the noise."""
    game = CorrelatedCanaries(methods.dp_ftrl(), delta=DELTA)
    certified = game.attacked.plan.certificate().epsilon
    weak = dataclasses.replace(game.attacked.plan, noise=game.attacked.plan.noise / 2)
    game.attacked = dataclasses.replace(game.attacked, plan=weak)
    assert audited(game, 4000) > certified


def test_other_methods_are_refused() -> None:
    with pytest.raises(Refused, match="correlated noise, got dp-sgd"):
        CorrelatedCanaries(methods.dp_sgd(), delta=DELTA)


def test_the_methods_of_the_table_are_among_these() -> None:
    assert {name for name, method in METHODS.items() if method.recipe().mechanism.remembers} <= set(RECIPES)
