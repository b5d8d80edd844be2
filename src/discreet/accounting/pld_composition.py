"""Composition of loss distributions by a product of Fourier transforms, exponentially tilted.

The loss of a run is the sum of the losses of its steps. Tilting every step by e^(tilt * loss) moves the sum to the
losses that decide delta, and undoing the tilt shrinks the rounding errors of the transform by the same factor. So 10^6
steps and deltas of 1e-30 keep their relative precision, and the transform covers a few standard deviations only.

Mass beyond the right end of the window is charged as infinite loss (Chernoff). Mass beyond the left end wraps to the
right, where it can only raise delta. So the result is an upper bound.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.pld import Floats, Pmf

_SLACK, _SLACK_EACH = (1e-9, 1e-14)  # relative, and once more for each loss: above the rounding of the transform
_WRAPPED = math.log(1e-13)  # tilted mass that may wrap around from either side
_RIGHT = math.log(1e-5)  # share of delta that may be charged for what is cut off on the right
_SEARCH = 10  # golden sections: the tilt decides precision and speed, not validity
_LONGEST = 2**21  # points of a window at most; what does not fit on the right is charged like any cut
_GAIN = 0.01  # a smaller tilt that gains less is the last one tried
_NEGLIGIBLE = 0.01  # share of delta that rounding and wrapped mass may make up before a smaller tilt is tried
_BLOCK = 64  # places whose running sums one matrix product computes
_TINIEST = 1e-300  # stands for deltas that underflow to zero, whose logarithm does not exist


@final
@dataclass(frozen=True, eq=False)
class LossWindow:
    """Upper bounds of delta at the losses (first + j) * grid.

    At most e^(log_error - tilt * loss) of each is due to rounding and wrapped mass.
    """

    grid: float
    first: int
    deltas: Floats
    tilt: float = 0.0
    log_error: float = -math.inf

    def is_accurate(self, epsilon: float, delta: float) -> bool:
        """Whether rounding and wrapped mass are a negligible part of `delta` at this epsilon."""
        return self.log_error - self.tilt * epsilon <= math.log(max(_NEGLIGIBLE * delta, _TINIEST))

    def epsilon(self, delta: float) -> float | None:
        """The smallest loss in the window with at most this delta; None if the window starts too high."""
        enough = np.flatnonzero(self.deltas <= delta)
        if len(enough) == 0:
            return math.inf
        index = int(enough[0])
        if index == 0:
            return None if self.first > 0 else 0.0
        high, low = float(self.deltas[index - 1]), float(self.deltas[index])
        # Between grid points delta is linear in e^epsilon.
        share = (high - delta) / (high - low)
        rest = share + (1 - share) * math.exp(-self.grid)
        beyond = math.log1p(share * math.expm1(self.grid)) if self.grid < 1 else self.grid + math.log(rest)
        return (self.first + index - 1) * self.grid + beyond


@final
class ComposedLoss:
    """The sum of independent losses: `count` times each of the parts, on one grid."""

    def __init__(self, parts: Sequence[tuple[Pmf, int]]) -> None:
        self._parts = tuple((_trimmed(part), count) for part, count in parts)
        self._grid = self._parts[0][0].grid
        self._longest = max(len(part.mass) for part, _ in self._parts)
        self._lowest = sum(part.first * count for part, count in self._parts)
        self._highest = sum(part.last * count for part, count in self._parts)
        finite = [count * math.log1p(-min(part.infinite, 1 - 1e-16)) for part, count in self._parts]
        self.infinite = -math.expm1(math.fsum(finite))
        self._up = 1 + _SLACK + _SLACK_EACH * sum(count for _, count in self._parts)
        self.work = 0  # points that questions to this object have cost so far

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with delta(epsilon) <= delta, rounded up, over all tilts that are tried."""
        if self.infinite >= delta:
            return math.inf
        log_delta, best = math.log(delta), math.inf
        for window in self._windows(lambda t: (self._log_mgf(t) - log_delta) / t, log_delta):
            found = window.epsilon(delta)
            before, best = best, min(best, window.first * self._grid if found is None else found)
            if found is not None and (window.is_accurate(found, delta) or best > (1 - _GAIN) * before):
                break
        return max(0.0, best * self._up)

    def _windows(self, bound: Callable[[float], float], log_delta: float) -> Iterator[LossWindow]:
        """delta under the tilt at which `bound` is smallest, then under smaller tilts, and without a tilt.

        A large tilt resolves rare large losses but not the losses below them. A single loss needs no transform.
        """
        if len(self._parts) == 1 and self._parts[0][1] == 1:
            part = self._parts[0][0]
            self.work += len(part.mass)
            yield LossWindow(self._grid, part.first, _deltas(part.mass, self.infinite, self._grid))
            return
        tilt = self._best_tilt(bound)
        while tilt * self._grid > 1e-8:
            yield self._window(tilt, log_delta)
            tilt /= 4
        yield self._window(0.0, log_delta)

    def _best_tilt(self, bound: Callable[[float], float]) -> float:
        """A tilt near the minimum of `bound`, which is unimodal in the tilt."""
        guess = math.log(4.0 / (math.sqrt(self._variance(0.0)) + self._grid))
        low, high = guess - 7.0, min(guess + 4.0, -math.log(self._grid))
        golden = (math.sqrt(5) - 1) / 2
        left, right = high - golden * (high - low), low + golden * (high - low)
        at_left, at_right = bound(math.exp(left)), bound(math.exp(right))
        for _ in range(_SEARCH):
            if at_left <= at_right:
                high, right, at_right = right, left, at_left
                left = high - golden * (high - low)
                at_left = bound(math.exp(left))
            else:
                low, left, at_left = left, right, at_right
                right = low + golden * (high - low)
                at_right = bound(math.exp(right))
        return math.exp(left if at_left <= at_right else right)

    def _fading(self, tilt: float) -> Floats:
        """e^(-|tilt| * k * grid), k = longest-1 .. 0: the factor of a loss k places from the favoured end."""
        return np.asarray(np.exp(-abs(tilt) * self._grid * np.arange(self._longest - 1, -1, -1)))

    def _factors(self, fading: Floats, tilt: float, part: Pmf) -> tuple[Floats, float]:
        """e^(tilt * loss) for the losses of a part, divided by a factor whose logarithm is returned.

        The factor belongs to the end that the tilt favours, so nothing overflows and what underflows is negligible.
        """
        factors = fading[self._longest - len(part.mass) :]
        if tilt >= 0:
            return factors, tilt * part.last * self._grid
        return factors[::-1], tilt * part.first * self._grid

    def _log_mgf(self, tilt: float) -> float:
        """log E e^(tilt * loss) over the finite part of the sum."""
        total, fading = 0.0, self._fading(tilt)
        for part, count in self._parts:
            factors, log_factor = self._factors(fading, tilt, part)
            value = float(part.mass @ factors)
            total += count * (math.log(value) + log_factor) if value > 0 else -math.inf
        return total

    def _variance(self, tilt: float) -> float:
        variance, fading = 0.0, self._fading(tilt)
        for part, count in self._parts:
            mass = part.mass * self._factors(fading, tilt, part)[0]
            places = np.arange(len(mass), dtype=np.float64)
            total = mass.sum()
            centred = places - float(mass @ places) / total
            variance += count * float(mass @ (centred * centred)) / total
        return variance * self._grid**2

    def _window(self, tilt: float, log_delta: float) -> LossWindow:
        """delta at the losses where the tilted sum has its mass."""
        log_mgf = self._log_mgf(tilt)
        rates = self._rates(math.sqrt(self._variance(tilt)) + self._grid)
        chernoff = [(self._log_mgf(tilt + rate), tilt + rate) for rate in rates]
        cheap = min((value - log_delta - _RIGHT) / slope for value, slope in chernoff)
        # Tilted mass beyond the right edge would come back on the left, enlarged when the tilt is undone.
        quiet = min((value - log_mgf - _WRAPPED) / (slope - tilt) for value, slope in chernoff)
        high = max(cheap, quiet)
        low = max((log_mgf - self._log_mgf(tilt - rate) + _WRAPPED) / rate for rate in rates)
        first = max(math.floor(low / self._grid), self._lowest)
        last = max(min(math.ceil(high / self._grid), self._highest, first + _LONGEST), first + 1)
        losses = self._grid * np.arange(first, last + 1, dtype=np.float64)
        tilted, rounding = self._convolve(tilt, first, last)
        mass = tilted * np.exp(np.minimum(log_mgf - tilt * losses, 700.0))
        log_error = log_mgf + math.log(2 * math.exp(_WRAPPED) + rounding * len(losses))
        cut = 0.0
        if last < self._highest:
            cut = math.exp(min(0.0, *(value - slope * float(losses[-1]) for value, slope in chernoff)))
        deltas = _deltas(mass, self.infinite + cut, self._grid)
        return LossWindow(self._grid, first, deltas, tilt, log_error)

    def _rates(self, spread: float) -> Floats:
        """Slopes for Chernoff bounds: for a bell of this spread, and for single losses far beyond it."""
        bell = np.array([1.0, 2.0, 4.0, 8.0, 16.0]) / spread
        furthest = self._grid * self._longest
        if furthest < 16 * spread:
            return bell
        octaves = math.ceil(math.log(furthest / spread, 4))
        return np.concatenate([4.0 ** np.arange(octaves) / furthest, bell])

    def _convolve(self, tilt: float, first: int, last: int) -> tuple[Floats, float]:
        """The normalised tilted mass of the sum at first..last, and the amount added to each for rounding."""
        size = _fast_length(last - first + 1)
        product = np.ones(size // 2 + 1, dtype=np.complex128)
        offset = 0
        fading = self._fading(tilt)
        for part, count in self._parts:
            mass = part.mass * self._factors(fading, tilt, part)[0]
            share = mass / mass.sum()
            centre = round(float(share @ np.arange(len(share))))
            product *= _power(np.fft.rfft(_fold(share, centre, size)), count)
            offset += count * (part.first + centre)
        values: Floats = np.roll(np.fft.irfft(product, size), (offset - first) % size)
        # The transform's rounding, added rather than hoped for: below it a mass could be cut off.
        rounding = 4e-16 * (math.log2(size) + sum(count for _, count in self._parts)) * float(values.max())
        self.work += sum(len(part.mass) for part, _ in self._parts) + size + size * len(self._parts) // 8
        return np.maximum(values[: last - first + 1], 0.0) + rounding, rounding


def _trimmed(pmf: Pmf) -> Pmf:
    """Remove zeros at both ends, where tilts are anchored."""
    some = np.flatnonzero(pmf.mass)
    if len(some) == 0 or (some[0] == 0 and some[-1] == len(pmf.mass) - 1):
        return pmf
    return Pmf(pmf.grid, pmf.first + int(some[0]), pmf.mass[some[0] : some[-1] + 1], pmf.infinite)


def _power(transform: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """transform ** count by squaring, which is much faster than numpy's complex power."""
    result = transform if count % 2 else np.ones_like(transform)
    while count := count // 2:
        transform = transform * transform
        if count % 2:
            result = result * transform
    return result


def _fast_length(least: int) -> int:
    """The smallest 2^a 3^b 5^c from `least` on: the transform of such a length is fast.

    >>> _fast_length(7), _fast_length(1025)
    (8, 1080)
    """
    odd = [3**b * 5**c for b in range(14) for c in range(10)]
    return int(min(one << (math.ceil(least / one) - 1).bit_length() for one in odd))


def _fold(mass: Floats, centre: int, size: int) -> Floats:
    """The mass wrapped onto `size` places, its centre at place 0."""
    start = (-centre) % size
    padded = np.zeros(math.ceil((start + len(mass)) / size) * size)
    padded[start : start + len(mass)] = mass
    return np.asarray(padded.reshape(-1, size).sum(axis=0))


def _deltas(mass: Floats, infinite: float, grid: float) -> Floats:
    """delta at each grid point: sum over higher losses of (1 - e^(epsilon - loss)) * mass, plus `infinite`.

    By parts: delta[i] = (1 - e^-h) * tail[i] + e^-h * delta[i+1], every term positive.
    """
    above = np.append(0.0, np.cumsum(mass[:0:-1]))  # the mass above each grid point, from the highest one down
    return _fading_sums(-math.expm1(-grid) * above, math.exp(-grid))[::-1] + infinite


def _fading_sums(values: Floats, keep: float) -> Floats:
    """sums[i] = values[i] + keep * sums[i-1]: by a matrix inside blocks, then over the last sums of the blocks.

    >>> _fading_sums(np.array([1.0, 0.0, 1.0]), 0.5).tolist()
    [1.0, 0.5, 1.25]
    """
    behind = np.arange(_BLOCK)[:, None] - np.arange(_BLOCK)
    weights = np.where(behind >= 0, keep ** np.maximum(behind, 0), 0.0)
    if len(values) <= _BLOCK:
        return weights[: len(values), : len(values)] @ values
    blocks = np.zeros((math.ceil(len(values) / _BLOCK), _BLOCK))
    blocks.reshape(-1)[: len(values)] = values
    sums = blocks @ weights.T
    carried = _fading_sums(sums[:, -1], keep**_BLOCK)
    sums[1:] += carried[:-1, None] * keep ** np.arange(1, _BLOCK + 1)
    return sums.reshape(-1)[: len(values)]
