"""Schedules: a factor for each step, and the same in pieces."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from discreet import methods
from discreet.core.check import Refused
from discreet.methods.d2p2.recipes import InverseFourthRoot, InverseRoot
from discreet.stages.sampling import Horizon
from discreet.stages.schedule import Constant, Exponential, Linear, Period, Schedule, Table
from timing import times_as_long

DECAYING: list[Schedule] = [
    kind
    for period in Period
    for kind in (
        InverseRoot(period),
        InverseFourthRoot(period),
        Exponential(rho=9.0, periods=4, period=period),
        Linear(last=0.25, periods=3, period=period),
    )
]
TABLES: list[Schedule] = [
    Constant(),
    Table((1.0, 0.5, 0.5, 2.0, 2.0, 2.0, 0.1)),
    Table((1.0, 0.5, 0.25), Period.EPOCH),
    *DECAYING,
]


@pytest.mark.parametrize("schedule", TABLES)
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 5), (3, 3), (6, 7)])
def test_pieces_are_the_factors_in_a_row(schedule: Schedule, start: int, stop: int) -> None:
    spelled = [f for f, count in schedule.pieces(start, stop, 3) for _ in range(count)]
    assert spelled == [schedule.factor(step, 3) for step in range(start, stop)]
    pieces = list(schedule.pieces(start, stop, 3))
    assert all(a[0] != b[0] for a, b in itertools.pairwise(pieces))


def test_a_long_constant_run_is_one_piece() -> None:
    assert list(Constant().pieces(0, 10**9, 1)) == [(1.0, 10**9)]


def test_epochs_count_whole_passes() -> None:
    table = Table((1.0, 0.5), Period.EPOCH)
    assert [table.factor(step, 3) for step in range(6)] == [1.0] * 3 + [0.5] * 3


def test_a_run_longer_than_its_table_is_refused() -> None:
    with pytest.raises(Refused, match="one factor for every step"):
        Table((1.0, 0.5)).factor(2, 1)
    with pytest.raises(Refused, match="one factor for every epoch"):
        list(Table((1.0,), Period.EPOCH).pieces(0, 4, 3))


@pytest.mark.parametrize("factors", [(), (0.0,), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_factors_multiply_noise(factors: tuple[float, ...]) -> None:
    with pytest.raises(Refused):
        Table(factors)


@pytest.mark.parametrize("schedule", DECAYING)
def test_the_noise_decays(schedule: Schedule) -> None:
    factors = [schedule.factor(step, 3) for step in range(30)]
    assert all(a >= b for a, b in itertools.pairwise(factors))
    assert 0 < factors[-1] < factors[0] <= 1


def test_the_formulas_count_from_one() -> None:
    assert [InverseRoot(Period.STEP).factor(k - 1, 5) for k in (1, 4, 100)] == [1.0, 0.5, 0.1]
    assert [InverseFourthRoot(Period.STEP).factor(k - 1, 5) for k in (1, 16, 10**4)] == [1.0, 0.5, 0.1]
    exponential = Exponential(rho=9.0, periods=4, period=Period.STEP)
    assert [exponential.factor(k - 1, 5) for k in (1, 2, 4)] == pytest.approx([9**-0.25, 1 / 3, 1 / 9])
    line = Linear(last=0.2, periods=5)
    assert [line.factor(5 * (k - 1) + 4, 5) for k in range(1, 8)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("rho", [1.0, 0.5, 0.0, -2.0, math.nan, math.inf])
def test_an_exponential_that_does_not_decay_is_refused(rho: float) -> None:
    with pytest.raises(Refused, match="rho"):
        Exponential(rho=rho, periods=10)


@pytest.mark.parametrize(("last", "periods"), [(0.0, 5), (-1.0, 5), (math.nan, 5), (0.5, 1), (0.5, 2.5)])
def test_a_line_needs_two_ends(last: float, periods: int) -> None:
    with pytest.raises(Refused):
        Linear(last=last, periods=periods)


@pytest.mark.parametrize("schedule", DECAYING)
def test_pieces_of_many_steps_take_linear_time(schedule: Schedule) -> None:
    """Thirty times the steps: linear time is 30, quadratic 900."""

    def pieces(steps: int) -> None:
        assert sum(count for _, count in schedule.pieces(0, steps, 1000)) == steps

    assert times_as_long(lambda _: pieces(300_000), lambda _: pieces(10_000)) < 200


@pytest.mark.parametrize(
    ("schedule", "finest"),
    [(Constant(), 1.0806), (InverseFourthRoot(), 2.8305), (InverseRoot(), 19.8178)],
    ids=["constant", "fourth root", "root"],
)
def test_entries_are_composed_one_by_one(schedule: Schedule, finest: float) -> None:
    """N=60000, B=1024, 40 epochs, z=3, per epoch: never below the finest value known, at most 0.5 % above it."""
    horizon = Horizon.of(records=60_000, batch=1024, epochs=40)
    recipe = methods.automatic().using(schedule=schedule)
    epsilon = recipe.bind(noise=3.0, horizon=horizon, delta=1e-5).certificate().epsilon
    assert finest * (1 - 1e-4) <= epsilon <= finest * 1.005


def test_a_table_keeps_its_own_numbers() -> None:
    """A list that changes after the charge would change the noise."""
    factors = [1.0, 0.5]
    table = Table(factors)  # type: ignore[arg-type]
    factors[0] = 0.01
    assert table == Table((1.0, 0.5)) == Table(np.array([1, 0.5], dtype=np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("factors", [torch.ones(2), [torch.ones(())], np.ones((2, 2)), "12", [True], 1.0])
def test_what_is_no_list_of_numbers_is_refused_as_a_table(factors: object) -> None:
    with pytest.raises(Refused, match=r"(?s)factors to be 1 or more numbers.*tensor\.tolist\(\)"):
        Table(factors)  # type: ignore[arg-type]
