"""Parts of linear maps and embeddings, and the sum of all parts of one parameter.

Index legend: N records, P positions (time, pixels), A rows and B columns of a parameter, Q queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from discreet.engine.factors import parts as factors
from discreet.engine.factors.convolution import Convolution, Geometry, patches_of
from discreet.engine.factors.lengths import length_bound, row_norms, widen
from discreet.engine.factors.parts import (
    BoundedFactors,
    Factors,
    FormedGradients,
    Leaf,
    Part,
    VersionGuard,
    WriteOnce,
    in_range,
    norms_by_chunks,
    repaired,
    share,
)

# Above this ratio of Gram work to parameter size it is cheaper to instantiate (measured on two cores).
GRAM_RATIO = 12.0
# So many numbers in float64 stay in the cache, and in memory that was used before: new pages take longer than products.
GRAM_ELEMENTS = 1 << 18
# Products with so few columns are up to six times faster the other way round, and turned (measured on one core): those
# of adapters of a low rank.
NARROW = 8
# Below this ratio instantiated gradients take so much more memory than their factors, and so little time, that they are
# rather made twice than kept (formed_twice.py).
TWICE_RATIO = 40.0


def gram_is_cheaper(P: int, A: int, B: int) -> bool:
    """Gram matrices cost P^2 (A + B) a record; instantiating writes and reads A B numbers."""
    return P == 1 or P * P * (A + B) < GRAM_RATIO * A * B


class Outer(WriteOnce):
    """g_n = sum_p left[n, p] (x) right[n, p]: what a linear map leaves, over its positions."""

    def __init__(self, left_NPA: Tensor, right_NPB: Tensor, shape: Sequence[int]) -> None:
        self.left_NPA, self.right_NPB = widen(left_NPA), widen(right_NPB)
        self.records, self.shape, self.device = right_NPB.shape[0], tuple(shape), right_NPB.device
        self.dtype = torch.promote_types(self.left_NPA.dtype, self.right_NPB.dtype)
        self._seal = VersionGuard(self.left_NPA, self.right_NPB)

    @property
    def gram_is_cheaper(self) -> bool:
        """Whether norms come from Gram matrices."""
        return gram_is_cheaper(self.left_NPA.shape[1], self.left_NPA.shape[2], self.right_NPB.shape[2])

    @property
    def is_rather_made_twice(self) -> bool:
        """Whether its gradients are large for the time that they take."""
        P, A, B = *self.left_NPA.shape[1:], self.right_NPB.shape[2]
        return P * P * (A + B) < TWICE_RATIO * A * B

    @cached_property
    def _left_lengths(self) -> Tensor:
        return row_norms(self.left_NPA)

    @cached_property
    def _right_lengths(self) -> Tensor:
        return row_norms(self.right_NPB)

    @property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """Norms of the left and of the right factor, [N] each."""
        return self._left_lengths, self._right_lengths

    def absolute(self) -> Tensor:
        left, right = self.lengths
        return left * right  # >= sum_p |l_p| |r_p|, by Cauchy-Schwarz

    def largest(self) -> Tensor | None:
        """The small factor is measured record by record, the large one as a whole."""
        is_left_large = self.left_NPA.shape[2] > self.right_NPB.shape[2]
        bound = length_bound(self.left_NPA if is_left_large else self.right_NPB)
        if bound == math.inf:
            return None
        return bound * (self._right_lengths if is_left_large else self._left_lengths)

    def measure(self) -> tuple[Tensor, Tensor]:
        absolute = self.absolute()
        if self.left_NPA.shape[1] == 1:
            return absolute, absolute
        if not self.gram_is_cheaper:
            return norms_by_chunks(self), absolute
        return inner_products(self, self).clamp(min=0).sqrt(), absolute

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        self._seal.check()
        A, B = self.left_NPA.shape[2], self.right_NPB.shape[2]
        left, right = self.left_NPA.to(total_Q.dtype), self.right_NPB.to(total_Q.dtype)
        for weights_N, total in zip(weights_QN.unbind(), total_Q.unbind(), strict=True):
            on_left, on_right = share(weights_N, *self.lengths, prefer_left=A <= B, dtype=total.dtype)
            scaled_left = left if on_left is None else left * on_left.view(-1, 1, 1)
            scaled_right = right if on_right is None else right * on_right.view(-1, 1, 1)
            total.view(A, B).addmm_(scaled_left.reshape(-1, A).T, scaled_right.reshape(-1, B))

    def write(self, start: int, stop: int, out: Tensor) -> None:
        self._seal.check()
        left, right = self.left_NPA[start:stop].to(self.dtype), self.right_NPB[start:stop].to(self.dtype)
        out_NAB = out.view(-1, left.shape[2], right.shape[2])
        if right.shape[2] <= NARROW < left.shape[2]:
            out_NAB.copy_(torch.bmm(right.mT, left).mT)
        else:
            torch.bmm(left.mT, right, out=out_NAB)

    def take(self, index_K: Tensor | slice, dtype: torch.dtype | None = None) -> Outer:
        self._seal.check()
        dtype = dtype or self.dtype
        return Outer(self.left_NPA[index_K].to(dtype), self.right_NPB[index_K].to(dtype), self.shape)

    def summed(self, size: int) -> Outer:
        self._seal.check()
        left, right = (_side_by_side(values, size) for values in (self.left_NPA, self.right_NPB))
        return Outer(left, right, self.shape)


class OneHot:
    """An embedding's part: g_n = sum_p onehot(index[n, p]) (x) right[n, p], each index once in a record."""

    def __init__(self, index_NP: Tensor, right_NPB: Tensor, shape: Sequence[int]) -> None:
        self.index_NP, self.right_NPB = _distinct(index_NP, widen(right_NPB))
        self.records, self.dtype, self.shape = right_NPB.shape[0], self.right_NPB.dtype, tuple(shape)
        self._seal = VersionGuard(self.index_NP, self.right_NPB)

    def measure(self) -> tuple[Tensor, Tensor]:
        norms = row_norms(self.right_NPB)
        return norms, norms

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        self._seal.check()
        rows = self.index_NP.flatten()
        for weights_N, total in zip(in_range(weights_QN, total_Q.dtype).unbind(), total_Q.unbind(), strict=True):
            scaled = self.right_NPB.to(total_Q.dtype) * weights_N.view(-1, 1, 1)
            total.index_add_(0, rows, scaled.flatten(0, 1))

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.add_to(self.right_NPB.new_zeros(stop - start, *self.shape), start, stop)

    def add_to(self, grads_N: Tensor, start: int, stop: int) -> Tensor:
        """Add the gradients of some records to others."""
        index, right = self.index_NP[start:stop], self.right_NPB[start:stop]
        return grads_N.scatter_add_(1, index.unsqueeze(-1).expand_as(right), right)

    def take(self, index_K: Tensor | slice, dtype: torch.dtype | None = None) -> OneHot:
        self._seal.check()
        return OneHot(self.index_NP[index_K], self.right_NPB[index_K].to(dtype or self.dtype), self.shape)

    def summed(self, size: int) -> OneHot:
        self._seal.check()
        return OneHot(_side_by_side(self.index_NP, size), _side_by_side(self.right_NPB, size), self.shape)


