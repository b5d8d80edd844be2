"""The active coordinates of a mask as indices, so that noise and updates cost time for active coordinates only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from discreet.engine.layout import Layout, Lines, Mask


@final
@dataclass(frozen=True, eq=False)
class Active:
    """Indices of the active coordinates, in ascending order.

    whole   indices into the flat vector of all parameters
    parts   for each parameter, indices into the flattened parameter; None if all of it is active
    counts  for each parameter, the number of active coordinates
    """

    whole: Tensor
    parts: tuple[Tensor | None, ...]
    counts: tuple[int, ...]

    @staticmethod
    def of(mask: Mask, layout: Layout, device: torch.device) -> Active:
        """Return the indices of a mask. They are cached on the mask, which may be used for a whole epoch."""
        found = mask.found.get("active")
        if not isinstance(found, Active) or found.whole.device != device:
            found = mask.found["active"] = _find(mask, layout, device)
        return found

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Split values on the active coordinates by parameter."""
        return torch.split(values, list(self.counts))


def _find(mask: Mask, layout: Layout, device: torch.device) -> Active:
    mask.check(layout)
    parts: list[Tensor | None] = []
    whole: list[Tensor] = []
    start = 0
    for index, (shape, size) in enumerate(zip(layout.shapes, layout.sizes, strict=True)):
        part = _part(mask, index, shape, device)
        parts.append(None if part is not None and len(part) == size else part)
        whole.append((torch.arange(size, device=device) if part is None else part) + start)
        start += size
    return Active(torch.cat(whole), tuple(parts), tuple(len(part) for part in whole))


def _part(mask: Mask, index: int, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
    """The active coordinates of one parameter; None if all of it is active."""
    piece = mask.pieces[index]
    if isinstance(piece, Lines) and piece.rows is not None and piece.columns is None:  # without a mask of elements
        width = math.prod(shape[1:])
        starts = piece.rows.to(device).nonzero() * width
        return (starts + torch.arange(width, device=device)).flatten()
    active = mask.of(index, torch.empty(shape, device=device))
    return None if active is None else active.to(device).reshape(-1).nonzero().flatten()


def from_indices(whole: Tensor, layout: Layout) -> Mask:
    """Return the element-wise mask with these active coordinates."""
    active = torch.zeros(layout.size, dtype=torch.bool, device=whole.device)
    active[whole] = True
    mask = Mask(tuple(layout.views(active)))
    ends = torch.tensor(layout.sizes, device=whole.device).cumsum(0)
    counts = torch.searchsorted(whole, ends).diff(prepend=ends.new_zeros(1)).tolist()
    parts = [own - start for own, start in zip(whole.split(counts), [0, *ends.tolist()], strict=False)]
    full = [count == size for count, size in zip(counts, layout.sizes, strict=True)]
    known = tuple(None if all_of_it else own for own, all_of_it in zip(parts, full, strict=True))
    mask.found["active"] = Active(whole, known, tuple(counts))
    return mask
