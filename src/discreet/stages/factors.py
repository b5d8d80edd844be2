"""What one parameter received from each record, kept factored for as long as possible.

Index legend: N records, P positions (time, pixels), A rows and B columns of a parameter, Q queries.

Every class answers the same four questions about its per-sample gradients g_N (shape [N, *shape]):
`square_norms()` (with the rounding slack that makes the root an upper bound), `add_weighted()`,
`instantiate()` and `silence()`. Nothing here knows which op or which model the factors came from.

Guarantee: ||computed contribution of record i|| <= norm_i * (1 + 2^-18), with
norm_i = sqrt(square_i) + slack_i, for finite factors; a non-finite factor makes norm_i non-finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

# A contribution that is summed by another route than its norm may differ by rounding: allow this many ulps of
# the sum of absolute products, far above the sqrt(P) growth that blocked summation shows.
ROUNDING_ULPS = 16.0
# Per-sample gradients of one parameter are kept while they fit in this many elements.
KEEP_ELEMENTS = 1 << 25
# Above this ratio of Gram work to parameter size it is cheaper to instantiate (measured on two cores).
GRAM_RATIO = 12.0


class Factors(Protocol):
    """Per-sample gradients of one parameter, in factored form."""

    @property
    def records(self) -> int:
        """N."""

    def square_norms(self) -> tuple[Tensor, Tensor]:
        """Squared norms and slacks, float64, both of shape [N]."""

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        """total_Q += sum_n weights_QN[:, n] * g_n, in place."""

    def instantiate(self, start: int, stop: int) -> Tensor:
        """The per-sample gradients of records start..stop, shape [stop - start, *shape]."""

    def silence(self, bad_N: Tensor) -> Factors:
        """The same factors with the records of `bad_N` set to exact zero."""


def widen(tensor: Tensor) -> Tensor:
    """At least float32: norms and sums never run in half precision."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def zero_rows(tensor: Tensor, bad_N: Tensor) -> Tensor:
    shape = (-1,) + (1,) * (tensor.dim() - 1)
    return tensor.masked_fill(bad_N.view(shape), 0)


def row_norms(tensor: Tensor) -> Tensor:
    """Norms over everything but the first axis, accumulated in float64 so that no square overflows or vanishes."""
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1, dtype=torch.float64)


class Dense:
    """Per-sample gradients that are already there: biases, norm layers, scales, any op by `vmap`."""

    def __init__(self, grads_N: Tensor) -> None:
        self.grads_N = widen(grads_N)

    @property
    def records(self) -> int:
        return self.grads_N.shape[0]

    def square_norms(self) -> tuple[Tensor, Tensor]:
        flat = self.grads_N.reshape(self.records, -1)
        # Squares in the working precision are fast; below its range they vanish, by at most `underflow` in the norm.
        square = torch.linalg.vecdot(flat, flat).double()
        tiny = torch.finfo(flat.dtype).tiny
        underflow = math.sqrt(flat.shape[1] * tiny)
        return square, torch.full_like(square, underflow)

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        queries = total_Q.shape[0]
        flat = self.grads_N.reshape(self.records, -1).to(total_Q.dtype)
        total_Q.view(queries, -1).addmm_(weights_QN.to(total_Q.dtype), flat)

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.grads_N[start:stop]

    def silence(self, bad_N: Tensor) -> Dense:
        return Dense(zero_rows(self.grads_N, bad_N))


