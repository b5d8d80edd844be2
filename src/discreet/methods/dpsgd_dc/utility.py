"""Training in a bounded domain: the paper's utility bounds, settings they propose, and when a certificate stands still.

The utility results of DPSGD-DC (arXiv 2502.17772) are orders of magnitude: every constant here is 1, so compare
settings with them and do not read them as accuracies. They assume, besides a budget:

* `gradient_deviation` bounds the standard deviation of a record's gradient around the mean one (Assumption 3.6);
* the risk is L-smooth (`smoothness`), for the bounded domain also mu-strongly convex (`strong_convexity`), and its
  minimum lies inside the domain (Theorem 3.10);
* the learning rate is at most 1/(9L) (Lemma 3.7), in the bounded domain 9/(20L);
* noise by the strengthened Theorems 3.3 and 3.4 (batch <= n/5, large noise, small orders), which are claims.

Guesses about data are made on public data, or they cost privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from discreet.accounting import last_iterate
from discreet.accounting.events import Gaussian, LastIterateRun, units
from discreet.core import check
from discreet.stages.plan import Plan


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """A budget and what is known of the task; all numbers are public."""

    epsilon: float
    delta: float
    records: int
    batch: int
    dimensions: int
    smoothness: float
    gradient_deviation: float

    def __post_init__(self) -> None:
        check.positive("the budget", epsilon=self.epsilon)
        check.inside_unit("delta is far below 1/records, e.g. 1e-5", delta=self.delta)
        check.count("public sizes", records=self.records, batch=self.batch, dimensions=self.dimensions)
        check.positive("bounds on the risk's curvature and spread", smoothness=self.smoothness)
        check.positive(
            "bounds on the risk's curvature and spread", gradient_deviation=self.gradient_deviation
        )

    @property
    def price(self) -> float:
        """d L ln(1/delta) / (epsilon n)^2: what privacy costs at least, by these bounds."""
        return self._weight / (self.epsilon * self.records) ** 2

    @property
    def _weight(self) -> float:
        return self.dimensions * self.smoothness * math.log(1 / self.delta)


@final
@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Settings up to constants.

    utility       the order of the bound that they reach, squared as in the paper
    few_records   whether privacy rather than the spread of gradients decides (the paper's case 1)
    paper_steps   T as the paper prints it (Eqs. 88, 92, 100, 102); `steps` is its rule, with the learning rate held to
                  the size that its theorem allows
    """

    steps: int
    clip: float
    learning_rate: float
    utility: float
    few_records: bool
    paper_steps: float


def propose(of: Problem) -> Proposal:
    """T, C and eta for DPSGD-GC: Proposition 3.8 minimised (Eqs. 85 to 93).

    >>> task = Problem(
    ...     epsilon=2.0, delta=1e-5, records=50_000, batch=500, dimensions=1000, smoothness=1.0, gradient_deviation=1.0
    ... )
    >>> found = propose(task)
    >>> found.few_records, round(found.paper_steps, 2)
    (False, 18.21)
    """
    spread, size = of.gradient_deviation, of.epsilon * of.records
    few = of.price >= spread**2
    if few:
        clip, rate, utility = math.sqrt(of.price), of.batch / of.smoothness, of.price
        printed = size**2 / (of.batch * of.dimensions * math.log(1 / of.delta))  # Eq. 88
    else:
        clip = spread ** (4 / 3) * size ** (1 / 3) / of._weight ** (1 / 6)
        rate = of.batch / (of.smoothness * spread ** (2 / 3)) * of.price ** (1 / 3)  # Eq. 91
        utility = spread ** (4 / 3) * of.price ** (1 / 3)
        printed = (
            size ** (4 / 3) * of.smoothness / (of.batch * of._weight ** (2 / 3) * spread ** (2 / 3))
        )  # Eq. 92
    rate = min(rate, 1 / (9 * of.smoothness))
    steps = size / (rate * clip * math.sqrt(of._weight))
    return Proposal(
        steps=max(1, round(steps)),
        clip=clip,
        learning_rate=rate,
        utility=utility,
        few_records=few,
        paper_steps=printed,
    )


