"""The noise that a budget needs, by method, sampler and batch size, from public numbers only."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from discreet.accounting.charges import Counted
from discreet.core import check
from discreet.core.plain import digest, plain
from discreet.methods import METHODS, Method
from discreet.runs.config import CAPPED, sampler_of
from discreet.runs.planning.own_loader import LoaderPrice, loader_prices
from discreet.stages.delta import check_delta
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Horizon

Curve = tuple[tuple[float, float], ...]  # (epsilon, noise) in order of epsilon

Listener = Callable[[str, int, int], None]  # receives what is being priced, how much is done, and the total

CURVE = (0.6, 0.75, 1.5, 2.0, 3.0, 4.0)  # multiples of the calibrated noise at which the curve is priced
PATIENCE = 5.0
"""Processor seconds for the samplers of one method, and for its curve; what takes longer is left out with a reason."""
FEW = 3  # different steps of a run that are priced quickly under every sampler
WIDE_CAP = 6.0  # deviations above the expected batch at which truncated Poisson batches are cut
NEARLY = 1.25  # a batch is sensible if its noise over the whole run is at most this many times the least one


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """The public numbers of a planned run."""

    records: int
    batch: int
    epochs: int
    epsilon: float
    delta: float
    methods: tuple[str, ...] = tuple(METHODS)
    accept_large_delta: bool = False

    def __post_init__(self) -> None:
        self.horizon(self.batch)
        check.positive("the budget of the whole run, e.g. 3", epsilon=self.epsilon)
        check_delta(self.delta, self.records, accepted=self.accept_large_delta)
        unknown = [name for name in self.methods if name not in METHODS]
        got, is_valid = ", ".join(unknown) or "none", bool(self.methods) and not unknown
        check.require(is_valid, f"methods of {', '.join(METHODS)}", got, "`discreet methods` describes them")

    def horizon(self, batch: float) -> Horizon:
        """The run with another batch and the same number of epochs."""
        return Horizon.of(records=self.records, batch=batch, epochs=self.epochs)

    def bind(self, recipe: Recipe, *, noise: float, batch: int) -> Plan:
        horizon, accepted = self.horizon(batch), self.accept_large_delta
        return recipe.bind(noise=noise, horizon=horizon, delta=self.delta, accept_large_delta=accepted)


@final
@dataclass(frozen=True, kw_only=True)
class Price:
    """The noise that the budget needs, or why there is none.

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
    """A method under its own sampler, its curve, and its price under each other sampler."""

    name: str
    certified: bool
    price: Price
    curve: Curve = ()
    samplers: tuple[tuple[str, Price], ...] = ()


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
    question: Question
    methods: tuple[MethodPrice, ...]
    batches: tuple[BatchPrice, ...]
    loaders: tuple[LoaderPrice, ...] = ()

    @property
    def quietest(self) -> BatchPrice:
        """The batch with the least noise on the mean gradient of a step."""
        return min(self.batches, key=lambda at: at.effective)

    @property
    def sensible(self) -> BatchPrice:
        """A rule of thumb: the smallest batch whose noise over the whole run is within 25 % of the least."""
        least = min(at.path for at in self.batches)
        return next(at for at in self.batches if at.path <= NEARLY * least)

    def to_json(self) -> dict[str, Any]:
        return {**plain(self), "quietest_batch": self.quietest.batch, "sensible_batch": self.sensible.batch}


PRICED = ("poisson", "balls-in-bins", "full-batch", "own-loader", "truncated-poisson", "fixed-size")
"""The samplers that are priced; the quickest to price first."""

RETURNING = ("fixed-bins", "cyclic-poisson", "fixed-order", "reshuffled", "one-pass")
"""The same for correlated noise, whose price depends on how a record comes back."""

_LATE = "not computed: it takes long; run `discreet calibrate` with --sampling"


def epsilon_curve(plan: Plan, points: int = 16) -> tuple[tuple[int, float], ...]:
    """The certified epsilon after evenly spaced numbers of steps, up to the whole run."""
    steps = plan.horizon.steps
    stops = sorted({max(1, round(steps * k / points)) for k in range(1, points + 1)})
    return tuple((stop, plan.certificate(stop).epsilon) for stop in stops)


def answer(question: Question, listener: Listener | None = None) -> Answer:
    """Price every method, sampler and batch; equal charges are priced once.

    Guarantee: every noise is certified to stay within the budget.
    """
    return _Pricing(question, listener or (lambda label, done, total: None)).answer()


