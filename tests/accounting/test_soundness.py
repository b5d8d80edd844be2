"""Certificates against densities and against mechanisms with every batch spelled out."""

import math
from dataclasses import dataclass

import numpy as np
import oracle
import pytest
from deltas import delta_at

from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import (
    BallsInBinsEpoch,
    Gaussian,
    PoissonSampled,
    TruncatedPoissonSampled,
    WithoutReplacement,
)
from discreet.core.relation import Neighbouring

ADD_REMOVE, REPLACE_ONE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
FINE = 0.005  # what the accountants may add to the truth


def epsilon(charge: Charge, delta: float = 1e-5, relation: Neighbouring = ADD_REMOVE) -> float:
    return certify(charge, delta=delta, relation=relation).epsilon


def poisson(rate: float, noise: float, steps: int = 1) -> Charge:
    return Charge.of(PoissonSampled(rate, Gaussian(noise)), steps)


# Against densities: no accountant on the other side -------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize(("rate", "noise"), [(1.0, 1.0), (0.5, 0.7), (0.1, 1.0), (0.01, 0.6), (0.3, 3.0)])
def test_one_poisson_step_is_the_quadrature(rate: float, noise: float, delta: float) -> None:
    found = epsilon(poisson(rate, noise), delta)
    one, other = oracle.mixture([1 - rate, rate], [0, 1], noise), oracle.normal(0, noise)
    assert oracle.both_directions(one, other, found, noise) <= delta * (1 + 1e-6)
    if found > 0:
        assert oracle.both_directions(one, other, found * (1 - FINE), noise) > delta


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize("steps", [1, 3])
def test_gaussian_steps_are_the_quadrature_under_both_relations(relation: Neighbouring, steps: int) -> None:
    moved = 1 if relation is ADD_REMOVE else 2
    noise, delta = 1.3, 1e-5
    found = epsilon(Charge.of(Gaussian(noise), steps), delta, relation)
    one, other = oracle.normal(math.sqrt(steps) * moved, noise), oracle.normal(0, noise)
    assert oracle.both_directions(one, other, found, noise) == pytest.approx(delta, rel=1e-5)


def test_two_poisson_steps_are_the_quadrature_over_the_plane() -> None:
    rate, noise, delta = 0.2, 0.8, 1e-4
    found = epsilon(poisson(rate, noise, 2), delta)
    one, other = oracle.mixture([1 - rate, rate], [0, 1], noise), oracle.normal(0, noise)
    assert oracle.product_hockey_stick([one, one], [other, other], found, noise) <= delta * (1 + 1e-4)
    assert oracle.product_hockey_stick([one, one], [other, other], found * (1 - FINE), noise) > delta


def test_a_schedule_of_two_noises_is_the_quadrature_over_the_plane() -> None:
    rate, delta = 0.2, 1e-4
    charge = poisson(rate, 0.8) + poisson(rate, 1.1)
    found = epsilon(charge, delta)
    ones = [oracle.mixture([1 - rate, rate], [0, 1], noise) for noise in (0.8, 1.1)]
    others = [oracle.normal(0, noise) for noise in (0.8, 1.1)]
    assert oracle.product_hockey_stick(ones, others, found, 1.1) <= delta * (1 + 1e-4)
    assert oracle.product_hockey_stick(ones, others, found * (1 - FINE), 1.1) > delta


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_curve_without_replacement_is_the_quadrature(delta: float) -> None:
    records, batch, noise = 20, 4, 2.0
    rate = batch / records
    found = epsilon(Charge.of(WithoutReplacement(records, batch, Gaussian(noise))), delta, REPLACE_ONE)
    one, other = oracle.mixture([1 - rate, rate], [0, 2], noise), oracle.normal(0, noise)
    assert oracle.hockey_stick(one, other, found, noise) <= delta * (1 + 1e-6)
    assert oracle.hockey_stick(one, other, found * (1 - FINE), noise) > delta


# Whole mechanisms, every batch spelled out: the certificate must hold for each of them ---------------------


@dataclass(frozen=True)
class Neighbours:
    one: tuple[float, ...]
    other: tuple[float, ...]


REPLACED = [
    Neighbours((0, 0, 0, 1), (0, 0, 0, -1)),
    Neighbours((1, 1, 1, 1), (1, 1, 1, -1)),
    Neighbours((1, -1, 1, 1), (1, -1, 1, -1)),
    Neighbours((0.5, -0.5, 1, 1), (0.5, -0.5, 1, 0)),
]
ADDED = [
    Neighbours((0, 0, 0, 1), (0, 0, 0)),
    Neighbours((-1, -1, -1, 1), (-1, -1, -1)),
    Neighbours((1, -1, 1, 1), (1, -1, 1)),
    Neighbours((1, 1, 1, -1), (1, 1, 1)),
]


