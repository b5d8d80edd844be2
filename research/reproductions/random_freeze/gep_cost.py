"""What gradient embedding perturbation costs on active coordinates: time, memory and bytes against the density.

The paper's Section 4: the power method and the projections cost between O(1 - r) and O((1 - r)^3) of their time without
freezing, memory and communication O(1 - r).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from discreet.core.streams import Streams
from discreet.engine.layout import Layout
from discreet.methods.gep.subspace import Basis, BasisLearning, Subspace
from discreet.methods.random_freeze.selection import RandomFreeze
from discreet.stages.values import Released, StepContext
from research.benchmarks import release_bytes
from research.reproductions.bench import Bench
from research.reproductions.experiment import Curve, Figure

DENSITIES: Final = (1.0, 0.8, 0.6, 0.4)
RECORDS: Final = 256
ROUNDS: Final = 5


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """Shares of the cost on all coordinates, for each of DENSITIES.

    power, projection  processor time of a new basis, and of embeddings and residuals
    basis              memory of the basis vectors
    release            bytes of a serialised release, the key of its mask included
    """

    power: tuple[float, ...]
    projection: tuple[float, ...]
    basis: tuple[float, ...]
    release: tuple[float, ...]

    @property
    def is_fast(self) -> bool:
        """Whether both products take at most 1 - 0.7 (1 - density) of their time, where freezing is substantial."""
        pairs = zip(DENSITIES, self.power, self.projection, strict=True)
        return all(max(times) <= _bar(density) for density, *times in pairs if density <= 0.6)

    @property
    def told(self) -> str:
        power, projection, basis, release = (
            f"{100 * one[-1]:.0f} %" for one in (self.power, self.projection, self.basis, self.release)
        )
        return (
            f"At density {DENSITIES[-1]:g} power method and projection take {power} and {projection} of their time "
            f"without freezing, the basis {basis} of its memory, and a release {release} of its bytes."
        )

    @property
    def figures(self) -> tuple[Figure, ...]:
        bar = Curve(name="1 - 0.7 (1 - density)", x=DENSITIES, y=tuple(map(_bar, DENSITIES)))
        even = Curve(name="density", x=DENSITIES, y=DENSITIES)
        return (
            _figure("time", "time", {"power method": self.power, "projection": self.projection}, bar),
            _figure("size", "memory and bytes", {"basis vectors": self.basis, "release": self.release}, even),
        )


def measured(bench: Bench, *, rank: float) -> Cost:
    """The cost on a network of 100,000 parameters (quick: 20,000); kept on disk."""
    size = 20_000 if bench.quick else 100_000
    kept = bench.remember({"gep-cost": size, "rank": rank}, lambda: _shares(size, rank))
    return Cost(**{name: tuple(values) for name, values in kept.items()})


def _bar(density: float) -> float:
    return 1 - 0.7 * (1 - density)


def _figure(name: str, what: str, shares: dict[str, tuple[float, ...]], beside: Curve) -> Figure:
    curves = tuple(Curve(name=one, x=DENSITIES, y=values) for one, values in shares.items())
    title = f"{what} on active coordinates, relative to all"
    return Figure(name=name, title=title, x_label="density", y_label=what, curves=(*curves, beside))


def _shares(size: int, rank: float) -> dict[str, list[float]]:
    products = [_Products(round(density * size), rank) for density in DENSITIES]
    power, projection = [[0.0] * len(products) for _ in range(2)]
    for _ in range(ROUNDS):  # in turns, so that other work on the machine slows all densities equally
        for place, one in enumerate(products):
            power[place] += _seconds(one.learn)
            projection[place] += _seconds(one.project)
    costs = {
        "power": power,
        "projection": projection,
        "basis": [float(one.basis_bytes) for one in products],
        "release": [float(_release_bytes(size, density)) for density in DENSITIES],
    }
    return {name: [value / values[0] for value in values] for name, values in costs.items()}


class _Products:
    """A basis from RECORDS gradients with `size` coordinates, and the embeddings of others."""

    def __init__(self, size: int, rank: float) -> None:
        self._subspace = Subspace(rank=rank)
        self._context = _context(size)
        self._rows = torch.randn(RECORDS, size, generator=torch.Generator().manual_seed(0))
        self.learn()  # later bases continue from this one
        self.basis_bytes = sum(part.nbytes for part in self._basis.parts)

    @property
    def _basis(self) -> Basis:
        return Basis.within(self._context.memory)

    def learn(self) -> None:
        learning = BasisLearning(self._subspace, self._context)
        learning.add(self._rows)
        learning.finish()

    def project(self) -> Tensor:
        return self._basis.split_(self._rows, keep_residual=True)


def _release_bytes(size: int, density: float) -> int:
    context = _context(size)
    mask = RandomFreeze(final_rate=1 - density, cooling_epochs=1).mask(context) if density < 1 else None
    noisy = torch.zeros(round(density * size))
    return len(release_bytes.to_bytes(Released.on(mask, noisy, context.layout, context.batch)))


def _context(size: int) -> StepContext:
    layout = Layout(("w",), ((size,),))
    return StepContext(step=0, steps_per_epoch=1, batch=1.0, layout=layout, streams=Streams.seeded(0))


def _seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
