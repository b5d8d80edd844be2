"""Recipes of DPSGD-DC and DPSGD-GC (arXiv 2502.17772): DP-SGD with and without a bounded domain."""

import math
from dataclasses import dataclass, replace
from typing import final

from discreet.accounting.charges import ABOUT_DELTA, Claim
from discreet.core import check
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.curvature import Assumed, Curvature, LinearModel, Link
from discreet.methods.dpsgd_dc.domain import Ball, Centre
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import FullBatch


# Options are converted from strings, because settings that are read from a file are text.
def dpsgd_dc(
    clip: float = 1.0,
    radius: float = 10.0,
    centre: Centre = Centre.INITIAL,
    link: Link | None = None,
    features: float = 1.0,
    smoothness: float | None = None,
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
) -> Recipe:
    """DP-SGD in a ball. With `link` or `smoothness`, epsilon covers the final parameters only and stops growing.

    radius         radius of the ball; the diameter of the domain is 2 * radius
    centre         centre of the ball
    link           the loss of a linear model, whose features are clipped to norm `features`
    smoothness     for any other model: the user's statement that every loss is L-smooth with this L
    learning_rate  learning rate of every step; required with `link` or `smoothness`
    weight_decay   weight decay of the optimizer

    Without `link` and `smoothness` the run is certified by composition, like DP-SGD, and all parameters may be seen.
    """
    expected, remedy = "either link (for a linear model) or smoothness (for any model)", "give only one of them"
    check.require(link is None or smoothness is None, expected, f"link={link!s} and smoothness={smoothness!r}", remedy)
    domain = Ball(radius=radius, centre=Centre(centre))
    curvature: Curvature | None = None
    if link is not None:
        curvature = LinearModel(link=Link(link), features=features)
    if smoothness is not None:
        curvature = Assumed(smoothness=smoothness)
    recipe = Recipe(method="dpsgd-dc", bounder=FlatClip(clip), domain=domain, claims=_claim)
    if curvature is None:
        return recipe
    if learning_rate is None:
        expected = "a learning rate with link or smoothness"
        check.refuse(expected, "none", "pass the learning rate of the optimizer, which must stay constant")
    analysis = LastIterate(learning_rate=learning_rate, curvature=curvature, decay=weight_decay)
    return recipe.using(sampling=FullBatch(), analysis=analysis)


def dpsgd_gc(clip: float = 1.0) -> Recipe:
    """DPSGD-GC: DP-SGD, certified by composition, with the claim of Theorem 3.3 for comparison."""
    return Recipe(method="dpsgd-gc", bounder=FlatClip(clip), claims=_claim)


def _claim(plan: Plan) -> Claim | None:
    """Theorem 3.3, and Theorem 3.4 if the smoothness is known; None without a batch size.

    The paper writes D for both the diameter and the radius of its ball. Its proof needs the diameter.
    """
    horizon, analysis = plan.horizon, plan.analysis
    if horizon.records is None or horizon.batch is None or not isinstance(plan.bounder, FlatClip):
        return None
    records, batch, clip, steps = horizon.records, horizon.batch, plan.bounder.clip, horizon.steps
    std = plan.noise * clip / batch
    claim = LastIterateClaim(records=records, batch=batch, clip=clip, noise_std_on_mean=std, steps=steps)
    if not isinstance(analysis, LastIterate):
        return claim
    smoothness, diameter = analysis.curvature.smoothness, plan.domain.diameter
    return replace(claim, learning_rate=analysis.learning_rate, smoothness=smoothness, diameter=diameter)


