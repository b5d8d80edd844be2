"""DPSGD-DC (paper 003): the bounds of Figures 1, 2b, 3b and 5, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from discreet.accounting import rdp
from discreet.methods.dpsgd_dc.curvature import lipschitz_glm, lipschitz_smooth
from discreet.methods.dpsgd_dc.recipes import LastIterateClaim
from research.reproductions.dpsgd_dc.older_bounds import Setting
from research.reproductions.dpsgd_dc.renyi import fixed_size_rdp, rdp_at
from research.reproductions.experiment import Curve, Figure

ORDER: Final = 1.1
UNIT: Final = "Rényi divergence at order 1.1"
FIGURE_1: Final = Setting(
    records=8,
    batch=2,
    clip=2.0,
    noise_std_on_mean=4.0,
    learning_rate=0.2,
    smoothness=1.0,
    diameter=1.0,
    weak_convexity=1.0,
)
EXPERIMENT: Final = Setting(
    records=10_000, batch=100, clip=20.0, noise_std_on_mean=0.002, learning_rate=0.1, smoothness=0.1, diameter=20.0
)


def claim(at: Setting, steps: int, *, bounded: bool = True) -> float:
    """Theorem 3.4, or 3.3 without a domain."""
    found = LastIterateClaim(
        records=at.records, batch=at.batch, clip=at.clip, noise_std_on_mean=at.noise_std_on_mean, steps=max(steps, 1)
    )
    if bounded:
        found = replace(found, learning_rate=at.learning_rate, smoothness=at.smoothness, diameter=at.diameter)
    return found.rdp(ORDER) if steps else 0.0


# What is proven, for samplers and losses that the proof covers -------------------------------------------


def _certified(at: Setting, steps: int, *, step: Callable[[float], float], noise: float, factor: float) -> float:
    if steps == 0:
        return 0.0
    shift = at.diameter / (at.learning_rate * at.noise_std_on_mean)
    return rdp_at(ORDER, step=step, noise=noise, steps=steps, shift=shift, factor=factor)[0]


def composed(at: Setting, steps: int) -> float:
    """Poisson sampling, add/remove, every iterate visible."""
    return steps * float(rdp.sampled_gaussian(at.rate, at.noise(1.0), (ORDER,))[0])


def fixed_size(at: Setting, steps: int) -> float:
    """Fixed-size batches, replace-one, any L-smooth losses: the last iterate."""

    def step(noise: float) -> float:
        return float(fixed_size_rdp(rate=at.rate, noise=noise, orders=(ORDER,))[0])

    factor = lipschitz_smooth(learning_rate=at.learning_rate, smoothness=at.smoothness)
    return _certified(at, steps, step=step, noise=at.noise(2.0), factor=factor)


def one_score(at: Setting, steps: int) -> float:
    """Poisson sampling of all n records at most, add/remove, losses of one score: the last iterate."""

    def step(noise: float) -> float:
        return float(rdp.sampled_gaussian(at.rate, noise, (ORDER,))[0])

    factor = lipschitz_glm(learning_rate=at.learning_rate, smoothness=at.smoothness, ratio=at.records / at.batch)
    return _certified(at, steps, step=step, noise=at.noise(1.0), factor=factor)


def frame(name: str, title: str, x_label: str, curves: tuple[Curve, ...]) -> Figure:
    return Figure(name=name, title=title, x_label=x_label, y_label=UNIT, curves=curves)


def floats(values: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
