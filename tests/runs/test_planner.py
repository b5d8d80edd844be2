"""What a budget buys: noise by method, sampler and batch, and a trial of a model."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from discreet.accounting.correlated import Toeplitz, bisr
from discreet.core.check import Refused
from discreet.methods import METHODS
from discreet.report.planned import loaders, returning
from discreet.runs.planning.own_loader import LOADER_WORDS
from discreet.runs.planning.planner import RETURNING, Answer, Price, Question, answer
from discreet.runs.planning.step_cost import measure

ASKED = Question(
    records=1000,
    batch=100,
    epochs=2,
    epsilon=3.0,
    delta=1e-5,
    methods=("dp-sgd", "auto-s", "adaptive-quantile", "d2p-sgd"),
)


@pytest.fixture(scope="module")
def found() -> Answer:
    return answer(ASKED)


def certified(method: str, price: Price, batch: int) -> float:
    assert price.noise is not None
    plan = METHODS[method].recipe().bind(noise=price.noise, horizon=ASKED.horizon(batch), delta=ASKED.delta)
    return plan.certificate().epsilon


def test_every_noise_stays_within_the_budget_and_wastes_little(found: Answer) -> None:
    for method in found.methods:
        assert 0.99 * 3.0 < certified(method.name, method.price, 100) <= 3.0
    for at in found.batches:
        assert 0.99 * 3.0 < certified("dp-sgd", Price(noise=at.noise), at.batch) <= 3.0


def test_the_check_of_the_budget_can_fail(found: Answer) -> None:
    noise = found.methods[0].price.noise
    assert noise is not None
    assert certified("dp-sgd", Price(noise=noise * 0.97), 100) > 3.0


def test_equal_charges_cost_the_same_and_a_count_query_costs_more(found: Answer) -> None:
    by_name = {method.name: method.price.noise for method in found.methods}
    assert by_name["dp-sgd"] == by_name["auto-s"]
    assert by_name["adaptive-quantile"] > by_name["dp-sgd"]  # type: ignore[operator]


def test_the_curve_falls_and_passes_through_the_budget(found: Answer) -> None:
    for method in found.methods:
        epsilons, noises = zip(*method.curve, strict=True)
        assert list(epsilons) == sorted(epsilons)
        assert list(noises) == sorted(noises, reverse=True)
        assert (3.0, method.price.noise) in method.curve


def test_every_sampler_is_priced_and_none_is_cheaper_than_poisson(found: Answer) -> None:
    prices = dict(found.methods[0].samplers)
    assert set(prices) == {"poisson", "balls-in-bins", "full-batch", "own-loader", "truncated-poisson", "fixed-size"}
    poisson = prices["poisson"].noise
    assert poisson == found.methods[0].price.noise
    for name, price in prices.items():
        assert price.noise is not None, name
        assert price.noise >= poisson * 0.996, name  # type: ignore[operator]
    assert prices["fixed-size"].relation == "replace-one"
    assert prices["full-batch"].steps == 2
    # Full batch, two steps: the Gaussian mechanism at z / sqrt(2).
    assert prices["full-batch"].effective == prices["full-batch"].noise / 1000  # type: ignore[operator]


def test_correlated_noise_is_priced_by_how_records_come_back() -> None:
    found = answer(dataclasses.replace(ASKED, epochs=4, methods=("dp-sgd", "dp-ftrl")))
    prices = dict(found.methods[1].samplers)
    assert set(prices) == set(RETURNING)
    noise = {name: price.noise for name, price in prices.items() if price.noise is not None}
    assert noise["fixed-order"] == pytest.approx(2 * noise["fixed-bins"], rel=0.01)  # replace-one
    assert noise["fixed-order"] < noise["reshuffled"]
    assert "one epoch" in prices["one-pass"].why
    assert "banded inverse" in prices["cyclic-poisson"].why
    (line,) = returning(found)
    assert line.startswith("dp-ftrl: noise ")
    assert "reshuffled (replace-one)" in line


def test_your_own_loader_beside_poisson(found: Answer) -> None:
    """The noise on the parameters, against a sum of simulated releases."""
    prices = {row.sampling: row for row in found.loaders}
    assert list(prices) == list(LOADER_WORDS)
    assert prices["poisson"].noise == found.methods[0].price.noise
    times = {name: row.times for name, row in prices.items() if row.times is not None}
    assert times["poisson"] == 1.0
    assert 1.0 < times["fixed-order"] < times["reshuffled"] < times["own-loader"]
    steps, poisson, correlated = 20, prices["poisson"].noise, prices["fixed-order"].noise
    assert poisson is not None
    assert correlated is not None
    z = np.random.default_rng(4).standard_normal((20_000, steps))
    spread = Toeplitz(bisr(16), inverse=True).noise(steps)
    drawn = np.stack([z[:, : t + 1] @ spread[: t + 1][::-1] for t in range(steps)], axis=1)
    ratio = correlated * _rms(drawn) / (poisson * _rms(z))
    assert times["fixed-order"] == pytest.approx(ratio, rel=0.03)
    assert len(loaders(found)) == len(prices)


def _rms(releases: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt((np.cumsum(releases, axis=1) ** 2).mean()))


def test_a_sampler_that_takes_long_says_so(found: Answer) -> None:
    """d2p-sgd has as many different steps as epochs; fixed-size would be priced for each."""
    longer = answer(dataclasses.replace(ASKED, epochs=4, methods=("d2p-sgd",)))
    price = dict(longer.methods[0].samplers)["fixed-size"]
    assert price.noise is None
    assert "not computed" in price.why


def test_batches(found: Answer) -> None:
    assert [at.batch for at in found.batches] == [64, 100, 128, 256, 512, 1000]
    for at in found.batches:
        assert at.effective == pytest.approx(at.noise / at.batch)
        assert at.path == pytest.approx(at.noise / at.batch / math.sqrt(at.steps))
        assert at.steps == 2 * math.ceil(1000 / at.batch)
    assert found.quietest.batch == min(found.batches, key=lambda at: at.noise / at.batch).batch
    least = min(at.path for at in found.batches)
    assert found.sensible.path <= 1.25 * least
    assert all(at.path > 1.25 * least for at in found.batches if at.batch < found.sensible.batch)


def test_methods_without_a_certificate_and_plans_that_do_not_fit_say_why() -> None:
    uncertified = [method.name for method in METHODS.values() if not method.certified]
    asked = dataclasses.replace(ASKED, methods=("dp-sgd", *uncertified))
    for method in answer(asked).methods[1:]:
        assert method.price.noise is None
        assert method.price.why.startswith("nothing is proven")
        assert method.curve == method.samplers == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"records": 0}, "records to be"),
        ({"batch": 2000}, "batch <= records"),
        ({"epochs": 0}, "epochs to be"),
        ({"epsilon": -1.0}, "epsilon > 0"),
        ({"delta": 1.0}, "delta in"),
        ({"methods": ()}, "methods of"),
        ({"methods": ("dp-sgb",)}, "dp-sgb"),
    ],
)
def test_bad_questions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        dataclasses.replace(ASKED, **changes)


def test_a_trial_measures_a_model() -> None:
    trial = measure("softmax", shape=(1, 8, 8), classes=10, micro_batch=16)
    assert trial.parameters == 650
    assert 0 < trial.seconds_per_record < 1
    # The record, flattened, and ten scores: forward and backward, four bytes each.
    assert trial.bytes_per_record == 2 * 4 * (64 + 64 + 10)
    assert trial.seconds(records=1000, epochs=3) == pytest.approx(3000 * trial.seconds_per_record)
    assert trial.memory(micro_batch=16) == 6 * 4 * 650 + 16 * trial.bytes_per_record
    assert trial.memory(micro_batch=16, adam=True) > trial.memory(micro_batch=16)
