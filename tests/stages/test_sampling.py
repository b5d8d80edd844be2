"""Samplers: the frequencies they promise, and the price of each.

Every draw is seeded, so a pass stays a pass; alpha is the chance that a fresh seed would have failed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import methods
from discreet.accounting import events
from discreet.accounting.charges import Charge
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring
from discreet.core.streams import Streams
from discreet.stages.plan import Plan
from discreet.stages.sampling import (
    BallsInBins,
    FixedSize,
    FullBatch,
    Horizon,
    OwnLoader,
    Poisson,
    Sampling,
    TruncatedPoisson,
)
from discreet.stages.schedule import Constant, Period, Schedule, Table

ALPHA = 1e-6
BOTH = set(Neighbouring)
HORIZON = Horizon.of(records=400, batch=40, steps=200)
BALLS = Horizon.of(records=400, batch=40, epochs=20)


def draws(sampling: Sampling, horizon: Horizon = HORIZON, size: int = 400, start: int = 0) -> list[Any]:
    return list(sampling.batches(size, horizon, Streams.seeded(5).sampling, start))


def in_wilson(hits: int, trials: int, rate: float) -> bool:
    """Whether `rate` lies in the Wilson score interval of coverage 1 - ALPHA."""
    z = stats.norm.isf(ALPHA / 2)
    share = hits / trials
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return bool(abs(rate - middle) <= half)


# Frequencies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Poisson(), TruncatedPoisson(400), FixedSize()])
def test_inclusion_frequency(sampling: Sampling) -> None:
    drawn = draws(sampling)
    hits = sum(len(indices) for indices in drawn)
    assert in_wilson(hits, len(drawn) * 400, HORIZON.rate)
    assert not in_wilson(hits, len(drawn) * 400, 1.5 * HORIZON.rate)


@pytest.mark.parametrize("sampling", [Poisson(), FixedSize(), BallsInBins()])
def test_every_record_is_drawn_alike(sampling: Sampling) -> None:
    """Chi-square over the records at alpha = 1e-6; the control favours some records by half."""
    horizon = BALLS if isinstance(sampling, BallsInBins) else HORIZON
    drawn = draws(sampling, horizon)
    if isinstance(sampling, BallsInBins):
        # Here the records are equal by construction; what may be uneven is the step that each one gets.
        drawn = [step for step, indices in enumerate(drawn) for _ in indices]
        counts = np.bincount(np.array(drawn) % BALLS.steps_per_epoch)
    else:
        counts = np.bincount(np.concatenate(drawn), minlength=400)
    expected = counts.mean()
    assert stats.chisquare(counts).pvalue > ALPHA
    skewed = counts + np.where(np.arange(len(counts)) % 2, expected / 4, -expected / 4)
    assert stats.chisquare(skewed * counts.sum() / skewed.sum()).pvalue < ALPHA


def test_poisson_records_are_independent() -> None:
    """The size of a batch has variance n q (1 - q); a sampler of fixed size, the control, has none."""
    horizon = Horizon.of(records=400, batch=40, steps=2000)
    sizes = np.array([len(indices) for indices in draws(Poisson(), horizon)])
    wanted = 400 * 0.1 * 0.9
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(sizes) - 1) / (len(sizes) - 1)
    assert low * wanted < sizes.var(ddof=1) < high * wanted
    fixed = np.array([len(indices) for indices in draws(FixedSize(), horizon)])
    assert not low * wanted < fixed.var(ddof=1) < high * wanted


def test_a_million_records_at_a_rate_of_one_in_a_million() -> None:
    horizon = Horizon.of(records=10**6, batch=1, steps=60)
    drawn = draws(Poisson(), horizon, size=10**6)
    hits, empty = sum(map(len, drawn)), sum(not len(indices) for indices in drawn)
    assert len(drawn) == 60  # empty batches are steps too
    assert stats.poisson.sf(hits - 1, 60) > ALPHA
    assert stats.poisson.cdf(hits, 60) > ALPHA
    assert 0 < empty < 60


def test_steps_are_drawn_afresh() -> None:
    for sampling in (Poisson(), FixedSize(), TruncatedPoisson(30)):
        drawn = draws(sampling)
        assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(drawn))


def test_the_cap_holds_and_takes_nobody_in_particular() -> None:
    """Cut batches are uniform subsets: chi-square over records, alpha = 1e-6; the control keeps the first."""
    horizon = Horizon.of(records=100, batch=40, steps=3000)
    drawn = draws(TruncatedPoisson(30), horizon, size=100)
    assert max(map(len, drawn)) == 30
    assert all(len(set(indices.tolist())) == len(indices) for indices in drawn)
    assert stats.chisquare(np.bincount(np.concatenate(drawn), minlength=100)).pvalue > ALPHA
    first = [indices[:30] for indices in draws(Poisson(), horizon, size=100)]
    assert stats.chisquare(np.bincount(np.concatenate(first), minlength=100)).pvalue < ALPHA


def test_fixed_size_is_exact_and_without_repetition() -> None:
    for indices in draws(FixedSize()):
        assert len(indices) == 40
        assert len(set(indices.tolist())) == 40


def test_balls_in_bins_uses_each_record_once_an_epoch() -> None:
    drawn = draws(BallsInBins(), BALLS)
    epochs = [drawn[i : i + 10] for i in range(0, len(drawn), 10)]
    assert len(drawn) == BALLS.steps
    for epoch in epochs:
        assert sorted(np.concatenate(epoch).tolist()) == list(range(400))
    assert not np.array_equal(epochs[0][0], epochs[1][0])


def test_full_batches_hold_everyone() -> None:
    horizon = Horizon.of(records=7, batch=7, steps=3)
    assert [indices.tolist() for indices in draws(FullBatch(), horizon, size=9)] == [list(range(9))] * 3


# Sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Poisson(), TruncatedPoisson(50), FixedSize()])
def test_a_later_start_gives_the_steps_that_are_left(sampling: Sampling) -> None:
    assert len(draws(sampling, start=150)) == 50


def test_balls_in_bins_starts_at_epochs_only() -> None:
    assert len(draws(BallsInBins(), BALLS, start=10)) == BALLS.steps - 10
    with pytest.raises(Refused, match="resume at the next epoch"):
        draws(BallsInBins(), BALLS, start=11)


def test_poisson_never_looks_at_the_true_size() -> None:
    assert len(draws(Poisson(), size=1000)) == len(draws(Poisson(), size=0)) == HORIZON.steps


def test_fixed_size_needs_the_size_it_was_planned_for() -> None:
    with pytest.raises(Refused, match="exactly records=400"):
        draws(FixedSize(), size=401)
    with pytest.raises(Refused, match="a whole number"):
        draws(FixedSize(), Horizon.of(records=400, batch=40.5, steps=2))


def test_more_records_than_the_public_bound_are_refused_without_saying_how_many() -> None:
    with pytest.raises(Refused) as refusal:
        draws(TruncatedPoisson(50), size=417)
    assert "417" not in str(refusal.value)


def test_a_users_own_loader_is_not_sampled_from() -> None:
    with pytest.raises(Refused, match=r"sampling=discreet\.OwnLoader"):
        list(OwnLoader().batches(10, HORIZON, Streams.seeded(0).sampling, 0))


# The public numbers ---------------------------------------------------------------------------------------


def test_the_rate_is_batch_over_records_and_epochs_are_rounded_up() -> None:
    horizon = Horizon.of(records=1000, batch=300, epochs=3)
    assert (horizon.rate, horizon.steps_per_epoch, horizon.steps) == (0.3, 4, 12)
    assert Horizon.of(records=1437, batch=256, steps=120).rate == 256 / 1437


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"records": 100, "batch": 101, "steps": 1}, "batch <= records=100"),
        ({"records": 0, "batch": 1, "steps": 1}, "records"),
        ({"records": 10, "batch": 0, "steps": 1}, "batch > 0"),
        ({"records": 10, "batch": 1}, "either epochs or steps"),
        ({"records": 10, "batch": 1, "epochs": 1, "steps": 1}, "either epochs or steps"),
        ({"records": 10, "batch": 1, "epochs": 0}, "epochs"),
        ({"records": 10, "batch": 1, "steps": 1.5}, "steps"),
    ],
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        Horizon.of(**wrong)


def test_a_rate_alone_is_for_accounting() -> None:
    horizon = Horizon.of_rate(rate=0.017, steps=10)
    with pytest.raises(Refused, match="a public number of records and a batch size"):
        _ = horizon.size.batch
    with pytest.raises(Refused, match="a public number of records"):
        _ = horizon.size.records


# Prices ---------------------------------------------------------------------------------------------------

STEP = events.Gaussian(2.0)
PRICES: list[tuple[Sampling, set[Neighbouring], Horizon, events.Event]] = [
    (Poisson(), {Neighbouring.ADD_REMOVE}, HORIZON, events.PoissonSampled(0.1, STEP)),
    (TruncatedPoisson(60), {Neighbouring.ADD_REMOVE}, HORIZON, events.TruncatedPoissonSampled(0.1, 60, 400, STEP)),
    (FixedSize(), {Neighbouring.REPLACE_ONE}, HORIZON, events.WithoutReplacement(400, 40, STEP)),
    (BallsInBins(), {Neighbouring.ADD_REMOVE}, HORIZON, events.BallsInBinsEpoch(1, STEP)),
    (FullBatch(), BOTH, Horizon.of(records=400, batch=400, steps=9), STEP),
    (OwnLoader(), BOTH, HORIZON, events.Unamplified(STEP)),
]


@pytest.mark.parametrize(("sampling", "relations", "horizon", "event"), PRICES)
def test_each_sampler_has_its_price(
    sampling: Sampling, relations: set[Neighbouring], horizon: Horizon, event: events.Event
) -> None:
    assert set(sampling.relations) == relations
    assert sampling.bill(STEP, horizon) == event


def test_a_full_batch_is_no_cheaper_for_a_smaller_rate() -> None:
    with pytest.raises(Refused, match="rate 1"):
        FullBatch().bill(STEP, HORIZON)


SCHEDULES = [Constant(), Table(tuple(1 + 0.1 * i for i in range(7)), Period.EPOCH), Table((1.0, 0.5) * 35)]


def planned(sampling: Sampling, schedule: Schedule, horizon: Horizon, noise: float) -> Plan:
    recipe = methods.dp_sgd().using(sampling=sampling, schedule=schedule, relation=sampling.relations[0])
    return recipe.bind(noise=noise, horizon=horizon, delta=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sampling", [Poisson(), FixedSize(), BallsInBins(), OwnLoader(), TruncatedPoisson(9)])
def test_the_bill_of_a_run_is_the_sum_of_its_steps(sampling: Sampling, schedule: Schedule) -> None:
    plan = planned(sampling, schedule, Horizon.of(records=100, batch=10, steps=67), noise=2.0)
    for steps in (67, 30, 1, 0):
        one_by_one = Counter(plan.event_at(step) for step in range(steps))
        assert Charge(plan.events(steps)) == Charge(tuple(one_by_one.items()))


def test_an_epoch_costs_its_least_noisy_step() -> None:
    schedule = Table((3.0, 2.0, 0.5, 1.0, 4.0, 4.0, 4.0, 4.0))
    plan = planned(BallsInBins(), schedule, Horizon.of(records=100, batch=25, epochs=2), noise=1.0)
    bill = [plan.event_at(step) for step in range(8)]
    assert bill[0] == events.BallsInBinsEpoch(1, events.Gaussian(0.5))
    assert bill[4] == events.BallsInBinsEpoch(1, events.Gaussian(4.0))
    assert [bill[i] for i in (1, 2, 3, 5, 6, 7)] == [events.Free()] * 6


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"rate": 1.0, "batch": 10, "records": 1000}, r"rate = batch / records.*Horizon\.of"),
        ({"rate": 0.01, "batch": 10, "records": 100}, r"rate = batch / records"),
        ({"rate": 0.5, "batch": 1, "records": 2, "steps": torch.tensor(4)}, "steps to be a whole number"),
        ({"rate": 0.5, "batch": torch.tensor(1.0), "records": 2}, "batch to be a number"),
        ({"rate": 0.5, "batch": 1, "records": np.array(2)}, "records to be a whole number"),
    ],
)
def test_horizons_that_contradict_themselves_or_could_change(numbers: Any, message: str) -> None:
    """Certificates read the rate or the sizes: with full batches of another size, a wrong Lipschitz constant."""
    with pytest.raises(Refused, match=message):
        Horizon(**{"steps": 4, "steps_per_epoch": 1, **numbers})


def test_horizons_that_users_write_agree_with_themselves() -> None:
    for batch, records in ((100 / 3, 100), (256, 60_000), (np.int64(7), np.int64(49)), (0.1 * 30, 30)):
        rate = batch / records
        made = Horizon(rate=float(rate), steps=3, steps_per_epoch=3, batch=float(batch), records=records)
        assert made.size.records == records
    assert Horizon(rate=1 / 3, steps=3, steps_per_epoch=3, records=100).batch is None
