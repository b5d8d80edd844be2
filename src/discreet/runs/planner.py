"""What a user asks before training: the noise for a budget, by method, by sampler and by batch. Public numbers only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

from discreet.core import check
from discreet.core.plain import digest, plain
from discreet.methods import METHODS, Method
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe
from discreet.stages.sampling import (
    BallsInBins,
    FixedSize,
    FullBatch,
    Horizon,
    OwnLoader,
    Poisson,
    Sampling,
    TruncatedPoisson,
)

Listener = Callable[[str, int, int], None]
"""Told what is priced now, how much is done, and of how much."""

CURVE = (0.6, 0.75, 1.5, 2.0, 3.0, 4.0)
"""Multiples of the calibrated noise at which the curve is priced."""
PATIENCE = 5.0
"""Seconds for the samplers of one method, and for its curve; what would come later is left out, and says so."""
FEW = 3
"""Different steps of a run that are priced quickly under every sampler."""
WIDE_CAP = 6.0
"""Deviations above the expected batch at which truncated Poisson batches are cut."""
NEARLY = 1.25
"""How far above the least noise over the whole run a batch may be and still be called sensible."""


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """The public numbers of a run that is being thought about."""

    records: int
    batch: int
    epochs: int
    epsilon: float
    delta: float
    methods: tuple[str, ...] = tuple(METHODS)

    def __post_init__(self) -> None:
        self.horizon(self.batch)
        check.positive("the budget of the whole run, e.g. 3", epsilon=self.epsilon)
        check.inside_unit("delta is far below 1/records, e.g. 1e-5", delta=self.delta)
        unknown = [name for name in self.methods if name not in METHODS]
        check.require(
            bool(self.methods) and not unknown,
            f"methods of {', '.join(METHODS)}",
            ", ".join(unknown) or "none",
            "`discreet methods` describes them",
        )

    def horizon(self, batch: float) -> Horizon:
        """The run with another batch and the same number of epochs."""
        return Horizon.of(records=self.records, batch=batch, epochs=self.epochs)


@final
@dataclass(frozen=True, kw_only=True)
class Price:
    """The noise that the budget asks for, or why there is none.

    effective  noise / batch: the deviation on the mean gradient, in units of the clip
    steps      of the run that it is for
    """

    noise: float | None = None
    effective: float | None = None
    steps: int | None = None
    relation: str = ""
    why: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class MethodPrice:
    """A method under the sampler of its own, the curve (epsilon, noise), and its price under each other sampler."""

    name: str
    certified: bool
    price: Price
    curve: tuple[tuple[float, float], ...]
    samplers: tuple[tuple[str, Price], ...]


@final
@dataclass(frozen=True, kw_only=True)
class BatchPrice:
    """One batch size at the same number of epochs.

    path  noise / (batch sqrt(steps)): the deviation on the mean of all gradients of the run
    """

    batch: int
    steps: int
    noise: float
    effective: float
    path: float


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything priced."""

    question: Question
    methods: tuple[MethodPrice, ...]
    batches: tuple[BatchPrice, ...]

    @property
    def quietest(self) -> BatchPrice:
        """The batch with the least noise on the mean gradient of a step."""
        return min(self.batches, key=lambda at: at.effective)

    @property
    def sensible(self) -> BatchPrice:
        """A rule of thumb: the smallest batch within a quarter of the least noise over the whole run."""
        least = min(at.path for at in self.batches)
        return next(at for at in self.batches if at.path <= NEARLY * least)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        answers = {"quietest_batch": self.quietest.batch, "sensible_batch": self.sensible.batch}
        return {**plain(self), **answers}


class Sampler(Protocol):
    """A sampling stage for a batch size."""

    def __call__(self, batch: int) -> Sampling: ...


SAMPLERS: dict[str, Sampler] = {
    "poisson": lambda batch: Poisson(),
    "balls-in-bins": lambda batch: BallsInBins(),
    "full-batch": lambda batch: FullBatch(),
    "own-loader": lambda batch: OwnLoader(),
    "truncated-poisson": lambda batch: TruncatedPoisson(batch + math.ceil(WIDE_CAP * math.sqrt(batch))),
    "fixed-size": lambda batch: FixedSize(),
}
"""The quickest to price first."""

_LATE = "not priced: it takes long; ask `discreet calibrate` with --sampling"


def answer(question: Question, listener: Listener | None = None) -> Answer:
    """Price every method, sampler and batch; equal charges are priced once.

    Guarantee: every noise is certified to stay within the budget.
    """
    return _Desk(question, listener or (lambda label, done, total: None)).answer()


