"""Coefficients of C with the least noise on the parameters, for the length of a run and its optimizer.

Nothing here affects privacy: every matrix is certified by its own coefficients.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import numpy as np

from discreet.accounting.correlated import bsr, inverted, sum_of_columns
from discreet.accounting.pld import Floats

if TYPE_CHECKING:
    from discreet.methods.dp_ftrl.correlated_noise import Workload

_COLUMNS: Final = 48  # steps whose noise is followed through the run; the others are like them


def _rates(workload: Workload, steps: int) -> Floats:
    return np.linspace(1.0, workload.last_rate, steps)


@functools.lru_cache(maxsize=64)
def optimised(bands: int, steps: int, worst: tuple[int, ...], workload: Workload) -> tuple[float, ...]:
    """Coefficients 1 >= c_1 >= c_2 >= … >= 0 that make (noise on the parameters) * (sensitivity) small.

    worst  the steps of the record that moves the run furthest

    They begin as those of bsr and are improved by L-BFGS.
    """
    bands = min(bands, steps)
    start = np.array(bsr(bands))
    if bands == 1:
        return (1.0,)
    from scipy.optimize import minimize

    ratios = np.clip(start[1:] / start[:-1], 1e-6, 1 - 1e-6)

    def cost(logits: Floats) -> tuple[float, Floats]:
        falls = 1 / (1 + np.exp(-logits))
        coefficients = np.concatenate([[1.0], np.cumprod(falls)])
        value, gradient = log_cost(coefficients, steps, worst, workload)
        weighted = (gradient * coefficients)[1:]
        return value, (1 - falls) * np.cumsum(weighted[::-1])[::-1]

    found = minimize(cost, np.log(ratios / (1 - ratios)), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    falls = 1 / (1 + np.exp(-found.x))
    return (1.0, *np.cumprod(falls).tolist())


def log_cost(coefficients: Floats, steps: int, worst: tuple[int, ...], workload: Workload) -> tuple[float, Floats]:
    """log(mean square of the noise on the parameters * squared sensitivity), and its gradient."""
    error, error_gradient = _squared_error(coefficients, steps, workload)
    column = np.concatenate([coefficients, np.zeros(steps - len(coefficients))])
    moved = sum_of_columns(column, worst)
    moved_gradient = np.zeros(len(coefficients))
    for step in worst:
        count = min(len(coefficients), steps - step)
        moved_gradient[:count] += 2 * moved[step : step + count]
    square = float(moved @ moved)
    return float(np.log(error) + np.log(square)), error_gradient / error + moved_gradient / square


def _squared_error(coefficients: Floats, steps: int, workload: Workload) -> tuple[float, Floats]:
    from scipy.signal import fftconvolve, lfilter

    inverse = inverted(coefficients, steps)
    pushed = lfilter([1.0], [1.0, -workload.momentum], inverse)  # what one z adds to the momentum, step by step
    rates, keeps = _rates(workload, steps), [1.0, workload.shrinkage - 1]
    marks = np.unique(np.round((np.arange(_COLUMNS) + 0.5) * steps / _COLUMNS - 0.5).astype(int).clip(0, steps - 1))
    error, by_push = 0.0, np.zeros(steps)
    for first in marks.tolist():
        rate = rates[first:]
        path = lfilter([1.0], keeps, rate * pushed[: steps - first])
        error += float(path @ path)
        by_push[: steps - first] += 2 * rate * lfilter([1.0], keeps, path[::-1])[::-1]
    # d pushed / d c_i is -(pushed * inverse), shifted by i
    moves = fftconvolve(pushed, inverse)[:steps]
    gradient = [-float(by_push[i:] @ moves[: steps - i]) for i in range(len(coefficients))]
    return error / len(marks), np.array(gradient) / len(marks)


def noise_on_parameters(inverse: Floats, workload: Workload) -> float:
    """The root mean square over the run of the noise on the parameters, in units of noise * learning rate."""
    from scipy.signal import lfilter

    steps = len(inverse)
    pushed, rates = lfilter([1.0], [1.0, -workload.momentum], inverse), _rates(workload, steps)
    total = 0.0
    for first in range(steps):
        path = lfilter([1.0], [1.0, workload.shrinkage - 1], rates[first:] * pushed[: steps - first])
        total += float(path @ path)
    return float(np.sqrt(total / steps))