def propose_bounded(of: Problem, *, diameter: float, strong_convexity: float) -> Proposal:
    """T, C and eta for DPSGD-DC: Proposition 3.12 minimised, before the privacy bound stands still (Eqs. 98 to 102).

    Take the smallest domain that surely holds the minimum: utility and privacy both gain (Remark 3.13). The printed
    Eq. 100 lacks 1/(d L), and Eq. 102 has other exponents than its own rule gives: compare `steps`.
    """
    check.positive("the domain's diameter", diameter=diameter)
    check.positive("the risk is mu-strongly convex", strong_convexity=strong_convexity)
    spread, size, mu, smooth = of.gradient_deviation, of.epsilon * of.records, strong_convexity, of.smoothness
    log = math.log(1 / of.delta)
    stiff = smooth**1.5 / mu**2.5
    few = diameter**2 * of.price >= stiff * spread**2
    if few:
        clip = diameter * smooth * math.sqrt(of.dimensions * log) / size
        rate, utility = of.batch * stiff, diameter**2 * of.price
        printed = size**2 / (of.batch * stiff * log)  # Eq. 100
    else:
        clip = spread**1.5 * math.sqrt(size / (mu * diameter)) / of._weight**0.25
        rate = of.batch * math.sqrt(diameter / (mu * spread)) * of.price ** (1 / 3)
        utility = spread**1.5 * math.sqrt(diameter / mu) * of.price**0.25
        printed = size ** (7 / 6) * mu * diameter / (of.batch * of._weight ** (2 / 3) * spread)  # Eq. 102
    rate = min(rate, 9 / (20 * smooth))
    steps = size * diameter / (rate * clip * math.sqrt(of.dimensions * log))
    return Proposal(
        steps=max(1, round(steps)),
        clip=clip,
        learning_rate=rate,
        utility=utility,
        few_records=few,
        paper_steps=printed,
    )


def utility(of: Problem, *, steps: int, clip: float, learning_rate: float, order: float, rdp: float) -> float:
    """Proposition 3.8, Eq. 15: the order of the least expected gradient norm, at (order, rdp)-Rényi privacy.

    Optimisation, clipping bias, sampling and noise, in this order; the noise is sigma^2 = order C^2 T / (rdp n b).
    """
    _settings(steps, clip, learning_rate, order, rdp)
    spread, eta, smooth = of.gradient_deviation, learning_rate, of.smoothness
    noise = order * clip**2 * steps / (rdp * of.records * of.batch)
    moved = 1 / (eta * clip * steps) + 1 / math.sqrt(eta * steps)
    bias = min(spread, spread**2 / clip)
    sampled = math.sqrt(eta * smooth / of.batch) * spread
    hidden = of.dimensions * smooth * eta * noise
    return moved + bias + sampled + hidden / clip + math.sqrt(hidden)


def utility_bounded(
    of: Problem,
    *,
    steps: int,
    clip: float,
    learning_rate: float,
    order: float,
    rdp: float,
    diameter: float,
    strong_convexity: float,
) -> float:
    """Proposition 3.12, Eq. 18: the order of the least expected root of the optimality gap.

    The noise is the paper's claim: sigma^2 = order C^2 min(T, T*) / (rdp n b), T* = n b ((1 + eta L) D / (eta C))^2.
    """
    _settings(steps, clip, learning_rate, order, rdp)
    check.positive("the domain's diameter", diameter=diameter)
    check.positive("the risk is mu-strongly convex", strong_convexity=strong_convexity)
    spread, eta, smooth, mu = of.gradient_deviation, learning_rate, of.smoothness, strong_convexity
    still = of.records * of.batch * ((1 + eta * smooth) * diameter / (eta * clip)) ** 2
    noise = order * clip**2 * min(steps, still) / (rdp * of.records * of.batch)
    moved = math.sqrt(smooth) * diameter**2 / (eta * clip * steps) + diameter / math.sqrt(eta * steps)
    bias = min(math.pow(smooth, 0.75) / math.pow(mu, 1.25) * spread, math.sqrt(spread**3 / (mu * clip)))
    sampled = math.sqrt(eta / of.batch) * spread
    hidden = of.dimensions * eta * noise
    return moved + bias + sampled + hidden * math.sqrt(smooth) / clip + math.sqrt(hidden)


def _settings(steps: int, clip: float, learning_rate: float, order: float, rdp: float) -> None:
    check.count("count the steps", steps=steps)
    check.positive("bounds and rates are positive", clip=clip, learning_rate=learning_rate, rdp=rdp)
    check.require(order > 1, "an order above 1", f"{order}", "Rényi divergences begin there")


# When does the certificate stand still? ------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class Standstill:
    """A full-batch run for the last iterate: after `steps` steps its certificate is `mu`-Gaussian for ever."""

    steps: int
    mu: float


def standstill(plan: Plan) -> Standstill:
    """When the certificate of a full-batch plan under LastIterate stops growing. A shorter run gains nothing from it.

    About 4 D n / (eta C) steps without weight decay, and ln(...) / (eta decay) with it.
    """
    event = plan.event_at(0)
    if not isinstance(event, LastIterateRun) or not isinstance(event.step, Gaussian):
        check.refuse(
            "a full-batch plan with analysis=LastIterate(...)",
            f"{type(plan.analysis).__name__} with {type(plan.sampling).__name__}",
            "other plans hardly ever stand still at a useful epsilon: compare certificates at several steps",
        )
    noise = event.step.noise
    shift = event.diameter * event.batch / (event.learning_rate * noise * event.clip)
    noise /= units(plan.relation)
    mu, _ = last_iterate.gaussian_mu(steps=2**50, noise=noise, shift=shift, factor=event.expansion)
    # Composition of T steps has sqrt(T)/z: from here on the last iterate is cheaper.
    return Standstill(steps=math.ceil((mu * noise) ** 2), mu=mu)
