"""The subspace of gradient embedding perturbation: orthonormal bases from public records.

The active coordinates are divided into consecutive groups, each with a basis of its own: G groups make the products G
times cheaper, for the same number of basis vectors.

The bases depend on public records, public randomness and released parameters only. The guarantee of the method holds
for any basis, also one that is not orthonormal or does not fit the private gradients (docs/proofs/EmbeddingClip.md).

Shape suffixes: n records of a chunk, a active coordinates, k basis vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.stages.values import PUBLIC

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext

BASIS, MADE_AT, ACTIVE = (f"{PUBLIC}gep.{name}" for name in ("basis", "made-at", "active"))


@final
@dataclass(frozen=True, kw_only=True)
class Subspace:
    """How the basis is made.

    rank     basis vectors of a group, as a fraction of its active coordinates
    groups   the number of groups of coordinates, each with a basis of its own
    records  public records for each new basis; a group has at most as many basis vectors
    refresh  steps between two bases; a new mask of active coordinates also needs a new basis
    """

    rank: float = 0.01
    groups: int = 10
    records: int = 256
    refresh: int = 20

    def __post_init__(self) -> None:
        check.inside_unit("choose the fraction of basis vectors, e.g. 0.01", rank=self.rank)
        check.count("give whole numbers", groups=self.groups, records=self.records, refresh=self.refresh)

    def width(self, size: int) -> int:
        """The number of basis vectors of a group with `size` active coordinates.

        >>> Subspace(rank=0.01, records=256).width(30_000), Subspace(rank=0.01).width(7)
        (256, 1)
        """
        return min(max(1, round(self.rank * size)), size, self.records)

    def sizes(self, size: int) -> list[int]:
        """The sizes of the groups of `size` active coordinates; they differ by at most one.

        There are fewer groups if the rank does not suffice for one basis vector each.

        >>> Subspace(rank=0.5, groups=3).sizes(11), Subspace(rank=0.5, groups=3).sizes(3)
        ([4, 4, 3], [2, 1])
        """
        groups = min(self.groups, max(1, round(self.rank * size)))
        least, more = divmod(size, groups)
        return [least + (group < more) for group in range(groups)]

    def learning(self, context: StepContext) -> BasisLearning | None:
        """The next basis; None while the current one is recent and fits the mask."""
        made_at = context.memory.get(MADE_AT)
        is_recent = made_at is not None and int(made_at) <= context.step < int(made_at) + self.refresh
        if is_recent and _same(context.memory.get(ACTIVE), _active(context)):
            return None
        return BasisLearning(self, context)


def _active(context: StepContext) -> Tensor | None:
    """The active coordinates of a step; None if all are active."""
    if context.mask is None:
        return None
    import torch

    from discreet.engine.active import Active

    return Active.of(context.mask, context.layout, torch.device(context.device)).whole


def _same(kept: Tensor | None, active: Tensor | None) -> bool:
    if kept is None or active is None:
        return kept is active
    return kept is active or (kept.shape == active.shape and bool((kept == active).all()))


@final
class Basis:
    """The basis vectors [k, a] of each group, on consecutive coordinates. Without groups, the embedding is empty."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = tuple(parts)
        self.width = sum(len(part) for part in parts)
        self._sizes = [part.shape[1] for part in parts]

    @staticmethod
    def within(memory: Mapping[str, Tensor]) -> Basis:
        """The basis in the memory of a run; empty before the first one is made."""
        names = itertools.takewhile(memory.__contains__, (f"{BASIS}.{group}" for group in itertools.count()))
        return Basis([memory[name] for name in names])

    def split_(self, gradients_na: Tensor, *, keep_residual: bool) -> Tensor:
        """Return the embeddings [n, k] in the basis; with `keep_residual`, the gradients become the residuals."""
        embeddings = gradients_na.new_empty(len(gradients_na), self.width)
        start = 0
        for columns, part in zip(self._columns(gradients_na), self.parts, strict=True):
            own = embeddings[:, start : start + len(part)]
            own.copy_(columns @ part.T)
            if keep_residual:
                columns.addmm_(own, part, alpha=-1)
            start += len(part)
        return embeddings

    def embed(self, gradient_a: Tensor) -> Tensor:
        """The coefficients of one vector."""
        return self.split_(gradient_a.unsqueeze(0), keep_residual=False).squeeze(0)

    def lift(self, embedding_k: Tensor, size: int) -> Tensor:
        """The vector with these coefficients, on `size` coordinates."""
        lifted = embedding_k.new_zeros(size)
        pieces = embedding_k.split([len(part) for part in self.parts]) if self.parts else ()
        for columns, piece, part in zip(self._columns(lifted.unsqueeze(0)), pieces, self.parts, strict=True):
            columns.copy_(piece @ part)
        return lifted

    def _columns(self, values: Tensor) -> tuple[Tensor, ...]:
        if not self.parts:
            return ()
        check.require(
            sum(self._sizes) == values.shape[1],
            f"gradients with the {sum(self._sizes)} coordinates of the basis",
            values.shape[1],
            "make a new basis when the active coordinates change",
        )
        columns: tuple[Tensor, ...] = values.split(self._sizes, dim=1)
        return columns


