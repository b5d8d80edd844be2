"""Per-sample gradients that are made twice, in memory that all parameters share: for the norms, and for the sums.

Kept until the sums, they would take several times the memory of their factors, beside the activations of the backward
pass. Norms and sums are those of `FormedGradients`, bit by bit. Index legend: N records, Q queries.
"""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor

from discreet.core.check import require
from discreet.engine.factors.lengths import row_norms
from discreet.engine.factors.parts import FormedGradients, GradientBuffer, WriteOnce, repaired

_SHARED: Final = ""  # the place of all of them in the buffer; no parameter has this name


@final
class FormedTwice:
    """Gradients whose factors are kept instead of them.

    Guarantee: what is summed has the norms that were measured, because it is measured again.
    """

    def __init__(self, part: WriteOnce, room: GradientBuffer) -> None:
        self.part, self._room = part, room
        self.records, self.dtype, self.shape = part.records, part.dtype, part.shape
        self.norms = room.fill(_SHARED, part).norms

    def formed(self) -> FormedGradients:
        """The gradients, until others are made in the same memory."""
        again = self._room.fill(_SHARED, self.part)
        require(
            torch.equal(again.norms.nan_to_num(nan=-1.0), self.norms.nan_to_num(nan=-1.0)),
            "the same gradients when they are made again",
            f"others, of a parameter of shape {list(self.shape)}",
            "call torch.use_deterministic_algorithms(True)",
        )
        return again

    def measure(self) -> tuple[Tensor, Tensor]:
        return self.norms, self.norms

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        self.formed().add_weighted(weights_QN, total_Q)

    def instantiate(self, start: int, stop: int) -> Tensor:
        """In memory of their own, and only these: methods ask for some records after others."""
        some = self.part.take(torch.arange(start, stop, device=self.norms.device))
        grads = some.instantiate(0, stop - start)
        repaired(some, grads, row_norms(grads), self.part.absolute()[start:stop])
        return grads

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> FormedGradients:
        return self.formed().take(index_K, dtype)
