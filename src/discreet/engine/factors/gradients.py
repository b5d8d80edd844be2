"""The per-record gradients of one micro-batch, after its backward pass.

    KeptGradients       one backward pass; the factors of all parameters are kept until they are summed
    RepeatedGradients   two backward passes, for models with checkpointed regions: the first measures norms, the second
                        sums. The factors of a parameter are let go of at once, so that checkpointing saves memory

Both passes start from the same losses and compute the same gradients bit for bit, whatever the weights are: the norms
of the first hold for what the second sums. Index legend: N records, Q queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, final

import torch
from torch import Tensor

from discreet.core.check import require
from discreet.engine.factors import parts as limits
from discreet.engine.factors.collector import Settle
from discreet.engine.factors.formed_twice import FormedTwice
from discreet.engine.factors.groups import Joined, UnitRows
from discreet.engine.factors.linear import Outer, absolute_of, joined, merge
from discreet.engine.factors.parts import (
    BoundedFactors,
    Factors,
    FormedGradients,
    GradientBuffer,
    Leaf,
    Measured,
    WriteOnce,
)
from discreet.engine.factors.restrict import restrict
from discreet.engine.layout import Layout, Mask

# Up to so many elements in all, gradients are kept even where they are large for the time that they take.
KEEP_ANYWAY = 1 << 24


@final
@dataclass(frozen=True, eq=False)
class Weighting:
    """What a weighted sum takes of each parameter.

    weights  for each parameter, the weights of queries and records [Q, N]
    finite   the records that take part; None for all of them
    mask     the active coordinates
    is_last  whether nothing more is asked of the gradients: each may be let go of as soon as it is added
    """

    weights: Sequence[Tensor]
    finite: Tensor | None
    mask: Mask | None
    is_last: bool = False

    def add(self, index: int, own: Factors, total_Q: Tensor) -> None:
        """Add one parameter to the sums of all queries."""
        weights_QN = self.weights[index]
        if self.finite is None:
            own.add_weighted(weights_QN, total_Q)
        elif self.finite.numel():
            own.take(self.finite).add_weighted(weights_QN[:, self.finite], total_Q)


class Gradients(Protocol):
    """The per-record gradients of one micro-batch."""

    def norms(self, mask: Mask | None) -> list[Tensor | None]:
        """Upper bounds on the norms of each parameter's gradients, float64 [N]; None where no gradient came."""

    def add_weighted(self, weighting: Weighting, totals: Sequence[Tensor]) -> None:
        """Add the weighted sums to the totals of each parameter."""

    def factors(self) -> list[Factors | None]:
        """All factors side by side."""


@final
class KeptFactors:
    """Settles the parts of each parameter as factors, and keeps them."""

    def __init__(self, layout: Layout, room: GradientBuffer | None = None, units: UnitRows | None = None) -> None:
        self._layout, self._room = layout, room or GradientBuffer()
        self._buckets = [] if units is None else list(units.buckets())
        self._shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self._found: dict[str, Factors] = {}
        self._left, self._kept = limits.KEEP_IN_ALL, 0

    def settle(self, name: str, parts: list[Leaf]) -> None:
        if not self._buckets:
            self._found[name] = self._merged(name, name, parts)
            return
        members = []
        for size, start, stop in self._buckets:
            some = parts
            if len(self._buckets) > 1:
                some = [part.take(torch.arange(start, stop)) for part in parts]
            members.append(self._merged(name, f"{name}/{size}", [part.summed(size) for part in some]))
        self._found[name] = members[0] if len(members) == 1 else Joined(members)

    def _merged(self, name: str, place: str, parts: Sequence[Leaf]) -> Factors:
        found = merge(parts, self._shapes[name], self._left, partial(self._formed, place))
        if isinstance(found, (FormedGradients, FormedTwice)):  # both: what is summed in which way is one rule
            self._left -= found.records * math.prod(found.shape)
        return found

    def _formed(self, place: str, part: WriteOnce) -> Factors:
        size = part.records * math.prod(part.shape)
        if isinstance(part, Outer) and part.is_rather_made_twice and self._kept + size > KEEP_ANYWAY:
            return FormedTwice(part, self._room)
        self._kept += size
        return self._room.fill(place, part)

    @property
    def found(self) -> list[Factors | None]:
        """The factors of every parameter; None where no gradient came."""
        return [self._found.get(name) for name in self._layout.names]


