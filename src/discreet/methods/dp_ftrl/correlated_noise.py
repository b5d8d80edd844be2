"""Noise that is correlated between steps: later noise takes back a part of the earlier noise."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, final

from discreet.accounting.events import NonPrivate
from discreet.core import check
from discreet.stages.noise import Mechanism, check_sensitivity
from discreet.stages.participation import CyclicPoisson, Participation
from discreet.stages.values import BoundedSum, PrivateState, StepContext

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.accounting.correlated import Toeplitz
    from discreet.core.streams import Stream
    from discreet.stages.clipping import Query
    from discreet.stages.pipeline import Pipeline
    from discreet.stages.sampling import Horizon

HISTORY: Final = "correlated-noise.history"


class Strategy(enum.StrEnum):
    """How the matrix C of correlated noise is chosen."""

    IDENTITY = "identity"
    BSR = "bsr"
    BISR = "bisr"
    OPTIMISED = "optimised"


@final
@dataclass(frozen=True)
class Workload:
    """How the optimizer adds up gradients: theta <- (1 - shrinkage) theta - rate_t m, m <- momentum m + gradient.

    momentum   of SGD
    shrinkage  learning rate times weight decay
    last_rate  the learning rate of the last step relative to the first; it falls linearly
    """

    momentum: float = 0.0
    shrinkage: float = 0.0
    last_rate: float = 1.0

    def __post_init__(self) -> None:
        remedy = "use a number from 0 to below 1"
        check.not_negative(remedy, momentum=self.momentum, shrinkage=self.shrinkage)
        is_valid, got = max(self.momentum, self.shrinkage) < 1, f"{self.momentum} and {self.shrinkage}"
        check.require(is_valid, "momentum and shrinkage below 1", got, remedy)
        check.fraction("use 1 for a constant learning rate", last_rate=self.last_rate)


_PREFIX_SUMS: Final = Workload()


@final
@dataclass(frozen=True)
class CorrelatedNoise(Mechanism):
    """Releases sum + noise * sensitivity * (C^-1 z)_t, with z standard normal and C lower-triangular Toeplitz.

    coefficients  the first column of C or, if `inverse`, that of C^-1; it has as many bands as there are coefficients

    The noise of the last bands - 1 steps stays in memory, hidden. Every step of the run draws its own z, whether it is
    released or not, from a sub-stream that is used once.

    Guarantee: all releases of a run together are post-processing of one Gaussian release of C x. A single step has no
    price of its own: `event` returns NonPrivate, and `CorrelatedAnalysis` charges the run as a whole.
    """

    remembers: ClassVar[bool] = True
    coefficients: tuple[float, ...]
    inverse: bool = False

    def __post_init__(self) -> None:
        remedy = "give the first column of the matrix, as a tuple of numbers (tensor.tolist() for a tensor)"
        object.__setattr__(self, "coefficients", check.numbers(remedy, coefficients=self.coefficients))

    @property
    def matrix(self) -> Toeplitz:
        from discreet.accounting.correlated import Toeplitz

        return Toeplitz(self.coefficients, self.inverse)

    def event(self, queries: Sequence[Query], noise: float) -> NonPrivate:
        return NonPrivate()

    def fits(self, stages: Pipeline) -> None:
        _fits(stages)

    def recall(self, drawn: Iterable[Stream], size: int, step: int) -> dict[str, PrivateState]:
        """The history before `step`, by drawing the noise of the steps before it again."""
        # If C^-1 is banded, older noise has no effect any more.
        kept = deque(drawn, maxlen=len(self.coefficients) - 1) if self.inverse else drawn
        history = _History(self.matrix, size)
        for stream in kept:
            history.advance(stream)
        history.next = step
        return {HISTORY: PrivateState(history)}

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> list[Tensor]:
        got = f"{len(sums)} sums" if context.mask is None else "a mask"
        remedy = "use a bounder with one query, and no selection: correlated noise is proven for them only"
        check.require(len(sums) == 1 and context.mask is None, "one sum of all coordinates", got, remedy)
        (total,), (query,) = sums, queries
        check_sensitivity(total, query)
        drawn = self._history(context).at(context.step, context.streams.noise)
        value = total.value
        value.copy_(value.double().add_(drawn.to(value.device), alpha=query.std(noise)))  # rounded once
        return [value]

    def _history(self, context: StepContext) -> _History:
        held = context.secrets.get(HISTORY)
        if held is None:
            remedy = "resume from a checkpoint with the run's ledger: a new factorisation must be charged"
            check.require(context.step == 0, "the noise of earlier steps", f"none at step {context.step}", remedy)
            held = context.secrets[HISTORY] = PrivateState(_History(self.matrix, context.layout.size))
        history: _History = held.reveal_to_mechanism()
        return history


def _fits(stages: Pipeline) -> None:
    one = len(stages.queries(1.0)) == 1 and stages.selection.takes_all
    expected, got = (
        "one query on all coordinates",
        f"{type(stages.bounder).__name__}, {type(stages.selection).__name__}",
    )
    remedy = "use a bounder with one query, and no selection: correlated noise is proven for them only"
    check.require(one, expected, got, remedy)


@final
class _History:
    """The last vectors of noise, newest first: of C^-1 z if C is banded, of z if C^-1 is."""

    def __init__(self, matrix: Toeplitz, size: int) -> None:
        self._matrix, self._size, self.next = matrix, size, 0  # the step of the next noise
        self._past: deque[Tensor] = deque(maxlen=len(matrix.coefficients) - 1)

    def at(self, step: int, stream: Stream) -> Tensor:
        """The noise of `step`. Steps that were left out since the last call have noise too, which nobody sees."""
        remedy = "take the steps in order: noise that was used once must not be used again"
        check.require(step >= self.next, f"step {self.next} or a later one", f"step {step}", remedy)
        while self.next < step:
            self.advance(stream.at(self.next))
        return self.advance(stream.at(step))

    def advance(self, stream: Stream) -> Tensor:
        """The noise of the next step, from its own stream."""
        import torch

        first, *others = self._matrix.coefficients
        noise = fresh = stream.normal(self._size, dtype=torch.float64)
        if self._matrix.inverse:
            noise = first * fresh
        for weight, past in zip(others, self._past, strict=False):
            noise.add_(past, alpha=weight if self._matrix.inverse else -weight)
        if not self._matrix.inverse:
            noise.div_(first)
        # Rounding the noise itself would show in later releases; rounding z only changes its law a little.
        self._past.appendleft(fresh.float() if self._matrix.inverse else noise.clone())
        self.next += 1
        return noise


@final
@dataclass(frozen=True)
class Factorisation(Mechanism):
    """Correlated noise whose coefficients are chosen when a plan is built, because they depend on the run.

    bands     the most bands; with cyclic Poisson sampling also at most records / batch
    workload  the optimizer that `optimised` coefficients are for
    """

    remembers: ClassVar[bool] = True
    strategy: Strategy
    bands: int
    workload: Workload = _PREFIX_SUMS

    def __post_init__(self) -> None:
        check.count("use at least one band; one band is independent noise", bands=self.bands)
        is_known, remedy = isinstance(self.strategy, Strategy), "use Strategy.BISR, for example"
        check.require(is_known, "a member of Strategy", repr(self.strategy), remedy)

    def event(self, queries: Sequence[Query], noise: float) -> NonPrivate:
        return NonPrivate()

    def fits(self, stages: Pipeline) -> None:
        _fits(stages)
        sampler, expected = stages.sampling, "a sampler for correlated noise, which the coefficients are chosen for"
        remedy = "use FixedBins, CyclicPoisson, FixedOrder, Reshuffled or OnePass"
        check.require(isinstance(sampler, Participation), expected, type(sampler).__name__, remedy)

    def fitted(self, stages: Pipeline, horizon: Horizon) -> Mapping[str, Any]:
        sampling = stages.sampling
        assert isinstance(sampling, Participation)  # `fits` has checked it
        bands = min(self.bands, horizon.steps)
        if not isinstance(sampling, CyclicPoisson):
            return {"mechanism": self._chosen(bands, sampling, horizon)}
        bands = max(1, min(bands, int(1 / horizon.rate * (1 + 1e-9))))
        parts = sampling.parts or bands
        mechanism = self._chosen(min(bands, parts), sampling, horizon)
        return {"mechanism": mechanism, "sampling": replace(sampling, parts=parts)}

    def _chosen(self, bands: int, sampling: Participation, horizon: Horizon) -> CorrelatedNoise:
        from discreet.accounting.correlated import bisr, bsr
        from discreet.methods.dp_ftrl.optimised import optimised

        if self.strategy is Strategy.IDENTITY or bands == 1:
            return CorrelatedNoise((1.0,))
        if self.strategy is Strategy.BISR:
            return CorrelatedNoise(bisr(bands), inverse=True)
        if self.strategy is Strategy.BSR:
            return CorrelatedNoise(bsr(bands))
        worst = tuple(sampling.worst(horizon))
        return CorrelatedNoise(optimised(bands, horizon.steps, worst, self.workload))

    def release(
        self, sums: Sequence[BoundedSum], queries: Sequence[Query], noise: float, context: StepContext
    ) -> NoReturn:
        check.refuse("a plan, which has coefficients", "a recipe's mechanism", "build the plan with recipe.for_budget")