@final
class BasisLearning:
    """One step of power iteration per basis: B <- orth(sum_n (B u_n) u_n^T), over public gradients u_n of norm 1.

    It begins with the last basis of the same shape. Without one, vector i is the sum of every k-th gradient from the
    i-th on. The gradients are normalised, so that a public record with a large loss does not take a basis vector for
    itself.
    """

    def __init__(self, subspace: Subspace, context: StepContext) -> None:
        self._memory, self._step, self._active = context.memory, context.step, _active(context)
        self._sizes = subspace.sizes(context.layout.size if self._active is None else len(self._active))
        self._widths = [subspace.width(size) for size in self._sizes]
        last = Basis.within(context.memory).parts
        is_same = [tuple(part.shape) for part in last] == list(zip(self._widths, self._sizes, strict=True))
        self._last = last if is_same else None
        self._next: list[Tensor] = []
        self._seen = 0

    def add(self, gradients_nd: Tensor) -> None:
        import torch

        from discreet.engine.factors.lengths import row_norms

        norms = row_norms(gradients_nd)
        usable = norms.isfinite() & (norms > 0)
        unit = gradients_nd[usable] / norms[usable].unsqueeze(1).to(gradients_nd.dtype)
        if not len(unit):
            return
        columns = unit.split(self._sizes, dim=1)
        if not self._next:
            self._next = [unit.new_zeros(shape) for shape in zip(self._widths, self._sizes, strict=True)]
        for group, (own, total) in enumerate(zip(columns, self._next, strict=True)):
            if self._last is None:
                places = torch.arange(self._seen, self._seen + len(unit), device=unit.device) % len(total)
                total.index_add_(0, places, own)
            else:
                total.addmm_(self._last[group] @ own.T, own)
        self._seen += len(unit)

    def finish(self) -> list[Tensor]:
        import torch

        for name in [name for name in self._memory if name.startswith(BASIS)]:
            del self._memory[name]
        self._memory.pop(ACTIVE, None)
        for group, wanted in enumerate(self._next):
            orthonormal = torch.linalg.qr(wanted.T).Q.T.contiguous()
            check.require(
                bool(orthonormal.isfinite().all()),
                "finite gradients of public records",
                "a basis that is not finite",
                "lower the learning rate, or check the public records",
            )
            self._memory[f"{BASIS}.{group}"] = orthonormal
        self._memory[MADE_AT] = torch.tensor(self._step)
        if self._active is not None:
            self._memory[ACTIVE] = self._active
        return list(Basis.within(self._memory).parts)
