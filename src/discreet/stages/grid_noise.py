"""Gaussian noise on a grid: the exact option, whose certificate covers the last bits of every release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, final

from discreet.accounting.events import CountQuery, Gaussian, Queries
from discreet.core import check
from discreet.stages.clipping import Query
from discreet.stages.noise import GaussianNoise, Mechanism, active_part, add_by_parts_, check_sensitivity
from discreet.stages.values import BoundedSum

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.values import StepContext

_MOST_STEPS: Final = 2.0**62  # sums are cut off here, far beyond any bounded sum


@final
@dataclass(frozen=True)
class GridNoise(Mechanism):
    """Rounds every sum to a grid and adds Gaussian noise that was rounded to the same grid, exactly.

    The spacing of the grid is the power of two at or below sensitivity * 2^-bits. Rounding moves the sums of neighbours
    apart by up to spacing * sqrt(d) on d coordinates, so the noise is larger by the factor 1 + 2^-bits sqrt(d).

    Guarantee: that of `GaussianNoise` for the same noise multiplier, for the numbers that the computer releases and not
    only for real ones (docs/proofs/GridNoise.md). It needs the CPU and several times as long; the time depends on the
    noise, though not on the sums.
    """

    in_parts: ClassVar[bool] = True
    bits: int = 20

    def __post_init__(self) -> None:
        check.count("the grid divides the sensitivity into 2^bits steps", bits=self.bits)
        check.require(self.bits <= 30, "bits of at most 30", self.bits, "use 20: finer grids gain nothing")

    @property
    def of_numbers(self) -> Mechanism:
        return self

    def event(self, queries: Sequence[Query], noise: float) -> Gaussian | CountQuery | Queries:
        return GaussianNoise().event(queries, noise)

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        noisy = []
        for total, query in zip(sums, queries, strict=True):
            check_sensitivity(total, query)
            whole = total.value.shape == (context.layout.size,)  # a count is never masked
            value = active_part(total.value, context) if whole else total.value
            steps = self.steps(query, noise, value.numel())  # of all processes: the whole sum is what moves
            add_ = partial(_on_grid, spacing=self.spacing(query.sensitivity), steps=steps, context=context)
            noisy.append(add_by_parts_(value, context, add_))
        return noisy

    def spacing(self, sensitivity: float) -> float:
        """The distance of two points of the grid."""
        return 2.0 ** (math.frexp(sensitivity)[1] - 1 - self.bits)

    def steps(self, query: Query, noise: float, coordinates: int) -> float:
        """The standard deviation of the noise, in steps of the grid and rounded up."""
        spacing = self.spacing(query.sensitivity)
        moved = 1 + spacing * math.sqrt(coordinates) / query.sensitivity
        return query.std(noise) * moved * (1 + 2.0**-40) / spacing


def _on_grid(value: Tensor, spacing: float, steps: float, context: StepContext) -> None:
    """Overwrite the exact sum by its noisy rounding. Whole numbers add exactly; scaling the sum costs nothing."""
    import torch

    from discreet.core.generators.exact import rounded_normals

    flat = value.detach().reshape(-1).cpu()
    nearest = flat.double().div_(spacing).round_().nan_to_num_(0.0).clamp_(-_MOST_STEPS, _MOST_STEPS)
    drawn = rounded_normals(context.streams.noise, len(flat), steps)
    noisy = nearest.to(torch.int64) + torch.from_numpy(drawn)
    value.copy_(noisy.double().mul_(spacing).view(value.shape))
