"""Put noisy embedding and noisy residual together. This is post-processing and costs no privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from discreet.core import check
from discreet.methods.gep.clipping import EmbeddingClip
from discreet.methods.gep.subspace import Basis
from discreet.stages.clipping import Bounder
from discreet.stages.combination import Combination
from discreet.stages.selection import Order, Selection

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext


@final
@dataclass(frozen=True)
class FromEmbedding(Combination):
    """The lifted embedding plus the part of the residual outside of the subspace, for the bounder `EmbeddingClip`.

    The exact residuals have no part inside the subspace, so this drops noise only.
    """

    def check(self, bounder: Bounder, selection: Selection) -> None:
        check.require(
            isinstance(bounder, EmbeddingClip), "the bounder EmbeddingClip", repr(bounder), "use the recipe methods.gep"
        )
        check.require(
            selection.takes_all or selection.order is Order.FREEZE_THEN_CLIP,
            "gradients that are clipped on their active coordinates: order=freeze-then-clip",
            str(selection.order),
            "change the order: embedding and residual exist on the active coordinates only",
        )

    def gradient(self, vectors: Sequence[Tensor], numbers: Sequence[float], context: StepContext) -> Tensor:
        basis, size = Basis.within(context.memory), len(vectors[-1])
        coefficients = vectors[-1][: basis.width]
        if len(vectors) == 1:
            return basis.lift(coefficients, size)
        residual = vectors[0]
        return residual + basis.lift(coefficients - basis.embed(residual), size)
