"""Reference numbers of correlated noise: 2000 steps, and small runs by brute force over all patterns."""

from __future__ import annotations

import numpy as np
import pytest

from discreet.accounting import gdp
from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.correlated import Toeplitz, bisr, bsr
from discreet.accounting.events import CorrelatedRun, CyclicPoissonRun
from discreet.core.relation import Neighbouring
from discreet.methods.dp_ftrl.correlated_noise import Workload
from discreet.methods.dp_ftrl.optimised import noise_on_parameters

STEPS = 2000
IDENTITY = Toeplitz((1.0,))


def BSR(bands: int) -> Toeplitz:  # noqa: N802  (the field's name)
    return Toeplitz(bsr(bands))


def BISR(bands: int) -> Toeplitz:  # noqa: N802
    return Toeplitz(bisr(bands), inverse=True)


@pytest.mark.parametrize(
    ("most", "apart", "matrix", "sensitivity", "rms", "noise"),
    [
        (1, 2000, IDENTITY, 1.0, 31.6307, 1.3906),
        (1, 2000, BSR(16), 1.394231, 7.1510, 1.9388),
        (1, 2000, BISR(16), 1.453163, 4.7423, 2.0208),
        (10, 200, IDENTITY, 3.162278, 31.6307, 4.3974),
        (10, 200, BSR(64), 4.887584, 3.7458, 6.7966),
        (10, 200, BISR(64), 5.226508, 2.6640, 7.2679),
        (20, 100, BSR(4), 5.455788, 14.4858, 7.5868),
        (20, 100, BISR(4), 5.696319, 9.9400, 7.9213),
    ],
)
def test_long_runs(most: int, apart: int, matrix: Toeplitz, sensitivity: float, rms: float, noise: float) -> None:
    assert matrix.separated(steps=STEPS, most=most, apart=apart) == pytest.approx(sensitivity, abs=6e-7)
    prefix = np.cumsum(matrix.noise(STEPS))
    assert float(np.sqrt(np.cumsum(prefix**2).mean())) == pytest.approx(rms, abs=6e-5)
    event = CorrelatedRun(
        noise=noise, coefficients=matrix.coefficients, inverse=matrix.inverse, steps=STEPS, most=most, apart=apart
    )
    for relation, times in ((Neighbouring.ADD_REMOVE, 1.0), (Neighbouring.REPLACE_ONE, 0.5)):
        mu = sensitivity / noise / times
        found = certify(Charge.of(event), delta=1e-5, relation=relation).epsilon
        assert found == pytest.approx(gdp.epsilon(mu, 1e-5), rel=1e-5)
    assert certify(Charge.of(event), delta=1e-5, relation=Neighbouring.ADD_REMOVE).epsilon == pytest.approx(3, rel=1e-4)


@pytest.mark.parametrize(
    ("matrix", "apart", "most", "sensitivity"),
    [(BSR(4), 3, 4, 2.780372), (BISR(3), 4, 3, 2.388735), (BISR(3), 1, 3, 3.034714), (BSR(12), 6, 2, 2.139457)],
)
def test_short_runs(matrix: Toeplitz, apart: int, most: int, sensitivity: float) -> None:
    assert matrix.separated(steps=12, most=most, apart=apart) == pytest.approx(sensitivity, abs=6e-7)


def test_ten_epochs_of_two_hundred_steps() -> None:
    """A fixed order, a new order in every epoch, and any ten steps."""
    assert BSR(64).separated(steps=STEPS, most=10, apart=200) == pytest.approx(4.89, abs=0.005)
    assert BSR(64).reshuffled(steps=STEPS, per_epoch=200) == pytest.approx(6.43, abs=0.005)
    assert BSR(64).separated(steps=STEPS, most=10, apart=1) == pytest.approx(12.26, abs=0.005)


@pytest.mark.parametrize(
    ("parts", "noise", "epsilon"),
    [(1, 1, 1.828), (1, 2, 0.622), (4, 1, 4.185), (4, 2, 1.371), (10, 1, 7.047), (25, 2, 3.954)],
)
def test_cyclic_poisson(parts: int, noise: float, epsilon: float) -> None:
    column = (1.0, *((1e-9,) * (parts - 1)))  # of norm 1
    event = CyclicPoissonRun(rate=parts * 0.01, noise=noise, coefficients=column, parts=parts, steps=1000)
    found = certify(Charge.of(event), delta=1e-5, relation=Neighbouring.ADD_REMOVE).epsilon
    assert 0.9995 * epsilon <= found <= 1.005 * epsilon
    scaled = CyclicPoissonRun(
        rate=parts * 0.01, noise=2 * noise, coefficients=tuple(2 * c for c in column), parts=parts, steps=1000
    )
    again = certify(Charge.of(scaled), delta=1e-5, relation=Neighbouring.ADD_REMOVE).epsilon
    assert again == pytest.approx(found, rel=1e-6)  # only the ratio to the norm of a column counts


def test_noise_on_parameters_of_plain_sgd_is_the_noise_on_prefix_sums() -> None:
    assert noise_on_parameters(BSR(16).noise(400), Workload()) == pytest.approx(
        float(np.sqrt(np.cumsum(np.cumsum(BSR(16).noise(400)) ** 2).mean()))
    )