@final
class _Pricing:
    """Prices plans, and caches prices by the charge at noise 1."""

    def __init__(self, question: Question, listener: Listener) -> None:
        self._of, self._listener = question, listener
        self._known: dict[str, Price] = {}
        self._curves: dict[str, Curve] = {}
        self._batches = _grid(question)
        self._done = 0

    def answer(self) -> Answer:
        methods = tuple(self._method(METHODS[name]) for name in self._of.methods)
        first = next((m.name for m in methods if m.certified and m.price.noise is not None), None)
        if first is None:
            reasons = "; ".join(dict.fromkeys(method.price.why for method in methods))
            check.refuse("a method with a certificate for these numbers", reasons, "choose other methods or numbers")
        recipe = METHODS[first].recipe()
        batches = tuple(found for batch in self._batches if (found := self._batch(recipe, batch)))
        of = self._of
        loaders = loader_prices(
            of.horizon(of.batch), epsilon=of.epsilon, delta=of.delta, accept_large_delta=of.accept_large_delta
        )
        return Answer(question=of, methods=methods, batches=batches, loaders=loaders)

    def _method(self, method: Method) -> MethodPrice:
        self._tell(method.name)
        row = partial(MethodPrice, name=method.name, certified=method.certified)
        if not method.certified:
            return row(price=Price(why=f"nothing is proven: {method.guarantee}"))
        try:
            recipe = method.recipe()
        except (check.Refused, TypeError) as error:  # a recipe without defaults for everything
            return row(price=Price(why=str(error)))
        own = self._price(recipe, self._of.batch)
        curve = self._curve(recipe) if own.noise is not None else ()
        return row(price=own, curve=curve, samplers=self._samplers(recipe))

    def _samplers(self, recipe: Recipe) -> tuple[tuple[str, Price], ...]:
        end = time.process_time() + PATIENCE
        late = Price(why=_LATE)
        names = RETURNING if recipe.mechanism.remembers else PRICED
        return tuple((name, late if time.process_time() > end else self._sampled(recipe, name)) for name in names)

    def _sampled(self, recipe: Recipe, name: str) -> Price:
        batch = self._of.records if name == "full-batch" else self._of.batch
        cap = batch + math.ceil(WIDE_CAP * math.sqrt(batch)) if name == CAPPED else None
        sampling = sampler_of(name, cap)
        try:
            drawn = recipe.using(sampling=sampling, relation=sampling.relations[0])
            pieces = len(self._unit_charge(drawn, batch))
        except check.Refused as error:
            return Price(why=str(error))
        if name == "fixed-size" and pieces > FEW:  # each piece is a mixture of its own, at seconds apiece
            return Price(why=_LATE)
        return self._price(drawn, batch)

    def _price(self, recipe: Recipe, batch: int) -> Price:
        """The least noise for the budget, or why the plan cannot be priced."""
        try:
            unit = digest((recipe.relation, self._unit_charge(recipe, batch)))
            if unit not in self._known:
                of, horizon = self._of, self._of.horizon(batch)
                noise = recipe.for_horizon(
                    epsilon=of.epsilon, delta=of.delta, horizon=horizon, accept_large_delta=of.accept_large_delta
                ).noise
                effective, relation = noise / horizon.size.batch, str(recipe.relation)
                self._known[unit] = Price(noise=noise, effective=effective, steps=horizon.steps, relation=relation)
        except check.Refused as error:
            return Price(why=str(error))
        return self._known[unit]

    def _unit_charge(self, recipe: Recipe, batch: int) -> Counted:
        """What the run costs at noise 1: plans of equal cost are priced once."""
        return self._of.bind(recipe, noise=1.0, batch=batch).charge().certified

    def _curve(self, recipe: Recipe) -> Curve:
        """(epsilon, noise) around the budget, as many points as the time limit allows."""
        unit = digest(self._unit_charge(recipe, self._of.batch))
        if unit not in self._curves:
            noise = self._price(recipe, self._of.batch).noise
            assert noise is not None
            started, points = time.process_time(), [(self._of.epsilon, noise)]
            for factor in CURVE:
                bound = self._of.bind(recipe, noise=noise * factor, batch=self._of.batch)
                points.append((bound.certificate().epsilon, noise * factor))
                if time.process_time() - started > PATIENCE:
                    break
            self._curves[unit] = tuple(sorted(point for point in points if math.isfinite(point[0])))
        return self._curves[unit]

    def _batch(self, recipe: Recipe, batch: int) -> BatchPrice | None:
        self._tell(f"batch {batch}")
        price = self._price(recipe, batch)
        if price.noise is None or price.steps is None or price.effective is None:
            return None
        path = price.effective / math.sqrt(price.steps)
        return BatchPrice(batch=batch, steps=price.steps, noise=price.noise, effective=price.effective, path=path)

    def _tell(self, label: str) -> None:
        self._listener(label, self._done, len(self._of.methods) + len(self._batches))
        self._done += 1


def _grid(question: Question) -> tuple[int, ...]:
    """Powers of two from 64, the batch itself, and all records.

    >>> _grid(Question(records=1000, batch=100, epochs=2, epsilon=3.0, delta=1e-5))
    (64, 100, 128, 256, 512, 1000)
    """
    powers = (2**k for k in range(6, question.records.bit_length()))
    return tuple(sorted({question.batch, question.records, *(p for p in powers if p < question.records)}))
