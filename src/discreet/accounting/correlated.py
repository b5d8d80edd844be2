"""Correlated Gaussian noise: lower-triangular Toeplitz matrices C, and how far one record moves C x.

Step t releases x_t + clip * noise * (C^-1 z)_t with z standard normal. That is post-processing of C x + clip * noise *
z, one Gaussian release whose sensitivity is the largest norm of C u, where u holds the contributions of one record to
all steps (docs/proofs/CorrelatedRun.md). Sensitivities are in clips, and rounded up.

>>> round(Toeplitz(bsr(4)).separated(steps=2000, most=20, apart=100), 5)
5.45579
"""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import CorrelatedRun, CyclicPoissonRun, Gaussian, PoissonSampled, ReshuffledRun, units
from discreet.accounting.pld import Floats
from discreet.core import check
from discreet.core.relation import Neighbouring

_ROUND_UP: Final = 1 + 1e-12
_LARGEST: Final = 1000.0
_CELLS: Final = 512  # groups of positions of an epoch; with more steps an epoch, distances are rounded down


def bsr(bands: int) -> tuple[float, ...]:
    """The first coefficients of (1 - x)^(-1/2): the square root of the matrix of prefix sums (arXiv 2405.13763).

    >>> bsr(4)
    (1.0, 0.5, 0.375, 0.3125)
    """
    return _binomial(bands, -1)


def bisr(bands: int) -> tuple[float, ...]:
    """The first coefficients of (1 - x)^(1/2), for C^-1 (arXiv 2505.12128).

    >>> bisr(4)
    (1.0, -0.5, -0.125, -0.0625)
    """
    return _binomial(bands, -3)


def _binomial(bands: int, shift: int) -> tuple[float, ...]:
    check.count("use at least one band; one band is independent noise", bands=bands)
    factors = ((2 * k + shift) / (2 * k) for k in range(1, bands))
    return tuple(itertools.accumulate(factors, operator.mul, initial=1.0))


