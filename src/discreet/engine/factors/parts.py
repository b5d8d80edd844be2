"""What one parameter received from each record, kept factored for as long as possible.

A `Part` is what one kind of use leaves: it measures its per-sample gradients g_N (shape [N, *shape]), sums
them with weights and instantiates some of them (linear.py, convolution.py). `FormedGradients` and `BoundedFactors` are
`Factors`: parts whose norms hold for the very numbers that they sum. Nothing here knows which op or which
model a part came from. Index legend: N records, Q queries.

Guarantee: ||w_n g_n||, as summed, is at most w_n norm_n (1 + 2^-17) for finite g_n; a non-finite g_n has a
non-finite norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol, final

import torch
from torch import Tensor

from discreet.core.check import require
from discreet.engine.factors.lengths import are_products_above, is_within, row_norms, widen

# Rounding of a sum over positions, in ulps of the sum of absolute products.
ROUNDING_ULPS = 4.0
# A gradient this much shorter than the sum of its absolute products is summed apart, in float64: rounding
# would otherwise move the sum of all records by a share of the clip, not of an ulp.
CANCELLATION = 2.0**-9
# Per-sample gradients are kept while those of one parameter, and those of all, fit in so many elements.
KEEP_ELEMENTS = 1 << 25
KEEP_IN_ALL = 1 << 28
# Their memory stays from step to step up to so many elements: beyond, it would stand beside activations for longer.
REUSE_IN_ALL = 1 << 26
# Per-sample gradients that are made, measured and kept or forgotten, so many elements at a time: in the cache.
CACHED_ELEMENTS = 1 << 22
# The numbers that a working precision rounds by half an ulp at most.
_NORMAL: Final = {dtype: (torch.finfo(dtype).tiny, torch.finfo(dtype).max) for dtype in (torch.float32, torch.float64)}


class Part(Protocol):
    """Per-sample gradients of one parameter, in factored form."""

    records: int  # N
    dtype: torch.dtype  # the working precision, at least float32
    shape: tuple[int, ...]  # the parameter's

    def measure(self) -> tuple[Tensor, Tensor]:
        """Norms, and bounds on the sums of absolute products behind them: float64, both [N]."""

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        """total_Q += sum_n weights_QN[:, n] * g_n, in place."""

    def instantiate(self, start: int, stop: int) -> Tensor:
        """The per-sample gradients of records start..stop, shape [stop - start, *shape]."""

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Part:
        """The part of some records, in another precision if one is given."""


class Leaf(Part, Protocol):
    """A part as a recorded call leaves it."""

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Leaf:
        """The part of some records."""

    def summed(self, size: int) -> Leaf:
        """The part in which every `size` successive records are one, whose gradient is the sum of theirs."""


class Factors(Part, Protocol):
    """A part with norms that hold for what `add_weighted` sums."""

    @property
    def norms(self) -> Tensor:
        """Upper bounds on the norms, float64, [N]."""

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Factors:
        """The factors of some records."""


@final
class VersionGuard:
    """Refuses tensors that were written to after they were measured: the norm of other values bounds nothing.

    Hooks that torch runs after ours may write to the gradient that a part holds.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors, self._versions = tensors, [tensor._version for tensor in tensors]

    def check(self) -> None:
        expected = "inputs and gradients to stay as they are until they are summed"
        remedy = "remove the hook that writes to a gradient in place"
        same = [tensor._version for tensor in self._tensors] == self._versions
        require(same, expected, "one that was written to during the backward pass", remedy)


