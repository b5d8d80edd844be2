"""Bounds the two parts of a gradient: its coefficients in a public subspace, and the residual outside of it.

Shape suffixes: N records, G groups of parameters, n records of a chunk, a active coordinates, k basis vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.gep.subspace import Basis, BasisLearning, Subspace
from discreet.stages.clipping import ROUND_DOWN, Bounder, Query

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext

# Norms outside of this range are scaled to 1 first, so that products in float32 neither overflow nor vanish.
_ORDINARY = 2.0**-40, 2.0**40
# A part that is shorter than this share of its gradient is clipped as if it had this length. What rounding leaves of a
# part that should vanish depends on the other records of the batch, and must not be scaled up to the clipping norm.
_LEAST = 1 / 16
_CHUNK = 1 << 25  # elements of gradients in memory


@final
@dataclass(frozen=True)
class EmbeddingClip(Bounder):
    """Each record contributes its residual and its embedding, each clipped to a norm of its own.

    The embedding are the coefficients e = B g in the public basis B; the residual is g - B^T e, as it is computed.
    The sum of embeddings is stored in the first k of the active coordinates.

    clip      clipping norm of the embedding
    residual  clipping norm of the residual; None: the embedding alone is released
    subspace  how the basis is made

    Guarantee: sensitivities `residual` and `clip` for every gradient and every basis (docs/proofs/EmbeddingClip.md).
    """

    clip: float
    residual: float | None = None
    subspace: Subspace = field(default_factory=Subspace)

    def __post_init__(self) -> None:
        check.positive("choose a clipping norm for the embedding, e.g. 1.0", clip=self.clip)
        if self.residual is not None:
            check.positive("choose a clipping norm for the residual, e.g. 0.4", residual=self.residual)

    @property
    def split(self) -> float:
        """The fraction of 1/z^2 that the embedding gets, where z is the noise multiplier.

        The noise on the gradient has energy z^2 (k clip^2 / split + (d - k) residual^2 / (1 - split)); this split makes
        it least, for k = rank * d.

        >>> round(EmbeddingClip(5.0, 2.0, Subspace(rank=1000 / 268_000)).split, 4)
        0.1327
        """
        if self.residual is None:
            return 1.0
        embedding = math.sqrt(self.subspace.rank) * self.clip
        return embedding / (embedding + math.sqrt(1 - self.subspace.rank) * self.residual)

    def vectors(self, scale: float) -> tuple[Query, ...]:
        """The residual, if it is released, and the embedding. The clipping norms do not adapt: `scale` is not used."""
        embedding = Query(self.clip, share=self.split**-0.5)
        if self.residual is None:
            return (embedding,)
        return Query(self.residual, share=(1 - self.split) ** -0.5), embedding

    def weights(self, norms_GN: Tensor, scale: float) -> Tensor:
        """Unused zeros: `contribution_map` maps whole gradients instead."""
        return norms_GN.new_zeros(len(self.vectors(scale)), *norms_GN.shape)

    def records_at_once(self, size: int) -> int:
        return max(1, min(128, _CHUNK // size))

    @property
    def public_records(self) -> int:
        return self.subspace.records

    def learning(self, context: StepContext) -> BasisLearning | None:
        return self.subspace.learning(context)

    def contribution_map(self, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
        def contributions(gradients_na: Tensor) -> Tensor:
            return self._clipped_sums(gradients_na, Basis.within(memory))

        return contributions

    def _clipped_sums(self, gradients_na: Tensor, basis: Basis) -> Tensor:
        """The sums of the clipped residuals and embeddings. The gradients are overwritten."""
        lengths_n, factors_n = _scale_(gradients_na)
        least_n = lengths_n * _LEAST
        embeddings_nk = basis.split_(gradients_na, keep_residual=self.residual is not None)
        sums = gradients_na.new_zeros(len(self.vectors(1.0)), gradients_na.shape[1])
        sums[-1, : basis.width] = _clipped_sum(embeddings_nk, factors_n, least_n, self.clip)
        if self.residual is not None:
            sums[0] = _clipped_sum(gradients_na, factors_n, least_n, self.residual)
        return sums


def _scale_(gradients_na: Tensor) -> tuple[Tensor, Tensor]:
    """Scale gradients of extreme norm to norm 1, in place. Returns their norms [n], and the factors [n] that undo it.

    The factor of a gradient that is not finite is 0, and so is the gradient.
    """
    from discreet.engine.factors.lengths import row_norms

    norms = row_norms(gradients_na)
    extreme = ~((norms >= _ORDINARY[0]) & (norms <= _ORDINARY[1]))
    factors = norms.new_ones(len(norms))
    if bool(extreme.any()):
        usable = norms.isfinite() & (norms > 0)
        divisors = norms.where(usable, norms.new_ones(()))[extreme].unsqueeze(1)
        scaled = (gradients_na[extreme].double() / divisors).to(gradients_na.dtype)
        gradients_na[extreme] = scaled.masked_fill(~usable[extreme].unsqueeze(1), 0)
        factors[extreme] = norms.where(usable, norms.new_zeros(()))[extreme]
        norms[extreme] = 1.0
    return norms, factors


def _clipped_sum(values_nx: Tensor, factors_n: Tensor, least_n: Tensor, radius: float) -> Tensor:
    """The sum of factor * value, each clipped to norm `radius`. The norms are those of the numbers that are summed.

    A value shorter than `least` is treated as that long. A value that is not finite contributes zero.
    """
    from discreet.engine.factors.lengths import row_norms
    from discreet.engine.factors.parts import in_range

    norms = row_norms(values_nx)
    good = norms.isfinite()
    weights = factors_n.minimum(radius * ROUND_DOWN / norms.maximum(least_n)).where(good, norms.new_zeros(()))
    if not bool(good.all()):
        values_nx = values_nx.masked_fill(~good.unsqueeze(1), 0)
    return in_range(weights, values_nx.dtype) @ values_nx
