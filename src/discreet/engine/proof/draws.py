"""Random inputs of the public shape, for a model that may want positive numbers, or indices above zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discreet.engine.trace.capture import replace


@dataclass(frozen=True)
class Draw:
    """How inputs are drawn: standard normal or uniform on (0, 1); `span` whole numbers from `low` on."""

    positive: bool
    low: int
    span: int

    def inputs(self, tree: Any, batched: Sequence[bool], rows: int, generator: torch.Generator) -> Any:
        """`tree` with random tensors of `rows` rows where it holds tensors of records."""
        return _where(tree, batched, lambda tensor: self._random(tensor, rows, generator))

    def extended(self, tree: Any, batched: Sequence[bool], rows: int, generator: torch.Generator) -> Any:
        """`tree` with more random rows after its own."""
        return _where(tree, batched, lambda t: torch.cat([t, self._random(t, rows, generator)]))

    def replaced(self, tree: Any, batched: Sequence[bool], record: int, views: int, generator: torch.Generator) -> Any:
        """`tree` with one record drawn anew: floats four times as large, and no whole number as it was, if
        there is another one."""
        own = slice(record * views, (record + 1) * views)

        def changed(tensor: Tensor) -> Tensor:
            tensor = tensor.clone()
            if tensor.is_floating_point() or tensor.is_complex():
                tensor[own] = 4 * self._random(tensor, views, generator)
            elif tensor.dtype == torch.bool:
                tensor[own] = ~tensor[own]
            elif self.span > 1:
                steps = torch.randint(1, self.span, tensor[own].shape, generator=generator).to(tensor)
                tensor[own] = (tensor[own] - self.low + steps) % self.span + self.low
            return tensor

        return _where(tree, batched, changed)

    def _random(self, like: Tensor, rows: int, generator: torch.Generator) -> Tensor:
        shape = (rows, *like.shape[1:])
        if like.is_floating_point() or like.is_complex():
            dtype = torch.complex64 if like.is_complex() else torch.float32
            kind = torch.rand if self.positive else torch.randn
            return kind(shape, generator=generator, dtype=dtype).to(like)
        low, span = (0, 2) if like.dtype == torch.bool else (self.low, self.span)
        return torch.randint(low, low + span, shape, generator=generator).to(like)


# Token ids may have to lie below 2 or to be 0, lengths above 0; some models take logarithms.
DRAWS = tuple(Draw(positive, low, span) for low, span in ((0, 4), (0, 2), (1, 2), (0, 1)) for positive in (False, True))


def _where(tree: Any, chosen: Sequence[bool], change: Any) -> Any:
    """The same structure with the chosen tensors changed."""
    flags = iter(chosen)
    return replace(tree, lambda tensor: change(tensor) if next(flags) else tensor)
