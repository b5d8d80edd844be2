"""Every listed member keeps its family's contract."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import loop
from contracts import (
    billing_contract,
    bounder_contract,
    horizon_contract,
    no_repeat_contract,
    noise_contract,
    price_contract,
    sampler_contract,
    step_contract,
)
from discreet import methods
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.methods import METHODS
from discreet.methods.dicesgd.stages import FeedbackClip, FeedbackNormalised, TwoLevel
from discreet.methods.dp_sgd.clipping import AdaptiveQuantile, PerLayer
from discreet.methods.geodp.stages import AngleWindow, Polar
from discreet.methods.gep.clipping import EmbeddingClip
from discreet.stages import clipping, sampling
from discreet.training.private import Private

BOUNDERS = [
    clipping.FlatClip(0.7),
    clipping.AutoS(clip=2.0, gamma=0.01),
    clipping.Psac(clip=1.0, r=0.1),
    PerLayer(1.0),
    TwoLevel(clip=1.0, residual=9.0),
    AdaptiveQuantile(clip=1.0),
]
SAMPLERS = [
    (sampling.Poisson(), Neighbouring.ADD_REMOVE),
    (sampling.TruncatedPoisson(cap=30), Neighbouring.ADD_REMOVE),
    (sampling.FixedSize(), Neighbouring.REPLACE_ONE),
    (sampling.BallsInBins(), Neighbouring.ADD_REMOVE),
    (sampling.FullBatch(), Neighbouring.ADD_REMOVE),
    (sampling.OwnLoader(), Neighbouring.ADD_REMOVE),
]

ROOMS = [room.name for room in pkgutil.iter_modules(methods.__path__) if room.ispkg]
CERTIFIED = [name for name, method in METHODS.items() if method.certified]


@pytest.mark.parametrize("bounder", BOUNDERS, ids=lambda b: type(b).__name__)
def test_bounders(bounder: clipping.Bounder) -> None:
    bounder_contract(bounder)


# Their guarantee is about more than weights: tests of their own rooms hold them to it.
ELSEWHERE = {FeedbackClip, FeedbackNormalised, AngleWindow, Polar, EmbeddingClip}


def test_every_bounder_is_listed() -> None:
    rooms = ["discreet.stages", *(f"discreet.methods.{room}" for room in ROOMS)]
    found = set()
    for room in rooms:
        for listed in pkgutil.iter_modules(importlib.import_module(room).__path__):
            module = importlib.import_module(f"{room}.{listed.name}")
            kinds = {value for value in vars(module).values() if isinstance(value, type)}
            found |= {kind for kind in kinds if "weights" in vars(kind) and kind.__module__ == module.__name__}
    assert found - {clipping.Bounder} == {type(bounder) for bounder in BOUNDERS} | ELSEWHERE


@pytest.mark.parametrize("name", METHODS)
def test_methods_bound_every_record(name: str) -> None:
    step_contract(METHODS[name].recipe())


@pytest.mark.parametrize("name", CERTIFIED)
def test_methods_draw_the_noise_they_state(name: str) -> None:
    noise_contract(METHODS[name].recipe())


@pytest.mark.parametrize("name", CERTIFIED)
@pytest.mark.parametrize("wrong", [2 / 3, 0.95, 1.05, 3 / 2])
def test_the_noise_contract_sees_another_size(name: str, wrong: float) -> None:
    with pytest.raises(AssertionError, match="another size"):
        noise_contract(METHODS[name].recipe(), times=wrong)


@pytest.mark.parametrize("name", CERTIFIED)
def test_methods_are_billed_as_planned(name: str) -> None:
    billing_contract(METHODS[name].recipe())


@pytest.mark.parametrize("name", CERTIFIED)
def test_methods_keep_a_budget(name: str) -> None:
    plan = METHODS[name].recipe().for_budget(epsilon=3.0, delta=1e-5, records=2000, batch=100, epochs=4)
    assert 3.0 * 0.995 <= plan.certificate().epsilon <= 3.0


@pytest.mark.parametrize(("which", "relation"), SAMPLERS, ids=lambda v: type(v).__name__)
def test_samplers_have_their_price(which: sampling.Sampling, relation: Neighbouring) -> None:
    price_contract(which, relation)


DRAWING = [which for which, _ in SAMPLERS if not isinstance(which, sampling.FullBatch | sampling.OwnLoader)]


@pytest.mark.parametrize("which", DRAWING, ids=lambda v: type(v).__name__)
def test_samplers_draw_what_they_are_priced_for(which: sampling.Sampling) -> None:
    sampler_contract(which)


def test_every_sampler_is_listed() -> None:
    made = {value for value in vars(sampling).values() if isinstance(value, type)}
    samplers = {kind for kind in made if "bill" in vars(kind) and kind.__module__ == sampling.__name__}
    assert samplers - {sampling.Sampling} == {type(which) for which, _ in SAMPLERS}


def test_horizons() -> None:
    horizon_contract(sampling.Horizon.of)


def test_runs_never_share_a_key() -> None:
    def run() -> Private:
        return loop.private(streams=Streams.from_os(), which=loop.plan(methods.dp_sgd()))

    no_repeat_contract(run)