@pytest.mark.parametrize("pair", REPLACED, ids=str)
@pytest.mark.parametrize("at", [0.0, 0.3, 1.0, 2.5])
def test_no_dataset_exceeds_the_certificate_without_replacement(pair: Neighbours, at: float) -> None:
    noise = 1.0
    certified = delta_at(Charge.of(WithoutReplacement(4, 2, Gaussian(noise))), epsilon=at, relation=REPLACE_ONE)
    one = oracle.mixture(*oracle.without_replacement(pair.one, 2), noise)
    other = oracle.mixture(*oracle.without_replacement(pair.other, 2), noise)
    assert oracle.both_directions(one, other, at, noise) <= certified * (1 + 1e-6)


@pytest.mark.parametrize("pair", REPLACED, ids=str)
def test_no_dataset_exceeds_the_certificate_of_two_batches_without_replacement(pair: Neighbours) -> None:
    noise = 1.0
    charge = Charge.of(WithoutReplacement(4, 2, Gaussian(noise)), 2)
    one = oracle.mixture(*oracle.without_replacement(pair.one, 2), noise)
    other = oracle.mixture(*oracle.without_replacement(pair.other, 2), noise)
    for at in (0.0, 0.5, 2.0):
        certified = delta_at(charge, epsilon=at, relation=REPLACE_ONE)
        assert oracle.product_hockey_stick([one, one], [other, other], at, noise) <= certified * (1 + 1e-4)


@pytest.mark.parametrize("pair", ADDED, ids=str)
@pytest.mark.parametrize("cap", [1, 2, 3, 4])
@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_no_dataset_exceeds_the_certificate_of_a_capped_batch(pair: Neighbours, cap: int, rate: float) -> None:
    noise = 1.0
    one = oracle.mixture(*oracle.truncated_poisson(pair.one, rate, cap), noise)
    other = oracle.mixture(*oracle.truncated_poisson(pair.other, rate, cap), noise)
    charge = Charge.of(TruncatedPoissonSampled(rate, cap, 4, Gaussian(noise)))
    for at in (0.0, 0.5, 1.5, 3.0):
        certified = delta_at(charge, epsilon=at, relation=ADD_REMOVE)
        assert oracle.both_directions(one, other, at, noise) <= certified * (1 + 1e-6)


def test_a_cap_is_not_free() -> None:
    """Negative control: charged as plain Poisson the capped batch would exceed its certificate."""
    pair, rate, noise = ADDED[1], 0.7, 1.0
    one = oracle.mixture(*oracle.truncated_poisson(pair.one, rate, 2), noise)
    other = oracle.mixture(*oracle.truncated_poisson(pair.other, rate, 2), noise)
    plain = delta_at(poisson(rate, noise), epsilon=1.5, relation=ADD_REMOVE)
    assert oracle.both_directions(one, other, 1.5, noise) > plain


@pytest.mark.parametrize("records", [60_000, 76_000, 120_000, 200_000])
def test_a_public_bound_on_the_size_covers_every_smaller_size(records: int) -> None:
    """A full batch is rarer with fewer records: the certificate may only fall."""
    smaller = [epsilon(Charge.of(TruncatedPoissonSampled(0.01, 700, n, Gaussian(1.0)), 100)) for n in (60_000, 70_000)]
    bound = epsilon(Charge.of(TruncatedPoissonSampled(0.01, 700, max(records, 70_000), Gaussian(1.0)), 100))
    assert bound >= max(smaller) * (1 - 1e-3)


@pytest.mark.parametrize("pair", ADDED, ids=str)
def test_no_dataset_exceeds_the_certificate_of_balls_in_bins(pair: Neighbours) -> None:
    """One epoch of two steps: every record joins either step with probability 1/2. The plane, exactly."""
    noise, at = 1.0, 1.0
    x = np.linspace(-4 - 8 * noise, 4 + 8 * noise, 1201)

    def density(values: tuple[float, ...]) -> np.ndarray:
        total = np.zeros((len(x), len(x)))
        for mask in range(2 ** len(values)):
            first = sum(v for i, v in enumerate(values) if mask >> i & 1)
            parts = oracle.normal(first, noise)(x), oracle.normal(sum(values) - first, noise)(x)
            total += np.outer(*parts) / 2 ** len(values)
        return total

    one, other, cell = density(pair.one), density(pair.other), (x[1] - x[0]) ** 2
    gamma = math.exp(at)
    truth = max(np.maximum(one - gamma * other, 0).sum(), np.maximum(other - gamma * one, 0).sum()) * cell
    certified = delta_at(Charge.of(BallsInBinsEpoch(1, Gaussian(noise))), epsilon=at, relation=ADD_REMOVE)
    assert truth <= certified * (1 + 1e-4)
