"""Factors of the active coordinates alone, so that norms and sums under a mask come from the same numbers."""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor

from discreet.engine.factors import parts as limits
from discreet.engine.factors.formed_twice import FormedTwice
from discreet.engine.factors.groups import Joined
from discreet.engine.factors.lengths import row_norms
from discreet.engine.factors.linear import OneHot, Outer, settle
from discreet.engine.factors.parts import BoundedFactors, Factors, FormedGradients, Part, norms_by_chunks
from discreet.engine.layout import Lines, Mask

_IN_CACHE: Final = 1 << 16  # numbers that are widened at a time


def restrict(factors: Factors, mask: Mask, index: int) -> Factors | None:
    """The part of one parameter on its active coordinates; None where none is active."""
    if isinstance(factors, Joined):
        members = [restrict(member, mask, index) for member in factors.members]
        left = [member for member in members if member is not None]  # all of them, or none
        return Joined(left) if left else None
    piece = mask.pieces[index]
    if piece is True:
        return factors
    active = mask.of(index, torch.empty(factors.shape, device=factors.norms.device))
    assert active is not None
    if not bool(active.any()):
        return None
    if isinstance(factors, FormedTwice):
        factors = factors.formed()
    if isinstance(factors, FormedGradients):
        return FormedGradients(factors.grads_N * active)
    assert isinstance(factors, BoundedFactors)
    part = factors.part
    if isinstance(part, OneHot):
        return BoundedFactors(OneHot(part.index_NP, part.right_NPB * active[part.index_NP], part.shape))
    if isinstance(piece, Lines) and isinstance(part, Outer) and len(part.shape) == 2:
        return _on_lines(part, piece)
    return BoundedFactors(_OnElements(part, active))


def _on_lines(outer: Outer, lines: Lines) -> Factors:
    rows = None if lines.rows is None else lines.rows.nonzero().flatten()
    columns = None if lines.columns is None else lines.columns.nonzero().flatten()
    left = outer.left_NPA if rows is None else outer.left_NPA[..., rows]
    right = outer.right_NPB if columns is None else outer.right_NPB[..., columns]
    inner = settle(Outer(left, right, (left.shape[2], right.shape[2])), limits.KEEP_ELEMENTS)
    return _OnLines(inner, outer.shape, rows, columns)


@final
class _OnLines:
    """Factors of some rows and columns of a matrix."""

    def __init__(self, inner: Factors, shape: tuple[int, ...], rows: Tensor | None, columns: Tensor | None) -> None:
        self.inner, self.records, self.dtype, self.shape = inner, inner.records, inner.dtype, shape
        self._rows, self._columns = rows, columns

    @property
    def norms(self) -> Tensor:
        return self.inner.norms

    def measure(self) -> tuple[Tensor, Tensor]:
        return self.inner.measure()

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        part_Q = total_Q.new_zeros(total_Q.shape[0], *self.inner.shape)
        self.inner.add_weighted(weights_QN, part_Q)
        self._put(part_Q, total_Q)

    def instantiate(self, start: int, stop: int) -> Tensor:
        whole = torch.zeros(stop - start, *self.shape, dtype=self.dtype, device=self.norms.device)
        self._put(self.inner.instantiate(start, stop), whole)
        return whole

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> _OnLines:
        return _OnLines(self.inner.take(index_K, dtype), self.shape, self._rows, self._columns)

    def _put(self, lines: Tensor, whole: Tensor) -> None:
        """whole[:, rows, columns] += lines, in place."""
        if self._columns is not None:
            wide = lines.new_zeros(*lines.shape[:2], whole.shape[2])
            lines = wide.index_add_(2, self._columns, lines)
        if self._rows is None:
            whole += lines
        else:
            whole.index_add_(1, self._rows, lines)


@final
class _OnElements:
    """A part with single coordinates frozen."""

    def __init__(self, part: Part, active: Tensor) -> None:
        self.part, self.active = part, active
        self.records, self.dtype, self.shape = part.records, part.dtype, part.shape

    def measure(self) -> tuple[Tensor, Tensor]:
        if not isinstance(self.part, Outer) or self.part.left_NPA.shape[1] > 1:
            return norms_by_chunks(self), self.part.measure()[1]
        left_NA, right_NB, active_AB = self.part.left_NPA[:, 0], self.part.right_NPB[:, 0], self.active.flatten(1)
        if active_AB.shape[0] > active_AB.shape[1]:
            left_NA, right_NB, active_AB = right_NB, left_NA, active_AB.T
        some, wide_AB = max(1, _IN_CACHE // active_AB.shape[1]), active_AB.double()
        pairs = zip(left_NA.split(some), right_NB.split(some), strict=True)
        norms = torch.cat([_masked_norms(left, right, wide_AB) for left, right in pairs])
        return norms, norms  # every coordinate is one product: nothing cancels

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        fresh = torch.zeros_like(total_Q)
        self.part.add_weighted(weights_QN, fresh)
        total_Q += fresh.masked_fill_(~self.active, 0)

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.part.instantiate(start, stop) * self.active

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> _OnElements:
        return _OnElements(self.part.take(index_K, dtype), self.active)


def _masked_norms(left_NA: Tensor, right_NB: Tensor, active_AB: Tensor) -> Tensor:
    """Norms of the active coordinates of l_a r_b, by a matrix product over the longer factor."""
    squares, scale = [], torch.ones(len(left_NA), dtype=torch.float64, device=left_NA.device)
    for values in (left_NA, right_NB):
        wide = values.double()
        if values.dtype == torch.float64:  # the squares of narrower numbers always fit
            size = row_norms(wide).clamp(min=1e-300)
            wide, scale = wide / size.unsqueeze(1), scale * size
        squares.append(wide.square())
    return torch.einsum("na,na->n", squares[0], squares[1] @ active_AB.T).sqrt() * scale