@final
@dataclass(frozen=True)
class Toeplitz:
    """C by the first coefficients of its first column or, if `inverse`, of that of C^-1; the others are 0."""

    coefficients: tuple[float, ...]
    inverse: bool = False

    def column(self, steps: int) -> Floats:
        """The first column of C for a run of `steps` steps."""
        given = np.array(self.coefficients[:steps], dtype=np.float64)
        if self.inverse:
            return inverted(given, steps)
        return np.concatenate([given, np.zeros(steps - len(given))])

    def noise(self, steps: int) -> Floats:
        """The first column of C^-1: how the noise of a step enters the later ones."""
        return Toeplitz(self.coefficients, not self.inverse).column(steps)

    # -- how far one record moves C x ------------------------------------------------------------------

    def once(self, steps: int) -> float:
        """The norm of the largest column: a record in one step."""
        return float(np.linalg.norm(self.column(steps))) * _ROUND_UP

    def separated(self, *, steps: int, most: int, apart: int) -> float:
        """A record in at most `most` steps, any two of them at least `apart` steps apart."""
        column = self.column(steps)
        times = min(most, -(-steps // apart))
        if (np.diff(column) <= 0).all() and column[-1] >= 0:
            # The earliest and closest steps are the worst: 0, apart, 2 apart, …
            return norm_of_sum(column, range(0, times * apart, apart)) * _ROUND_UP
        expected = f"coefficients that are not negative and do not increase, for more than {apart} bands"
        remedy = "use bsr, bisr or optimised coefficients, or fewer bands"
        check.require(not column[apart:].any(), expected, "others", remedy)
        return math.sqrt(times) * self.once(steps)  # the columns of such steps share no row

    def reshuffled(self, *, steps: int, per_epoch: int) -> float:
        """A record in one step of every epoch, at any place of it: an upper bound, exact but for the end of the run.

        The product of two columns depends on their distance, by `reach`. Neighbouring epochs are followed place by
        place; epochs further apart count at their smallest distance. Up to per_epoch + 1 bands these do not meet.
        """
        column = self.column(steps)
        remedy = "use bsr, bisr or optimised coefficients"
        check.require(bool((column >= 0).all()), "coefficients that are not negative", "others", remedy)
        reach = _reach(column)
        epochs = -(-steps // per_epoch)
        width = -(-per_epoch // _CELLS)
        cells = -(-per_epoch // width)
        index = np.arange(cells)
        nearest = per_epoch + (index[:, None] - index[None, :]) * width - (width - 1)  # of place [now, before]
        gain = 2 * _at(reach, np.maximum(nearest, 1))
        best = np.full(cells, reach[0])
        for _ in range(1, epochs):
            best = reach[0] + (best[None, :] + gain).max(axis=1)
        lags = np.arange(2, max(2, epochs))
        further = 2 * (epochs - lags) @ _at(reach, (lags - 1) * per_epoch + 1)
        return math.sqrt(float(best.max() + further)) * _ROUND_UP


def inverted(series: Floats, steps: int) -> Floats:
    """The first `steps` coefficients of 1 / series."""
    out = np.zeros(steps)
    out[0] = 1 / series[0]
    tail = series[1:] / series[0]
    for t in range(1, steps):
        known = min(t, len(tail))
        out[t] = -(tail[:known] @ out[t - known : t][::-1])
    return out


def norm_of_sum(column: Floats, steps: Sequence[int]) -> float:
    """|| sum of the columns of these steps ||."""
    return float(np.linalg.norm(sum_of_columns(column, steps)))


def sum_of_columns(column: Floats, steps: Sequence[int]) -> Floats:
    total = np.zeros(len(column))
    for step in steps:
        total[step:] += column[: len(column) - step]
    return total


def _reach(column: Floats) -> Floats:
    """At each distance, a bound on the product of two columns that are at least so far apart."""
    size = 2 ** (2 * len(column) - 1).bit_length()
    spectrum = np.fft.rfft(column, size)
    products = np.fft.irfft(np.abs(spectrum) ** 2, size)[: len(column)]
    products[0] = column @ column
    products[np.flatnonzero(column)[-1] + 1 :] = 0.0
    products += 1e-13 * products[0] * (products > 0)  # the rounding of the transform
    return np.asarray(np.maximum.accumulate(np.maximum(products, 0.0)[::-1])[::-1])


def _at(reach: Floats, distance: npt.NDArray[np.int64]) -> Floats:
    return np.where(distance < len(reach), reach[np.minimum(distance, len(reach) - 1)], 0.0)


# -- events ------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _separated(coefficients: tuple[float, ...], inverse: bool, steps: int, most: int, apart: int) -> float:
    return Toeplitz(coefficients, inverse).separated(steps=steps, most=most, apart=apart)


@functools.lru_cache(maxsize=256)
def _reshuffled(coefficients: tuple[float, ...], inverse: bool, steps: int, per_epoch: int) -> float:
    return Toeplitz(coefficients, inverse).reshuffled(steps=steps, per_epoch=per_epoch)


def _mu(moved: float, noise: float, relation: Neighbouring) -> float:
    return units(relation) * moved / noise if noise > 0 and 0 < moved < math.inf else math.inf


def separated_mu(event: CorrelatedRun, relation: Neighbouring) -> float:
    """units * sensitivity / noise: the run is one Gaussian release."""
    moved = _separated(event.coefficients, event.inverse, event.steps, event.most, event.apart)
    return _mu(moved, event.noise, relation)


def reshuffled_mu(event: ReshuffledRun, relation: Neighbouring) -> float:
    """The same for one step of every epoch."""
    moved = _reshuffled(event.coefficients, event.inverse, event.steps, event.steps_per_epoch)
    return _mu(moved, event.noise, relation)


@functools.lru_cache(maxsize=256)
def check_stable(coefficients: tuple[float, ...], inverse: bool, steps: int) -> None:
    """Refuse a matrix whose columns, or those of its inverse, grow: rounding would then be as large as the noise."""
    matrix, scale = Toeplitz(coefficients, inverse), coefficients[0]
    with np.errstate(all="ignore"):
        largest = max(float(np.abs(matrix.column(steps)).max()), float(np.abs(matrix.noise(steps)).max()))
    expected = f"a matrix and an inverse with entries of at most {_LARGEST:g}, beginning with {1 / _LARGEST:g} or more"
    remedy = "use bsr, bisr or optimised coefficients"
    check.require(scale >= 1 / _LARGEST and largest <= _LARGEST, expected, f"{largest:g}", remedy)


def cyclic_blocks(event: CyclicPoissonRun) -> tuple[PoissonSampled, int]:
    """One sampled Gaussian for every block of as many steps as there are parts: no column reaches a second block."""
    norm = Toeplitz(event.coefficients).once(len(event.coefficients))
    return PoissonSampled(event.rate, Gaussian(event.noise / norm)), -(-event.steps // event.parts)