class Outer:
    """g_n = sum_p left[n, p] (x) right[n, p]: what a linear map leaves, over its positions."""

    def __init__(self, left_NPA: Tensor, right_NPB: Tensor, shape: Sequence[int]) -> None:
        self.left_NPA, self.right_NPB = widen(left_NPA), widen(right_NPB)
        self.shape = tuple(shape)

    @property
    def records(self) -> int:
        return self.right_NPB.shape[0]

    @property
    def gram_is_cheaper(self) -> bool:
        """Gram matrices cost P^2 (A + B) a record; instantiating writes and reads A B numbers."""
        (_, P, A), B = self.left_NPA.shape, self.right_NPB.shape[2]
        return P == 1 or P * P * (A + B) < GRAM_RATIO * A * B

    def square_norms(self) -> tuple[Tensor, Tensor]:
        left, right = row_norms(self.left_NPA), row_norms(self.right_NPB)
        if self.left_NPA.shape[1] == 1:
            return (left * right).square(), torch.zeros_like(left)
        slack = rounding_slack(left, right, self.right_NPB.dtype)
        if self.gram_is_cheaper:
            gram = _gram(self.left_NPA) * _gram(self.right_NPB)
            return gram.sum((1, 2)).clamp(min=0), slack
        square, underflow = norms_by_chunks(self, math.prod(self.shape))
        return square, slack + underflow

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        A, B = self.left_NPA.shape[2], self.right_NPB.shape[2]
        left, right = self.left_NPA.to(total_Q.dtype), self.right_NPB.to(total_Q.dtype)
        for weights_N, total in zip(weights_QN.to(total_Q.dtype), total_Q, strict=True):
            scale = weights_N.view(-1, 1, 1)
            scaled_left, scaled_right = (left * scale, right) if A <= B else (left, right * scale)
            total.view(A, B).addmm_(scaled_left.reshape(-1, A).T, scaled_right.reshape(-1, B))

    def instantiate(self, start: int, stop: int) -> Tensor:
        left, right = self.left_NPA[start:stop], self.right_NPB[start:stop]
        return torch.bmm(left.transpose(1, 2), right).view(-1, *self.shape)

    def lines(self, rows_A: Tensor | None, columns_B: Tensor | None) -> Outer:
        """The part on active rows and columns; only for its norms."""
        left = self.left_NPA if rows_A is None else self.left_NPA[..., rows_A]
        right = self.right_NPB if columns_B is None else self.right_NPB[..., columns_B]
        return Outer(left, right, (left.shape[2], right.shape[2]))

    def masked_square(self, active_AB: Tensor) -> Tensor:
        """Squared norms on single active elements, for one position: one matrix product."""
        left_NA, right_NB = self.left_NPA[:, 0].double().square(), self.right_NPB[:, 0].double().square()
        return ((left_NA @ active_AB.double()) * right_NB).sum(1)

    def silence(self, bad_N: Tensor) -> Outer:
        return Outer(zero_rows(self.left_NPA, bad_N), zero_rows(self.right_NPB, bad_N), self.shape)


class OneHot:
    """An embedding's part: g_n = sum_p onehot(index[n, p]) (x) right[n, p]."""

    def __init__(self, index_NP: Tensor, right_NPB: Tensor, shape: Sequence[int]) -> None:
        self.index_NP, self.right_NPB, self.shape = index_NP, widen(right_NPB), tuple(shape)

    @property
    def records(self) -> int:
        return self.right_NPB.shape[0]

    def square_norms(self) -> tuple[Tensor, Tensor]:
        right = row_norms(self.right_NPB)
        gram = _left_cross(self, self) * _gram(self.right_NPB)
        length = torch.full_like(right, math.sqrt(self.index_NP.shape[1]))
        return gram.sum((1, 2)).clamp(min=0), rounding_slack(length, right, self.right_NPB.dtype)

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        rows = self.index_NP.flatten()
        for weights_N, total in zip(weights_QN.to(total_Q.dtype), total_Q, strict=True):
            scaled = self.right_NPB.to(total_Q.dtype) * weights_N.view(-1, 1, 1)
            total.index_add_(0, rows, scaled.flatten(0, 1))

    def instantiate(self, start: int, stop: int) -> Tensor:
        index, right = self.index_NP[start:stop], self.right_NPB[start:stop]
        grads = right.new_zeros(stop - start, *self.shape)
        return grads.scatter_add_(1, index.unsqueeze(-1).expand_as(right), right)

    def silence(self, bad_N: Tensor) -> OneHot:
        return OneHot(self.index_NP, zero_rows(self.right_NPB, bad_N), self.shape)