@final
@dataclass(frozen=True, kw_only=True)
class LastIterateClaim(Claim):
    """DPSGD-GC (no domain) and DPSGD-DC (bounded domain): Theorems 3.3 and 3.4 in RDP, converted by Lemma 2.4.

    Theorem 3.3: r(a) = 2 a C^2 T / (n b sigma^2).  Theorem 3.4 (Eq. 54): also
    r(a) = a (sqrt(2 C^2 / (n b sigma^2)) + sqrt((1 + eta L)^2 D^2 / (2 eta^2 sigma^2)))^2.
    If b <= n/5 and Lemma A.13 applies, 8 C^2 / n^2 replaces 2 C^2 / (n b).
    """

    records: int
    batch: float
    clip: float
    noise_std_on_mean: float
    steps: int
    learning_rate: float | None = None
    smoothness: float | None = None
    diameter: float | None = None
    theorem: str = "DPSGD-DC (arXiv 2502.17772), Theorems 3.3 and 3.4"
    assumes: str = "an L-smooth loss; only the final parameters are seen; Lemma 3.2 holds in both directions"

    def __post_init__(self) -> None:
        check.count("give public whole numbers", records=self.records, steps=self.steps)
        check.positive("give the batch size and the clipping norm", batch=self.batch, clip=self.clip)
        check.not_negative("give the standard deviation of the noise", noise_std_on_mean=self.noise_std_on_mean)
        domain = (self.learning_rate, self.smoothness, self.diameter)
        known = [value is not None for value in domain]
        remedy = "for a domain, give its diameter, the learning rate and the smoothness of the loss"
        expected = "learning_rate, smoothness and diameter together, or none of them"
        check.require(all(known) or not any(known), expected, f"{domain}", remedy)
        if all(known):
            check.positive(remedy, learning_rate=self.learning_rate, diameter=self.diameter)
            check.not_negative(remedy, smoothness=self.smoothness)

    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon: the minimum over orders a of r(a) + ln(1/delta)/(a - 1)."""
        check.inside_unit(ABOUT_DELTA, delta=delta)
        if self.noise_std_on_mean == 0:
            return math.inf
        # For r(a) = a * slope the minimum is at a = 1 + sqrt(ln(1/delta) / slope).
        log = math.log(1 / delta)
        slope = self.rdp(1.0)
        plain = slope + 2 * math.sqrt(slope * log)
        orders = [1 + 10 ** (k / 50) for k in range(-100, 201)]
        strong = [self._strengthened(order) + log / (order - 1) for order in orders]
        return min(plain, *strong)

    def rdp(self, order: float) -> float:
        """r(a) by Theorem 3.3; with a domain, the minimum of Theorems 3.3 and 3.4.

        >>> figure = dict(records=8, batch=2, clip=2.0, noise_std_on_mean=4.0, learning_rate=0.2)
        >>> round(LastIterateClaim(steps=50, smoothness=1.0, diameter=1.0, **figure).rdp(1.1), 6)
        1.684375
        """
        step = 2 * self.clip**2 / (self.records * self.batch * self.noise_std_on_mean**2)
        composed = step * self.steps
        absorbed = self._absorbed()
        bounded = math.inf if absorbed is None else (math.sqrt(step) + math.sqrt(absorbed)) ** 2
        return order * min(composed, bounded)

    def _absorbed(self) -> float | None:
        """(1 + eta L)^2 D^2 / (2 eta^2 sigma^2): the cost per order of forgetting earlier steps."""
        if self.learning_rate is None or self.smoothness is None or self.diameter is None:
            return None
        growth = (1 + self.learning_rate * self.smoothness) * self.diameter
        return growth**2 / (2 * self.learning_rate**2 * self.noise_std_on_mean**2)

    def _strengthened(self, order: float) -> float:
        """The smallest r(a) with 8 C^2 / (beta n^2 sigma^2) per step, over all beta that Lemma A.13 allows."""
        if 5 * self.batch > self.records:
            return math.inf
        step = 8 * self.clip**2 / (self.records**2 * self.noise_std_on_mean**2)
        noise, rate = self.batch * self.noise_std_on_mean / (2 * self.clip), self.batch / self.records
        absorbed = self._absorbed()
        best = math.inf
        for beta in (k / 100 for k in range(1, 101)):
            if not _lemma_a13(order, rate, math.sqrt(beta) * noise):
                continue
            bounded = math.inf if absorbed is None or beta == 1 else step / beta + absorbed / (1 - beta)
            best = min(best, order * min(step / beta * self.steps, bounded))
        return best


def _lemma_a13(order: float, rate: float, noise: float) -> bool:
    """Whether D_a of the sampled Gaussian is at most 2 a q^2 / z^2, by the conditions of Eq. 33."""
    if noise <= 4 or rate > 1 / 5:
        return False
    k = math.log1p(1 / (rate * (order - 1)))
    first = order <= k * noise**2 / 2 - 2 * math.log(noise)
    below = k + math.log(rate * order) + 1 / (2 * noise**2)
    top = k**2 * noise**2 / 2 - math.log(5) - 2 * math.log(noise)
    return first and (below <= 0 or order * below <= top)