@final
class KeptGradients:
    """Gradients of one backward pass."""

    def __init__(self, factors: list[Factors | None], layout: Layout) -> None:
        self._factors, self._layout = factors, layout
        self._restricted: tuple[Mask, list[Factors | None]] | None = None

    def norms(self, mask: Mask | None) -> list[Tensor | None]:
        return [None if own is None else own.norms for own in self._on(mask)]

    def add_weighted(self, weighting: Weighting, totals: Sequence[Tensor]) -> None:
        factors = self._on(weighting.mask)
        if weighting.is_last:
            self._factors, self._restricted = [], None  # `factors` alone holds them now
        for index, total_Q in enumerate(totals):
            own = factors[index]
            if weighting.is_last:
                factors[index] = None
            if own is not None:
                weighting.add(index, own, total_Q)

    def factors(self) -> list[Factors | None]:
        return self._factors

    def _on(self, mask: Mask | None) -> list[Factors | None]:
        """The factors on the active coordinates of one mask."""
        if mask is None:
            return self._factors
        if self._restricted is None:
            mask.check(self._layout)
            pairs = enumerate(self._factors)
            self._restricted = mask, [None if own is None else restrict(own, mask, i) for i, own in pairs]
        require(
            self._restricted[0] is mask,
            "one mask for a micro-batch",
            "another mask than before",
            "draw the mask once a step: a norm under one mask bounds nothing under another",
        )
        return self._restricted[1]


Pass = Callable[[Settle], None]
"""Runs the backward pass of the losses, and settles the parts of each parameter."""


@final
class RepeatedGradients:
    """Gradients of a backward pass that can run again. Where a method needs all at once, the second pass keeps them."""

    def __init__(self, run: Pass, layout: Layout) -> None:
        self._run, self._layout = run, layout
        self._shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self._measured: dict[str, tuple[Measured, Tensor]] = {}
        self._kept: KeptGradients | None = None
        run(self._measure)

    def norms(self, mask: Mask | None) -> list[Tensor | None]:
        if mask is not None or self._kept is not None:
            return self._all().norms(mask)
        known = [self._measured.get(name) for name in self._layout.names]
        return [None if one is None else one[0].norms for one in known]

    def add_weighted(self, weighting: Weighting, totals: Sequence[Tensor]) -> None:
        if self._kept is None:
            self._run(partial(self._sum, weighting, totals))
        else:
            self._kept.add_weighted(weighting, totals)

    def factors(self) -> list[Factors | None]:
        return self._all().factors()

    def _all(self) -> KeptGradients:
        if self._kept is None:
            kept = KeptFactors(self._layout)
            self._run(kept.settle)
            self._kept = KeptGradients(kept.found, self._layout)
        return self._kept

    def _measure(self, name: str, parts: list[Leaf]) -> None:
        part = joined(parts, self._shapes[name])
        if isinstance(part, FormedGradients):
            measured = Measured(part.norms, part.norms.new_empty(0, dtype=torch.int64))
        else:
            measured = BoundedFactors(part).measured
        self._measured[name] = measured, absolute_of(part)

    def _sum(self, weighting: Weighting, totals: Sequence[Tensor], name: str, parts: list[Leaf]) -> None:
        part, index = joined(parts, self._shapes[name]), self._layout.names.index(name)
        measured, sizes = self._measured[name]
        require(
            torch.equal(absolute_of(part).nan_to_num(), sizes.nan_to_num()),
            "a backward pass that computes the same gradients when it runs again",
            f"other gradients of {name}",
            "call torch.use_deterministic_algorithms(True), or turn activation checkpointing off",
        )
        own: Factors | None = part if isinstance(part, FormedGradients) else BoundedFactors(part, measured)
        if weighting.mask is not None and own is not None:
            weighting.mask.check(self._layout)
            own = restrict(own, weighting.mask, index)
        if own is not None:
            weighting.add(index, own, totals[index])


def fill_rows(
    factors: Sequence[Factors | None], rows: Sequence[Tensor], active: Sequence[Tensor | None], start: int
) -> None:
    """Write the gradients of as many records as there are rows, from record `start` on, parameter by parameter.

    active  the active coordinates of each parameter; None for all of them
    """
    for own, part, coordinates in zip(rows, factors, active, strict=True):
        if part is None:
            own.zero_()
        elif own.shape[1]:
            flat = part.instantiate(start, start + len(own)).reshape(len(own), -1)
            own.copy_(flat if coordinates is None else flat.index_select(1, coordinates))