@final
class _Desk:
    """Prices plans and remembers what it priced, by their charge at noise 1."""

    def __init__(self, question: Question, listener: Listener) -> None:
        self._of, self._listener = question, listener
        self._known: dict[str, Price] = {}
        self._curves: dict[str, tuple[tuple[float, float], ...]] = {}
        self._batches = _grid(question)
        self._total = len(question.methods) + len(self._batches)
        self._done = 0

    def answer(self) -> Answer:
        methods = tuple(self._method(METHODS[name]) for name in self._of.methods)
        first = next((m.name for m in methods if m.certified and m.price.noise is not None), None)
        check.require(
            first is not None,
            "a method with a certificate for these numbers",
            "; ".join(dict.fromkeys(method.price.why for method in methods)),
            "choose other methods or numbers",
        )
        assert first is not None
        recipe = METHODS[first].recipe()
        batches = tuple(found for batch in self._batches if (found := self._batch(recipe, batch)))
        return Answer(question=self._of, methods=methods, batches=batches)

    def _method(self, method: Method) -> MethodPrice:
        self._tell(method.name)
        nothing = ((), ())
        if not method.certified:
            price = Price(why=f"nothing is proven: {method.guarantee}")
            return _row(method, price, *nothing)
        try:
            recipe = method.recipe()
        except (check.Refused, TypeError) as error:  # a recipe without defaults for everything
            return _row(method, Price(why=str(error)), *nothing)
        own = self._price(recipe, self._of.batch)
        curve = self._curve(recipe) if own.noise is not None else ()
        return _row(method, own, curve, self._samplers(recipe))

    def _samplers(self, recipe: Recipe) -> tuple[tuple[str, Price], ...]:
        """Each sampler, until patience ends."""
        started, found = time.perf_counter(), []
        for name in SAMPLERS:
            late = time.perf_counter() - started > PATIENCE
            found.append((name, Price(why=_LATE) if late else self._sampled(recipe, name)))
        return tuple(found)

    def _sampled(self, recipe: Recipe, name: str) -> Price:
        batch = self._of.records if name == "full-batch" else self._of.batch
        sampling = SAMPLERS[name](batch)
        try:
            drawn = recipe.using(sampling=sampling, relation=sampling.relations[0])
            pieces = len(
                drawn.bind(noise=1.0, horizon=self._of.horizon(batch), delta=self._of.delta)
                .charge()
                .certified
            )
        except check.Refused as error:
            return Price(why=str(error))
        if name == "fixed-size" and pieces > FEW:  # each piece is a mixture of its own, at seconds apiece
            return Price(why=_LATE)
        return self._price(drawn, batch)

    def _price(self, recipe: Recipe, batch: int) -> Price:
        """The least noise for the budget; a plan that cannot be priced says why."""
        horizon = self._of.horizon(batch)
        try:
            unit = digest(
                (
                    recipe.relation,
                    recipe.bind(noise=1.0, horizon=horizon, delta=self._of.delta).charge().certified,
                )
            )
            if unit not in self._known:
                bound = recipe.for_horizon(epsilon=self._of.epsilon, delta=self._of.delta, horizon=horizon)
                self._known[unit] = _priced(bound)
        except check.Refused as error:
            return Price(why=str(error))
        return self._known[unit]

    def _curve(self, recipe: Recipe) -> tuple[tuple[float, float], ...]:
        """(epsilon, noise) around the budget, as many points as there is patience for."""
        horizon, delta = self._of.horizon(self._of.batch), self._of.delta
        unit = digest(recipe.bind(noise=1.0, horizon=horizon, delta=delta).charge().certified)
        if unit not in self._curves:
            noise = self._price(recipe, self._of.batch).noise
            assert noise is not None
            started, points = time.perf_counter(), [(self._of.epsilon, noise)]
            for factor in CURVE:
                bound = recipe.bind(noise=noise * factor, horizon=horizon, delta=delta)
                points.append((bound.certificate().epsilon, noise * factor))
                if time.perf_counter() - started > PATIENCE:
                    break
            self._curves[unit] = tuple(sorted(point for point in points if math.isfinite(point[0])))
        return self._curves[unit]

    def _batch(self, recipe: Recipe, batch: int) -> BatchPrice | None:
        self._tell(f"batch {batch}")
        price = self._price(recipe, batch)
        if price.noise is None or price.steps is None or price.effective is None:
            return None
        path = price.effective / math.sqrt(price.steps)
        return BatchPrice(
            batch=batch, steps=price.steps, noise=price.noise, effective=price.effective, path=path
        )

    def _tell(self, label: str) -> None:
        self._listener(label, self._done, self._total)
        self._done += 1


def _row(
    method: Method,
    price: Price,
    curve: tuple[tuple[float, float], ...],
    samplers: tuple[tuple[str, Price], ...],
) -> MethodPrice:
    return MethodPrice(
        name=method.name, certified=method.certified, price=price, curve=curve, samplers=samplers
    )


def _priced(plan: Plan) -> Price:
    horizon = plan.horizon
    return Price(
        noise=plan.noise,
        effective=plan.noise / horizon.size.batch,
        steps=horizon.steps,
        relation=str(plan.relation),
    )


def _grid(question: Question) -> tuple[int, ...]:
    """Powers of two from 64, the batch itself, and all records.

    >>> _grid(Question(records=1000, batch=100, epochs=2, epsilon=3.0, delta=1e-5))
    (64, 100, 128, 256, 512, 1000)
    """
    powers = (2**k for k in range(6, question.records.bit_length()))
    return tuple(sorted({question.batch, question.records, *(p for p in powers if p < question.records)}))