class Sum:
    """A parameter used in several ways: the cross terms come from the factors, or from the sum itself."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts, self.records, self.shape = tuple(parts), parts[0].records, parts[0].shape
        self.dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32

    def measure(self) -> tuple[Tensor, Tensor]:
        measured = [part.measure() for part in self.parts]
        absolute = torch.stack([bound for _, bound in measured]).sum(0)
        square = torch.stack([norm.square() for norm, _ in measured]).sum(0)
        for i, first in enumerate(self.parts):
            for other in self.parts[:i]:
                if not isinstance(first, (Outer, OneHot)) or not isinstance(other, (Outer, OneHot)):
                    return norms_by_chunks(self), absolute
                square = square + 2 * inner_products(first, other)
        return square.clamp(min=0).sqrt(), absolute

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        for part in self.parts:
            part.add_weighted(weights_QN, total_Q)

    def instantiate(self, start: int, stop: int) -> Tensor:
        first, *others = self.parts
        is_new = isinstance(first, (Outer, OneHot))  # these make gradients, others may have kept them
        total = first.instantiate(start, stop).to(self.dtype, copy=not is_new)
        for part in others:
            if isinstance(part, OneHot) and part.dtype == self.dtype:
                part.add_to(total, start, stop)
            else:
                total += part.instantiate(start, stop)
        return total

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Sum:
        return Sum([part.take(index_K, dtype) for part in self.parts])


def convolution(images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int) -> Leaf:
    """The weight's part of a convolution: at few positions, a linear map of the patches that the kernel saw."""
    frames, columns = len(images) // max(records, 1), math.prod(shape[1:])
    positions = math.prod(outputs.shape[2:]) * frames
    if geometry.groups != 1 or not records or not gram_is_cheaper(positions, shape[0], columns):
        return Convolution(images, outputs, shape, geometry, records)
    dimensions = len(shape) - 2
    patches = patches_of(widen(images), outputs, shape, geometry)
    right_NPB = patches.flatten(-dimensions).movedim(-1, 1).reshape(records, positions, columns)
    left_NPA = widen(outputs).flatten(2).transpose(1, 2).reshape(records, positions, shape[0])
    return Outer(left_NPA, right_NPB, shape)


def joined(parts: Sequence[Leaf], shape: Sequence[int]) -> Part:
    """One part for all uses of a parameter."""
    if len(parts) == 1:
        return parts[0]
    outers = [part for part in parts if isinstance(part, Outer)]
    hots = [part for part in parts if isinstance(part, OneHot)]
    if len(outers) > 1:
        left, right = [part.left_NPA for part in outers], [part.right_NPB for part in outers]
        outers = [Outer(torch.cat(left, 1), torch.cat(right, 1), shape)]
    if len(hots) > 1:
        index, right = [part.index_NP for part in hots], [part.right_NPB for part in hots]
        hots = [OneHot(torch.cat(index, 1), torch.cat(right, 1), shape)]
    kinds = [*(part for part in parts if not isinstance(part, (Outer, OneHot))), *outers, *hots]
    return kinds[0] if len(kinds) == 1 else Sum(kinds)


