"""Schedules: a factor for each step, and the same in pieces."""

from __future__ import annotations

import itertools

import pytest

from discreet.core.check import Refused
from discreet.stages.schedules import Constant, Period, Schedule, Table, run_lengths

TABLES: list[Schedule] = [
    Constant(),
    Table((1.0, 0.5, 0.5, 2.0, 2.0, 2.0, 0.1)),
    Table((1.0, 0.5, 0.25), Period.EPOCH),
]


@pytest.mark.parametrize("schedule", TABLES)
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 5), (3, 3), (6, 7)])
def test_pieces_are_the_factors_in_a_row(schedule: Schedule, start: int, stop: int) -> None:
    spelled = [f for f, count in schedule.pieces(start, stop, 3) for _ in range(count)]
    assert spelled == [schedule.factor(step, 3) for step in range(start, stop)]
    pieces = list(schedule.pieces(start, stop, 3))
    assert all(a[0] != b[0] for a, b in itertools.pairwise(pieces))
    assert list(run_lengths(schedule, start, stop, 3)) == pieces


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
