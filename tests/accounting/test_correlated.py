"""Sensitivities of correlated noise, against every participation pattern of small runs and in two dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from discreet.accounting import correlated, gdp
from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.correlated import Toeplitz, bisr, bsr, inverted, reshuffled_mu, separated_mu
from discreet.accounting.events import CorrelatedRun, CyclicPoissonRun, Event, ReshuffledRun, event_from_json
from discreet.accounting.pld import Floats
from discreet.core.check import Refused
from discreet.core.relation import Neighbouring

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
MATRICES = [
    Toeplitz((1.0,)),
    Toeplitz(bsr(4)),
    Toeplitz(bsr(12)),
    Toeplitz(bisr(3), inverse=True),
    Toeplitz(bisr(12), inverse=True),
    Toeplitz((2.0, 2.0, 0.5, 0.0, 0.0)),
]


def dense(matrix: Toeplitz, steps: int) -> Floats:
    column = matrix.column(steps)
    return np.array([[column[row - col] if row >= col else 0.0 for col in range(steps)] for row in range(steps)])


def spread(steps: int, most: int, apart: int) -> Iterator[tuple[int, ...]]:
    """Every pattern of at most so many steps, so far apart."""
    for count in range(1, most + 1):
        for pattern in itertools.combinations(range(steps), count):
            if all(late - early >= apart for early, late in itertools.pairwise(pattern)):
                yield pattern


def each_epoch(steps: int, per_epoch: int) -> Iterator[tuple[int, ...]]:
    epochs = [range(first, min(first + per_epoch, steps)) for first in range(0, steps, per_epoch)]
    yield from itertools.product(*epochs)


def moved(gram: Floats, pattern: Sequence[int]) -> float:
    """The furthest move with contributions in any directions, if no entry of the Gram matrix is negative."""
    return math.sqrt(float(gram[np.ix_(pattern, pattern)].sum()))


@pytest.mark.parametrize("matrix", MATRICES, ids=str)
@pytest.mark.parametrize(("most", "apart"), [(4, 3), (3, 4), (3, 1), (2, 6), (12, 1), (1, 12), (9, 5)])
def test_separated_is_the_worst_of_all_patterns(matrix: Toeplitz, most: int, apart: int) -> None:
    steps = 12
    gram = dense(matrix, steps).T @ dense(matrix, steps)
    worst = max(moved(gram, pattern) for pattern in spread(steps, most, apart))
    assert matrix.separated(steps=steps, most=most, apart=apart) == pytest.approx(worst, rel=1e-9)
    assert matrix.separated(steps=steps, most=most, apart=apart) >= worst


@pytest.mark.parametrize("matrix", MATRICES, ids=str)
@pytest.mark.parametrize(("steps", "per_epoch"), [(12, 3), (12, 4), (12, 6), (11, 4), (8, 2), (6, 1), (5, 5), (4, 9)])
def test_reshuffled_bounds_every_order(matrix: Toeplitz, steps: int, per_epoch: int) -> None:
    gram = dense(matrix, steps).T @ dense(matrix, steps)
    worst = max(moved(gram, pattern) for pattern in each_epoch(steps, per_epoch))
    found = matrix.reshuffled(steps=steps, per_epoch=per_epoch)
    assert worst <= found <= 1.35 * worst  # the end of so short a run, and distant epochs, are rounded up


def test_reshuffled_is_exact_where_it_matters() -> None:
    """Long epochs and few bands: only the end of the run is rounded up, and the worst record avoids it."""
    matrix, steps, per_epoch = Toeplitz(bsr(4)), 24, 8
    gram = dense(matrix, steps).T @ dense(matrix, steps)
    worst = max(moved(gram, pattern) for pattern in each_epoch(steps, per_epoch))
    assert matrix.reshuffled(steps=steps, per_epoch=per_epoch) == pytest.approx(worst, rel=1e-9)


def test_reshuffled_groups_the_places_of_long_epochs_upwards() -> None:
    exact = Toeplitz(bsr(64)).reshuffled(steps=5000, per_epoch=500)
    grouped = Toeplitz(bsr(64)).reshuffled(steps=13000, per_epoch=1300)  # as many epochs, groups of three places
    assert exact <= grouped <= 1.02 * exact


def test_contributions_in_two_dimensions_never_move_further() -> None:
    """Directions that turn from step to step, on the worst patterns and on all others."""
    rng = np.random.default_rng(0)
    for matrix in MATRICES:
        full = dense(matrix, 8)
        bound = matrix.separated(steps=8, most=3, apart=2)
        for pattern in spread(8, 3, 2):
            angles = rng.uniform(0, 2 * math.pi, (40, len(pattern)))
            for turn in angles:
                contribution = np.zeros((8, 2))
                contribution[list(pattern)] = np.stack([np.cos(turn), np.sin(turn)], axis=1)
                assert np.linalg.norm(full @ contribution) <= bound


def test_negative_products_of_columns_are_refused() -> None:
    """With negative entries in C^T C, equal contributions are not the worst: neither are signs, in two dimensions."""
    column = np.array([1.0, -0.9, 0.0, 0.0])
    full = np.array([[column[r - c] if r >= c else 0.0 for c in range(4)] for r in range(4)])
    alike = np.linalg.norm(full @ np.ones((4, 1)))
    turned = np.linalg.norm(full @ np.array([[1.0], [-1.0], [1.0], [-1.0]]))
    assert turned > alike
    matrix = Toeplitz((1.0, -0.9))
    with pytest.raises(Refused, match="not negative and do not increase"):
        matrix.separated(steps=4, most=4, apart=1)
    with pytest.raises(Refused, match="not negative"):
        matrix.reshuffled(steps=4, per_epoch=2)
    # At least as far apart as there are bands, columns share no row and signs do not matter.
    assert matrix.separated(steps=4, most=2, apart=2) == pytest.approx(math.sqrt(2 * 1.81))


def test_coefficients_that_increase_are_refused() -> None:
    """For them the closest steps need not be the worst: two columns at distance 2 share more than at distance 1."""
    rising = Toeplitz((1.0, 0.0, 0.9))
    gram = dense(rising, 6).T @ dense(rising, 6)
    assert moved(gram, (0, 2)) > moved(gram, (0, 1))
    with pytest.raises(Refused, match="do not increase"):
        rising.separated(steps=6, most=2, apart=1)
    worst = max(moved(gram, pattern) for pattern in each_epoch(6, 2))
    assert rising.reshuffled(steps=6, per_epoch=2) >= worst  # which needs no order of the coefficients


@pytest.mark.parametrize("bands", [1, 2, 7])
def test_bsr_and_bisr_are_square_roots(bands: int) -> None:
    root = np.array(bsr(50))
    np.testing.assert_allclose(np.convolve(root, root)[:50], np.ones(50), rtol=1e-12)
    np.testing.assert_allclose(np.array(bisr(50)), inverted(root, 50), atol=1e-14)
    assert bsr(bands) == bsr(50)[:bands]
    assert bisr(bands) == bisr(50)[:bands]
    matrix = Toeplitz(bisr(bands), inverse=True)
    np.testing.assert_allclose(dense(matrix, 20) @ dense(Toeplitz(bisr(bands)), 20), np.eye(20), atol=1e-12)


# -- events ------------------------------------------------------------------------------------------------------

BSR = bsr(3)
EVENTS: list[Event] = [
    CorrelatedRun(noise=3.0, coefficients=BSR, inverse=False, steps=30, most=3, apart=10),
    ReshuffledRun(noise=3.0, coefficients=BSR, inverse=False, steps=30, steps_per_epoch=10),
    CyclicPoissonRun(rate=0.3, noise=3.0, coefficients=BSR, parts=3, steps=30),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_events_survive_json_and_cost_more_with_less_noise_and_more_steps(event: Event) -> None:
    import dataclasses

    assert event_from_json(event.to_json()) == event
    relation = REPLACE if isinstance(event, ReshuffledRun) else ADD

    def epsilon(of: Event, times: int = 1) -> float:
        return certify(Charge.of(of, times), delta=1e-5, relation=relation).epsilon

    assert epsilon(dataclasses.replace(event, noise=2.0)) > epsilon(event)
    assert epsilon(event, 2) > epsilon(event)
    longer = {"most": 6} if isinstance(event, CorrelatedRun) else {}
    assert epsilon(dataclasses.replace(event, steps=60, **longer)) > epsilon(event)
    assert math.isinf(epsilon(dataclasses.replace(event, noise=0.0)))


def test_relations() -> None:
    with pytest.raises(Refused, match="reshuffled-run under replace-one"):
        certify(Charge.of(EVENTS[1]), delta=1e-5, relation=ADD)
    with pytest.raises(Refused, match="cyclic-poisson-run under add/remove"):
        certify(Charge.of(EVENTS[2]), delta=1e-5, relation=REPLACE)
    one, two = (certify(Charge.of(EVENTS[0]), delta=1e-5, relation=relation).epsilon for relation in (ADD, REPLACE))
    double = CorrelatedRun(noise=6.0, coefficients=BSR, inverse=False, steps=30, most=3, apart=10)
    assert two > one
    assert certify(Charge.of(double), delta=1e-5, relation=REPLACE).epsilon == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("coefficients", [(), (0.0, 1.0), (-1.0,), (1.0, math.nan), (1.0, math.inf), [1.0]])
def test_other_coefficients_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(Refused, match="finite coefficients"):
        CorrelatedRun(noise=1.0, coefficients=coefficients, inverse=False, steps=3, most=1, apart=1)


def test_more_bands_than_parts_are_refused() -> None:
    with pytest.raises(Refused, match="at most 2 bands"):
        CyclicPoissonRun(rate=0.3, noise=3.0, coefficients=BSR, parts=2, steps=30)


# -- certificates against likelihood ratios ------------------------------------------------------------------------


def hockey_stick(losses: Floats, epsilon: float) -> tuple[float, float]:
    """The mean of (1 - e^(epsilon - loss))^+ over losses drawn with the record, and its standard error."""
    parts = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))
    return float(parts.mean()), float(parts.std() / math.sqrt(len(parts)))


@pytest.mark.parametrize("matrix", [Toeplitz(bsr(3)), Toeplitz(bisr(2), inverse=True)], ids=str)
def test_delta_of_the_worst_record_is_that_of_the_certificate(matrix: Toeplitz) -> None:
    """Simulated from releases y = x + C^-1 z, with their covariance: not by the formula that the certificate uses."""
    steps, apart, noise, delta = 6, 2, 2.0, 1e-2
    event = CorrelatedRun(
        noise=noise, coefficients=matrix.coefficients, inverse=matrix.inverse, steps=steps, most=3, apart=apart
    )
    epsilon = certify(Charge.of(event), delta=delta, relation=ADD).epsilon
    mixing = np.linalg.inv(dense(matrix, steps)) * noise
    precision = np.linalg.inv(mixing @ mixing.T)
    rng = np.random.default_rng(1)
    z = rng.standard_normal((400_000, steps))
    shift = np.zeros(steps)
    shift[::apart] = 1.0
    released = shift + z @ mixing.T
    losses = released @ precision @ shift - shift @ precision @ shift / 2
    found, error = hockey_stick(losses, epsilon)
    assert found == pytest.approx(delta, abs=5 * error)  # false alarms: below 1e-6
    early = np.array([1.0, 0, 1, 0, 0, 0])
    losses = (early + z @ mixing.T) @ precision @ early - early @ precision @ early / 2
    assert hockey_stick(losses, epsilon)[0] + 5 * error < delta  # negative control: a record that comes less often


def test_delta_of_cyclic_poisson_is_below_the_certificate() -> None:
    """Two cycles of two parts: the exact mixture over the four samples of a record in the first part."""
    matrix, steps, rate, noise, delta = Toeplitz((1.0, 0.6)), 4, 0.4, 1.0, 1e-2
    event = CyclicPoissonRun(rate=rate, noise=noise, coefficients=matrix.coefficients, parts=2, steps=steps)
    epsilon = certify(Charge.of(event), delta=delta, relation=ADD).epsilon
    mixing = np.linalg.inv(dense(matrix, steps)) * noise
    precision = np.linalg.inv(mixing @ mixing.T)
    rng = np.random.default_rng(2)
    coins = rng.random((1_000_000, 2)) < rate
    z = rng.standard_normal((len(coins), steps))
    for first in (0, 1):
        shift = np.zeros((len(coins), steps))
        shift[:, first::2] = coins
        for joined in (True, False):  # with || without, and without || with
            seen = (shift if joined else 0.0) + z @ mixing.T
            ratios = []
            for bits in itertools.product((0, 1), repeat=2):
                move = np.zeros(steps)
                move[first::2] = bits
                weight = math.prod(rate if bit else 1 - rate for bit in bits)
                ratios.append(math.log(weight) + seen @ precision @ move - move @ precision @ move / 2)
            losses = np.logaddexp.reduce(ratios, axis=0) * (1 if joined else -1)
            found, error = hockey_stick(losses, epsilon)
            assert found <= delta + 5 * error
            if joined and first == 0:  # the certificate is tight for the first part
                assert found >= delta * 0.9 - 5 * error
    # Negative control: the price of plain Poisson sampling at the mean rate is too low.
    cheap = CyclicPoissonRun(rate=rate / 2, noise=noise, coefficients=(1.0,), parts=1, steps=steps)
    assert certify(Charge.of(cheap), delta=delta, relation=ADD).epsilon < epsilon


@pytest.mark.parametrize("rule", ["sign", "drop"])
def test_contributions_that_react_to_releases_gain_nothing(rule: str) -> None:
    """A record whose contributions depend on what was released; both directions, false alarms below 1e-6."""
    steps, delta, draws = 4, 1e-2, 300_000
    matrix = Toeplitz(bsr(3))
    event = CorrelatedRun(noise=2.5, coefficients=bsr(3), inverse=False, steps=steps, most=steps, apart=1)
    epsilon = certify(Charge.of(event), delta=delta, relation=ADD).epsilon
    column, rng = matrix.column(steps), np.random.default_rng(7)
    for joined in (True, False):
        ratio, sent = np.zeros(draws), np.zeros((steps, draws))
        for step in range(steps):
            sent[step] = np.where(ratio >= 0, 1, -1) if rule == "sign" else np.where(ratio > 2, 0, 1)
            shift = column[: step + 1][::-1] @ sent[: step + 1] / 2.5
            seen = rng.standard_normal(draws) + (shift if joined else 0.0)
            ratio += shift * seen - shift**2 / 2
        found, error = hockey_stick(ratio if joined else -ratio, epsilon)
        assert found <= delta + 5 * error


@pytest.mark.parametrize(
    ("coefficients", "inverse"),
    [((1.0, 3.0, 1.0), True), ((1.0, -3.0), True), ((1.0, 2.0), False), ((1e200,), False), ((1e-170,), False)],
)
def test_matrices_that_grow_overflow_or_vanish_are_refused(coefficients: tuple[float, ...], inverse: bool) -> None:
    """Their sensitivity is NaN or 0 in floating point, or rounding is as large as the noise."""
    with pytest.raises(Refused, match="entries of at most 1000"):
        CorrelatedRun(noise=1.0, coefficients=coefficients, inverse=inverse, steps=2000, most=1, apart=2000)
    with pytest.raises(Refused, match="entries of at most 1000"):
        ReshuffledRun(noise=1.0, coefficients=coefficients, inverse=inverse, steps=2000, steps_per_epoch=200)


@pytest.mark.parametrize("moved", [math.nan, math.inf, 0.0, -1.0])
def test_a_sensitivity_that_is_no_positive_number_has_no_price(moved: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gdp.delta(math.nan, 1.0) == 1.0
    assert gdp.epsilon(math.nan, 1e-5) == math.inf
    for name, mu, event in (("_separated", separated_mu, EVENTS[0]), ("_reshuffled", reshuffled_mu, EVENTS[1])):
        monkeypatch.setattr(correlated, name, lambda *_: moved)
        assert mu(event, REPLACE) == math.inf  # type: ignore[operator]
