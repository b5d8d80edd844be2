"""Hockey-stick divergences from densities alone: no accountant of ours or of others is called here."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Density = Callable[[Floats], Floats]


def normal(mean: float, std: float) -> Density:
    """The density of N(mean, std^2)."""
    return lambda x: np.exp(-(((x - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))


def mixture(weights: Sequence[float], means: Sequence[float], std: float) -> Density:
    """The density of a mixture of normal distributions."""
    places: Counter[float] = Counter()
    for weight, mean in zip(weights, means, strict=True):
        places[round(mean, 12)] += weight  # type: ignore[assignment]
    parts = [(weight, normal(mean, std)) for mean, weight in places.items()]
    return lambda x: np.sum([weight * part(x) for weight, part in parts], axis=0)


def hockey_stick(upper: Density, lower: Density, epsilon: float, std: float, reach: float = 4.0) -> float:
    """int max(0, upper - e^epsilon lower) by a fine trapezoidal rule on the line."""
    x = np.linspace(-reach - 12 * std, reach + 12 * std, 60_001)
    difference = np.maximum(upper(x) - math.exp(epsilon) * lower(x), 0.0)
    return float(np.trapezoid(difference, x))


def both_directions(one: Density, other: Density, epsilon: float, std: float) -> float:
    """The larger of the two divergences."""
    return max(hockey_stick(one, other, epsilon, std), hockey_stick(other, one, epsilon, std))


def product_hockey_stick(one: Sequence[Density], other: Sequence[Density], epsilon: float, std: float) -> float:
    """The divergence of two independent releases, on a square grid; the larger direction."""
    x = np.linspace(-4 - 9 * std, 4 + 9 * std, 1501)
    cell = (x[1] - x[0]) ** 2
    first = np.outer(one[0](x), one[1](x))
    second = np.outer(other[0](x), other[1](x))
    gamma = math.exp(epsilon)
    up = float(np.maximum(first - gamma * second, 0.0).sum()) * cell
    down = float(np.maximum(second - gamma * first, 0.0).sum()) * cell
    return max(up, down)


# Mechanisms spelled out: every batch that can be drawn, with its probability ------------------------------


def without_replacement(values: Sequence[float], batch: int) -> tuple[list[float], list[float]]:
    """(probabilities, sums) of a uniform batch of this size."""
    sums = [sum(chosen) for chosen in itertools.combinations(values, batch)]
    return [1 / len(sums)] * len(sums), sums


def poisson(values: Sequence[float], rate: float) -> tuple[list[float], list[float]]:
    """(probabilities, sums) of a Poisson batch."""
    return truncated_poisson(values, rate, len(values))


def truncated_poisson(values: Sequence[float], rate: float, cap: int) -> tuple[list[float], list[float]]:
    """(probabilities, sums) of a Poisson batch of which at most `cap` records are kept, uniformly."""
    probabilities: list[float] = []
    sums: list[float] = []
    for size in range(len(values) + 1):
        for drawn in itertools.combinations(values, size):
            weight = rate**size * (1 - rate) ** (len(values) - size)
            kept = list(itertools.combinations(drawn, min(size, cap)))
            probabilities += [weight / len(kept)] * len(kept)
            sums += [sum(chosen) for chosen in kept]
    return probabilities, sums


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The closed form for one Gaussian, straight from the textbook."""
    phi = stats.norm.cdf
    return float(phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu))
