"""Bounds of earlier papers for the same run, as curves to compare with. None of them is used as a certificate.

All are Rényi divergences at an order a, for noise N(0, sigma^2 I) on the mean of a batch. `holds` says whether the
conditions that can be read off the numbers are met; what must be true of the losses is in `assumes`. Constants are
those that the DPSGD-DC paper draws in its Figures 1 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from discreet.core import check


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """The public numbers of the bounds; `clip` is their Lipschitz constant M."""

    records: int
    batch: float
    clip: float
    noise_std_on_mean: float
    learning_rate: float
    smoothness: float
    diameter: float
    weak_convexity: float = 0.0

    def __post_init__(self) -> None:
        check.count("the public size of the data", records=self.records)
        check.positive("bounds and batch sizes are positive", batch=self.batch, clip=self.clip)
        check.positive("the noise and the learning rate are positive", noise_std_on_mean=self.noise_std_on_mean)
        check.positive("the learning rate multiplies the mean", learning_rate=self.learning_rate)
        check.positive("the diameter of the domain; a ball of radius r has 2r", diameter=self.diameter)
        check.not_negative("curvatures", smoothness=self.smoothness, weak_convexity=self.weak_convexity)

    @property
    def rate(self) -> float:
        return self.batch / self.records

    def noise(self, spread: float) -> float:
        """The noise over `spread` clips of one record's share of the mean."""
        return self.batch * self.noise_std_on_mean / (spread * self.clip)


@final
@dataclass(frozen=True, kw_only=True)
class OlderBound:
    """A curve: rdp(setting, order, steps), what it assumes of the losses, and whether its numbers are in range."""

    name: str
    assumes: str
    rdp: Callable[[Setting, float, int], float]
    holds: Callable[[Setting, float], bool]


def sampled_gaussian_regime(order: float, rate: float, noise: float) -> bool:
    """Whether D_a of the sampled Gaussian is at most 2 a q^2 / z^2 (Mironov, Talwar and Zhang 2019, Theorem 11).

    >>> sampled_gaussian_regime(2.0, 0.01, 8.0), sampled_gaussian_regime(1.1, 0.25, 8.0)
    (True, False)
    """
    if noise <= 4 or rate > 1 / 5 or order <= 1:
        return False
    k = math.log1p(1 / (rate * (order - 1)))
    first = order <= k * noise**2 / 2 - 2 * math.log(noise)
    below = k + math.log(rate * order) + 1 / (2 * noise**2)
    top = k**2 * noise**2 / 2 - math.log(5) - 2 * math.log(noise)
    return first and (below <= 0 or order * below <= top)


def _feldman(at: Setting, order: float, steps: int) -> float:
    """2 a M^2 T / (b^2 sigma^2): every step moves the mean by 2M/b, and no sampling helps."""
    return 2 * order * at.clip**2 * steps / (at.batch * at.noise_std_on_mean) ** 2


def _mironov(at: Setting, order: float, steps: int) -> float:
    """8 a C^2 T / (n^2 sigma^2): T sampled Gaussians at z = b sigma / (2C)."""
    return 8 * order * at.clip**2 * steps / (at.records * at.noise_std_on_mean) ** 2


def _altschuler(at: Setting, order: float, steps: int) -> float:
    """8 a M^2 / (n^2 sigma^2) min(T, D n / (eta M)): half of the noise hides the record, half the start."""
    burn_in = at.diameter * at.records / (at.learning_rate * at.clip)
    return _mironov(at, order, 1) * min(steps, burn_in)


def _kong(at: Setting, order: float, steps: int) -> float:
    """a / (2 eta^2 sigma^2) (D sqrt(1 + 2 eta m (1 + m / (2 (L+m)))) + 2 eta C / b)^2, at any T."""
    m, eta = at.weak_convexity, at.learning_rate
    growth = 1 + 2 * eta * m * (1 + m / (2 * (at.smoothness + m))) if m > 0 else 1.0
    reach = at.diameter * math.sqrt(growth) + 2 * eta * at.clip / at.batch
    return order / 2 * (reach / (eta * at.noise_std_on_mean)) ** 2 if steps > 0 else 0.0


def _trivial(at: Setting, order: float, steps: int) -> float:
    """2 a (D + eta C / b)^2 / (eta^2 sigma^2): the last update's noise hides everything before it."""
    reach = at.diameter + at.learning_rate * at.clip / at.batch
    return 2 * order * (reach / (at.learning_rate * at.noise_std_on_mean)) ** 2 if steps > 0 else 0.0


def _small_steps(at: Setting) -> bool:
    return at.learning_rate * at.smoothness <= 2


OLDER_BOUNDS: MappingProxyType[str, OlderBound] = MappingProxyType(
    {
        bound.name: bound
        for bound in (
            OlderBound(
                name="Feldman et al. 2018",
                assumes="convex, L-smooth, M-Lipschitz losses, eta <= 2/L; no clipping",
                rdp=_feldman,
                holds=lambda at, order: _small_steps(at),
            ),
            OlderBound(
                name="Mironov et al. 2019",
                assumes="nothing of the losses; q <= 1/5, z > 4 and a bounded order; every iterate may be seen",
                rdp=_mironov,
                holds=lambda at, order: sampled_gaussian_regime(order, at.rate, at.noise(2.0)),
            ),
            OlderBound(
                name="Altschuler and Talwar 2022",
                assumes="convex, L-smooth, M-Lipschitz losses, eta <= 2/L; no clipping; q, z and the order as above",
                rdp=_altschuler,
                holds=lambda at, order: (
                    _small_steps(at) and sampled_gaussian_regime(order, at.rate, at.noise(2 * math.sqrt(2)))
                ),
            ),
            OlderBound(
                name="Kong and Ribero 2024",
                assumes="m-weakly convex, L-smooth losses, eta <= 1/(2(m+L)); batches in a fixed cyclic order",
                rdp=_kong,
                holds=lambda at, order: at.learning_rate * 2 * (at.weak_convexity + at.smoothness) <= 1,
            ),
            OlderBound(
                name="trivial", assumes="a bounded domain and nothing else", rdp=_trivial, holds=lambda at, order: True
            ),
        )
    }
)
"""Comparison curves by name."""