class Sum:
    """A parameter used in several ways: the cross terms come from the factors, or from the sum itself."""

    def __init__(self, parts: Sequence[Outer | OneHot]) -> None:
        self.parts = tuple(parts)

    @property
    def records(self) -> int:
        return self.parts[0].records

    def square_norms(self) -> tuple[Tensor, Tensor]:
        square, slack = self.parts[0].square_norms()
        for i, first in enumerate(self.parts[1:], start=1):
            own, own_slack = first.square_norms()
            square, slack = square + own, slack + own_slack
            for other in self.parts[:i]:
                right = torch.einsum("npb,nqb->npq", first.right_NPB.double(), other.right_NPB.double())
                square = square + 2 * (_left_cross(first, other) * right).sum((1, 2))
        return square.clamp(min=0), slack

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        for part in self.parts:
            part.add_weighted(weights_QN, total_Q)

    def instantiate(self, start: int, stop: int) -> Tensor:
        return torch.stack([part.instantiate(start, stop) for part in self.parts]).sum(0)

    def silence(self, bad_N: Tensor) -> Sum:
        return Sum([part.silence(bad_N) for part in self.parts])


def rounding_slack(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounding of a sum over positions: sum_p |l_p||r_p| <= ||l|| ||r|| by Cauchy-Schwarz."""
    return ROUNDING_ULPS * torch.finfo(dtype).eps * left * right


def norms_by_chunks(part: Factors, size: int) -> tuple[Tensor, Tensor]:
    """Square norms of gradients that are too large to keep: instantiate some records, measure, forget."""
    step = max(1, KEEP_ELEMENTS // size)
    pieces = [
        Dense(part.instantiate(start, min(start + step, part.records))).square_norms()
        for start in range(0, part.records, step)
    ]
    squares, slacks = zip(*pieces, strict=True)
    return torch.cat(squares), torch.cat(slacks)


def _gram(rows_NPB: Tensor) -> Tensor:
    """<r_p, r_q>, in float64: in float32 alternating signs cancel to anything, even below zero."""
    wide = rows_NPB.double()
    return torch.bmm(wide, wide.transpose(1, 2))


def _left_cross(first: Outer | OneHot, other: Outer | OneHot) -> Tensor:
    """<left of first at p, left of other at q>, shape [N, P, Q], float64."""
    if isinstance(first, Outer) and isinstance(other, Outer):
        return torch.einsum("npa,nqa->npq", first.left_NPA.double(), other.left_NPA.double())
    if isinstance(first, OneHot) and isinstance(other, OneHot):
        return (first.index_NP.unsqueeze(2) == other.index_NP.unsqueeze(1)).double()
    if isinstance(first, OneHot):
        return _left_cross(other, first).transpose(1, 2)
    assert isinstance(first, Outer) and isinstance(other, OneHot)
    index = other.index_NP.unsqueeze(1).expand(-1, first.left_NPA.shape[1], -1)
    return first.left_NPA.double().gather(2, index)


def merge(parts: Sequence[Factors], shape: Sequence[int]) -> Factors:
    """One `Factors` for all uses of a parameter, instantiated where that is the cheaper way to its norm."""
    outers = [part for part in parts if isinstance(part, Outer)]
    hots = [part for part in parts if isinstance(part, OneHot)]
    if len(outers) + len(hots) < len(parts):
        return parts[0] if len(parts) == 1 else _add_up(parts)
    factored: list[Outer | OneHot] = []
    if outers:
        left = torch.cat([part.left_NPA for part in outers], 1) if len(outers) > 1 else outers[0].left_NPA
        right = torch.cat([part.right_NPB for part in outers], 1) if len(outers) > 1 else outers[0].right_NPB
        factored.append(Outer(left, right, shape))
    if hots:
        index = torch.cat([part.index_NP for part in hots], 1)
        factored.append(OneHot(index, torch.cat([part.right_NPB for part in hots], 1), shape))
    if len(factored) > 1:
        return Sum(factored)
    whole = factored[0]
    return keep_if_small(whole, math.prod(shape)) if isinstance(whole, Outer) else whole


def keep_if_small(part: Outer, size: int) -> Factors:
    """Instantiate now, once: the norm and the weighted sum then both read the same gradients."""
    if part.gram_is_cheaper or part.records * size > KEEP_ELEMENTS:
        return part
    return Dense(part.instantiate(0, part.records))


def _add_up(parts: Sequence[Factors]) -> Dense:
    total = parts[0].instantiate(0, parts[0].records).clone()
    for part in parts[1:]:
        total += part.instantiate(0, part.records)
    return Dense(total)