def in_range(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights in a working precision, never larger than they were but for one ulp.

    A subnormal number may be rounded up by half of itself: it becomes zero. What is not finite becomes zero.
    """
    least, most = _NORMAL[dtype]
    if weights.dtype == dtype and is_within(weights, least, most):
        return weights  # as it was given for another parameter before
    weights = weights.double()
    if is_within(weights, least, most) or is_within(sizes := weights.abs(), least, most):
        return weights.to(dtype)
    kept = torch.where(weights.isfinite() & (sizes >= least), weights, 0.0)
    return kept.clamp(-most, most).to(dtype)


def share(
    weights_N: Tensor, left_N: Tensor, right_N: Tensor, *, prefer_left: bool, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """The weights for two factors of given lengths: on the cheaper one, unless floats would end on the way.

    w * short may leave the normal range below, and its rounding is then multiplied by the long factor; w * long may
    leave it above. Where a factor, or its product with the weight, is tiny, weights below 1 go to the longer factor and
    others to the shorter.
    """
    weights = in_range(weights_N, dtype)
    ordinary = are_products_above(weights, left_N, right_N, 2.0**-60)
    if not ordinary:
        shorter = torch.minimum(left_N, right_N)
        scaled = shorter * weights.abs().clamp(max=1)
        weights = weights.where(shorter > 0, 0.0)  # 0 * inf: a zero factor takes no weight
        ordinary = not bool(((scaled < 2.0**-60) & (scaled > 0)).any())
    if ordinary:
        return (weights, None) if prefer_left else (None, weights)
    on_left = (left_N >= right_N) == (weights.abs() < 1)
    return torch.where(on_left, weights, 1.0), torch.where(on_left, 1.0, weights)


def norms_by_chunks(part: Part) -> Tensor:
    """Norms of gradients that are too large to keep: instantiate some records, measure, forget."""
    starts = range(0, part.records, step := records_at_a_time(part))
    return torch.cat([row_norms(part.instantiate(at, min(at + step, part.records))) for at in starts])


def records_at_a_time(part: Part) -> int:
    """How many records' gradients fit in the cache, at least one."""
    return max(1, min(CACHED_ELEMENTS, KEEP_ELEMENTS) // max(1, math.prod(part.shape)))


class WriteOnce(Part, Protocol):
    """A part that can write its gradients into memory that is there."""

    device: torch.device

    def write(self, start: int, stop: int, out: Tensor) -> None:
        """`instantiate` into `out`."""

    def absolute(self) -> Tensor:
        """Bounds on the sums of absolute products, float64, [N]."""

    def largest(self) -> Tensor | None:
        """Upper bounds on `absolute` that cost less, [N]; None where there are none."""
        return None

    def instantiate(self, start: int, stop: int) -> Tensor:
        grads = torch.empty(stop - start, *self.shape, dtype=self.dtype, device=self.device)
        self.write(start, stop, grads)
        return grads


class GradientBuffer:
    """Memory for the per-sample gradients of each parameter, kept from step to step.

    The operating system clears every page that it hands out, which can take longer than the products that fill
    it. What lies here is overwritten by the next micro-batch: nothing may keep it beyond. What is kept stands beside
    the activations of the next forward pass, so that large models reuse a part of it only.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def fill(self, name: str, part: WriteOnce) -> FormedGradients:
        """All gradients of a part: made and measured some at a time, while they are in the cache."""
        size, step = part.records * math.prod(part.shape), records_at_a_time(part)
        kept = self._kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != part.dtype:
            kept = torch.empty(size, dtype=part.dtype, device=part.device)
            if size + sum(own.numel() for other, own in self._kept.items() if other != name) <= REUSE_IN_ALL:
                self._kept[name] = kept
        grads_N = kept[:size].view(part.records, *part.shape)
        norms = []
        for at in range(0, part.records, step):
            some = grads_N[at : at + step]
            part.write(at, at + len(some), some)
            norms.append(row_norms(some))
        found = norms[0] if len(norms) == 1 else torch.cat(norms)
        largest = part.largest()
        if largest is None or not bool((found >= CANCELLATION * largest).all()):
            found = repaired(part, grads_N, found, part.absolute())
        return FormedGradients(grads_N, found)


def repaired(part: Part, grads_N: Tensor, norms: Tensor, absolute: Tensor) -> Tensor:
    """The norms, after gradients whose terms cancel were made again in float64, in place.

    What float32 leaves of such a gradient is rounding, which may depend on the number of records. So each is made by
    itself: which others cancel does not show in its last bits.
    """
    for index in (norms < CANCELLATION * absolute).nonzero().unbind():
        exact = part.take(index, torch.float64).instantiate(0, 1).to(grads_N.dtype)
        grads_N[index], norms[index] = exact, row_norms(exact)
    return norms


class FormedGradients:
    """Per-sample gradients that are already there: biases, norm layers, scales, any op by `vmap`."""

    def __init__(self, grads_N: Tensor, norms: Tensor | None = None) -> None:
        self.grads_N = widen(grads_N)
        self.records, self.dtype, self.shape = grads_N.shape[0], self.grads_N.dtype, tuple(grads_N.shape[1:])
        self._norms, self._seal = norms, VersionGuard(self.grads_N)

    @property
    def norms(self) -> Tensor:
        if self._norms is None:
            self._norms = row_norms(self.grads_N)
        return self._norms

    def measure(self) -> tuple[Tensor, Tensor]:
        return self.norms, self.norms

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        self._seal.check()
        flat, dtype = self.grads_N.reshape(self.records, math.prod(self.shape)), total_Q.dtype
        sums, weights_QN = total_Q.view(total_Q.shape[0], flat.shape[1]), in_range(weights_QN, dtype)
        if flat.dtype == dtype:
            sums.addmm_(weights_QN, flat)
            return
        some = records_at_a_time(self)  # wide copies stay in the cache
        for start in range(0, self.records, some):
            sums.addmm_(weights_QN[:, start : start + some], flat[start : start + some].to(dtype))

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.grads_N[start:stop]

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> FormedGradients:
        self._seal.check()
        return FormedGradients(self.grads_N[index_K].to(dtype or self.dtype))

    def summed(self, size: int) -> FormedGradients:
        self._seal.check()
        whole = self.grads_N.reshape(-1, size, *self.shape).sum(1, dtype=torch.float64)
        return FormedGradients(whole.to(self.dtype))


@final
@dataclass(frozen=True, eq=False)
class Measured:
    """What is known of the gradients of one parameter: norms [N], and which records are summed apart."""

    norms: Tensor
    apart: Tensor


@cache
def _nobody(device: torch.device) -> Tensor:
    """The numbers of no records."""
    return torch.empty(0, dtype=torch.int64, device=device)


class BoundedFactors:
    """A part that is not instantiated. Records whose terms cancel are summed apart, in float64.

    known  what was measured of the very same part before
    """

    def __init__(self, part: Part, known: Measured | None = None) -> None:
        self.part, self.records, self.dtype, self.shape = part, part.records, part.dtype, part.shape
        if known is None:
            self._measure()
        else:
            self.norms, self._apart = known.norms, known.apart

    @property
    def measured(self) -> Measured:
        return Measured(self.norms, self._apart)

    def _measure(self) -> None:
        part = self.part
        root, absolute = part.measure()
        if absolute is root and CANCELLATION <= 1:  # one product a coordinate: nothing can cancel
            eps = torch.finfo(part.dtype).eps + torch.finfo(torch.float64).eps
            self.norms = root * (1 + ROUNDING_ULPS * eps)
            self._apart = _nobody(root.device)
            return
        rounding = torch.finfo(part.dtype).eps + torch.finfo(torch.float64).eps * (absolute / root)
        self.norms = torch.where(absolute > 0, root + ROUNDING_ULPS * rounding * absolute, root)
        self._apart = (root < CANCELLATION * absolute).nonzero().flatten()
        for index, exact in self._exact():
            self.norms[index] = exact.norms

    def _exact(self) -> Iterator[tuple[Tensor, FormedGradients]]:
        """The records that cancel, one at a time, as in `repaired`: summed in float64, rounded once."""
        for index in self._apart.view(-1, 1).unbind():
            wide = self.part.take(index, torch.float64).instantiate(0, 1)
            yield index, FormedGradients(wide.to(self.part.dtype))

    def measure(self) -> tuple[Tensor, Tensor]:
        return self.norms, self.part.measure()[1]

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        if not self._apart.numel():
            self.part.add_weighted(weights_QN, total_Q)
            return
        self.part.add_weighted(weights_QN.index_fill(1, self._apart, 0), total_Q)
        for index, exact in self._exact():
            exact.add_weighted(weights_QN[:, index], total_Q)

    def instantiate(self, start: int, stop: int) -> Tensor:
        grads = self.part.instantiate(start, stop)
        index = self._apart[(self._apart >= start) & (self._apart < stop)]
        if index.numel():
            each = [self.part.take(one, torch.float64).instantiate(0, 1) for one in index.view(-1, 1).unbind()]
            grads = grads.index_copy(0, index - start, torch.cat(each).to(grads.dtype))
        return grads

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> BoundedFactors:
        """The factors of some records; in their own precision they keep what was measured."""
        if dtype not in (None, self.dtype):
            return BoundedFactors(self.part.take(index_K, dtype))
        apart = torch.isin(index_K, self._apart).nonzero().flatten()
        return BoundedFactors(self.part.take(index_K, dtype), Measured(self.norms[index_K], apart))
