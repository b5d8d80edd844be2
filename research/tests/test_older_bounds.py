"""Comparison curves: the numbers of the paper's figures, and which of them the setting does not allow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from discreet.accounting import rdp
from discreet.core.check import Refused
from discreet.methods.dpsgd_dc.recipes import LastIterateClaim
from research.reproductions.dpsgd_dc.bounds import FIGURE_1
from research.reproductions.dpsgd_dc.older_bounds import OLDER_BOUNDS, sampled_gaussian_regime

FIGURE_5 = replace(FIGURE_1, records=16)


@pytest.mark.parametrize(
    ("name", "at_100"),
    [
        # by hand: 2*1.1*4*100/(4*16), 8*1.1*4*100/(64*16), .034375*min(100, 20), 1.1/32*(sqrt(1.5)+.4)^2/.04
        ("Feldman et al. 2018", 13.75),
        ("Mironov et al. 2019", 3.4375),
        ("Altschuler and Talwar 2022", 0.6875),
        ("Kong and Ribero 2024", 1.1 / 32 * (math.sqrt(1.5) + 0.4) ** 2 / 0.04),
    ],
)
def test_figure_one(name: str, at_100: float) -> None:
    assert OLDER_BOUNDS[name].rdp(FIGURE_1, 1.1, 100) == pytest.approx(at_100, rel=1e-12)


def test_figure_five() -> None:
    """The trivial bound is far above the paper's, which is flat after a few hundred steps."""
    trivial = OLDER_BOUNDS["trivial"].rdp(FIGURE_5, 1.1, 300)
    assert trivial == pytest.approx(2 * 1.1 * 1.2**2 / (0.2 * 4) ** 2)
    claim = LastIterateClaim(
        records=16, batch=2, clip=2.0, noise_std_on_mean=4.0, steps=300, learning_rate=0.2, smoothness=1.0, diameter=1.0
    ).rdp(1.1)
    assert claim < trivial


def test_the_figure_is_outside_of_the_range_of_two_of_its_curves() -> None:
    """n=8, b=2: the rate 1/4 exceeds 1/5, and z = b sigma / (2C) = 2 is not above 4."""
    held = {name for name, bound in OLDER_BOUNDS.items() if bound.holds(FIGURE_1, 1.1)}
    assert held == {"Feldman et al. 2018", "Kong and Ribero 2024", "trivial"}
    inside = replace(FIGURE_1, records=10_000, batch=100, clip=1.0, noise_std_on_mean=0.2)
    assert all(bound.holds(inside, 2.0) for bound in OLDER_BOUNDS.values())
    coarse = replace(inside, learning_rate=3.0)
    assert not OLDER_BOUNDS["Feldman et al. 2018"].holds(coarse, 2.0)
    assert not OLDER_BOUNDS["Kong and Ribero 2024"].holds(coarse, 2.0)


GRID = [
    (order, rate, noise) for rate, noise in ((0.01, 5.0), (0.1, 8.0), (0.2, 4.5)) for order in (1.5, 2.0, 8.0, 20.0)
]


def test_inside_the_range_the_sampled_gaussian_is_below_its_rule() -> None:
    """The rule bounds D_a(with || without), the larger direction, wherever its conditions hold.

    Controls: the grid has points inside and outside of the range, and a rule four times smaller fails.
    """
    inside = [point for point in GRID if sampled_gaussian_regime(*point)]
    assert 6 <= len(inside) < len(GRID)
    ratios = [
        float(rdp.sampled_gaussian(rate, noise, (order,))[0]) / (order * rate**2 / noise**2)
        for order, rate, noise in inside
    ]
    assert max(ratios) <= 2
    assert max(ratios) > 0.5


def test_the_range_is_not_empty_and_not_everything() -> None:
    assert sampled_gaussian_regime(8.0, 0.01, 5.0)
    assert not sampled_gaussian_regime(8.0, 0.01, 3.9)
    assert not sampled_gaussian_regime(8.0, 0.21, 50.0)
    assert not sampled_gaussian_regime(1e6, 0.1, 5.0)


def test_long_runs_stand_still_where_the_theorem_says_so() -> None:
    inside = replace(FIGURE_1, records=10_000, batch=100, clip=1.0, noise_std_on_mean=0.2)
    flat = OLDER_BOUNDS["Altschuler and Talwar 2022"]
    assert flat.rdp(inside, 2.0, 10**6) == flat.rdp(inside, 2.0, 10**7)
    early = OLDER_BOUNDS["Mironov et al. 2019"].rdp(inside, 2.0, 10)
    assert flat.rdp(inside, 2.0, 10) == pytest.approx(early)
    growing = OLDER_BOUNDS["Feldman et al. 2018"]
    assert growing.rdp(inside, 2.0, 20) == pytest.approx(2 * growing.rdp(inside, 2.0, 10))


def test_nothing_costs_nothing() -> None:
    assert all(bound.rdp(FIGURE_1, 1.1, 0) == 0 for bound in OLDER_BOUNDS.values())


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(Refused, match="diameter"):
        replace(FIGURE_1, diameter=0.0)