def merge(
    parts: Sequence[Leaf], shape: Sequence[int], room: int, keep: Callable[[WriteOnce], Factors] | None = None
) -> Factors:
    """One `Factors` for all uses of a parameter, instantiated where that is cheaper and there is room for it."""
    whole = joined(parts, shape)
    return whole if isinstance(whole, FormedGradients) else settle(whole, room, keep)


def settle(part: Part, room: int, keep: Callable[[WriteOnce], Factors] | None = None) -> Factors:
    """Instantiate now, once, if that is cheap: norm and weighted sum then read the same gradients.

    `keep` makes the gradients, in memory of its choice.
    """
    small = part.records * math.prod(part.shape) <= min(room, factors.KEEP_ELEMENTS)
    stays = isinstance(part, OneHot) or (isinstance(part, Outer) and part.gram_is_cheaper)
    if isinstance(part, Sum):
        stays = all(isinstance(own, (Outer, OneHot)) for own in part.parts)
    if not small or stays:
        return BoundedFactors(part)
    if keep is not None and isinstance(part, (Outer, Convolution)):
        return keep(part)
    grads_N = part.instantiate(0, part.records)
    return FormedGradients(grads_N, repaired(part, grads_N, row_norms(grads_N), absolute_of(part)))


def absolute_of(part: Part) -> Tensor:
    """Bounds on the sums of absolute products, without the norms of large gradients."""
    if isinstance(part, Sum):
        return torch.stack([absolute_of(own) for own in part.parts]).sum(0)
    return part.absolute() if isinstance(part, (Outer, Convolution)) else part.measure()[1]


def _side_by_side(values_NP: Tensor, size: int) -> Tensor:
    """The positions of every `size` successive records as those of one."""
    return values_NP.reshape(values_NP.shape[0] // size, size * values_NP.shape[1], *values_NP.shape[2:])


def inner_products(first: Outer | OneHot, other: Outer | OneHot) -> Tensor:
    """<g_n of first, g_n of other> from Gram matrices, [N], some records at a time.

    In float64: in float32 alternating signs cancel to anything, even below zero.
    """
    P, Q = first.right_NPB.shape[1], other.right_NPB.shape[1]
    width = max(P, Q, first.right_NPB.shape[2], *first.shape, *other.shape)
    size = max(1, GRAM_ELEMENTS // (width * max(P, Q)))
    found = []
    for start in range(0, max(first.records, 1), size):
        a, b = (part.take(slice(start, start + size), torch.float64) for part in (first, other))
        found.append((_left_products(a, b) * _products(a.right_NPB, b.right_NPB)).sum((1, 2)))
    return torch.cat(found)


def _products(first_NPB: Tensor, other_NQB: Tensor) -> Tensor:
    return torch.bmm(first_NPB, other_NQB.mT)


def _distinct(index_NP: Tensor, right_NPB: Tensor) -> tuple[Tensor, Tensor]:
    """Add up the rows of one index within each record, at its first position; the other positions become zero rows."""
    P, B = right_NPB.shape[1:]
    if P <= 1:
        return index_NP, right_NPB
    ordered, order = index_NP.sort(dim=1, stable=True)
    record, place = (ordered[:, 1:] == ordered[:, :-1]).nonzero(as_tuple=True)
    if not len(record):
        return index_NP, right_NPB
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[record, place + 1] = False
    first = torch.where(begins, torch.arange(P, device=order.device), 0).cummax(1).values
    again, target = (record * P + order[record, at] for at in (place + 1, first[record, place + 1]))
    rows = right_NPB.clone(memory_format=torch.contiguous_format)
    flat = rows.view(-1, B)
    flat.index_add_(0, target, flat[again])
    flat.index_fill_(0, again, 0)
    return index_NP, rows


def _left_products(first: Outer | OneHot, other: Outer | OneHot) -> Tensor:
    """<left of first at p, left of other at q>, shape [N, P, Q]."""
    if isinstance(first, Outer) and isinstance(other, Outer):
        return _products(first.left_NPA, other.left_NPA)
    if isinstance(first, OneHot) and isinstance(other, OneHot):
        return (first.index_NP.unsqueeze(2) == other.index_NP.unsqueeze(1)).to(first.dtype)
    if isinstance(first, OneHot):
        return _left_products(other, first).transpose(1, 2)
    assert isinstance(first, Outer)
    assert isinstance(other, OneHot)
    index = other.index_NP.unsqueeze(1).expand(-1, first.left_NPA.shape[1], -1)
    return first.left_NPA.gather(2, index)
