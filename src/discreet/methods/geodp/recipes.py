"""Recipes of GeoDP (arXiv 2504.05618) as published, without a guarantee, of two certified variants, and its claim."""

import math
from dataclasses import dataclass, replace
from typing import Self, final

from discreet.accounting.charges import ABOUT_DELTA, Claim
from discreet.core import check
from discreet.methods.geodp import stages
from discreet.stages.acceptance import AcceptAll, LossTest
from discreet.stages.analysis import Unproven
from discreet.stages.clipping import Clipping
from discreet.stages.plan import Plan, Recipe

REASON = "one record can turn the direction of a mean gradient that is near zero"


def geodp(
    clip: float = 0.1,
    beta: float = 0.1,
    clipping: Clipping = Clipping.FLAT,
    gamma: float = 0.01,
    r: float = 0.1,
    loss_clip: float | None = None,
) -> Recipe:
    """GeoDP as published: noise on the norm and the angles of the mean gradient. No proven guarantee.

    beta       bounding factor: the noise on angles is scaled to the range beta pi
    clipping   flat, auto-s (uses gamma) or psac (uses r), with clipping norm `clip`
    loss_clip  adds the test of selective update (`sur`) with this bound on each record; None: no test
    """
    return Recipe(
        method="geodp",
        bounder=Clipping(clipping).bounder(clip=clip, gamma=gamma, r=r),
        mechanism=stages.GeometricNoise(beta),
        acceptance=AcceptAll() if loss_clip is None else LossTest(loss_clip=loss_clip),
        analysis=Unproven(REASON),
        claims=_claim,
    )


def geodp_sound(
    clip: float = 1.0,
    beta: float | None = None,
    window: stages.Window = stages.Window.BALL,
    split: float = stages.DEFAULT_SPLIT,
    tails: stages.Tails = stages.Tails.EVEN,
) -> Recipe:
    """GeoDP with a guarantee: sums angles, each within a public window around the last release, and magnitudes.

    beta    size of the window: its radius is beta pi/2 sqrt(d + 2); None: radius 1/2
    window  shape of the window: ball, or box (each angle clamped separately, as in the paper)
    split   fraction of 1/z^2 for the direction, where z is the noise multiplier
    tails   how mean angles become a gradient: even, or product (as in the paper)
    """
    angles = stages.AngleWindow(clip=clip, split=split, beta=beta, window=stages.Window(window))
    return Recipe(method="geodp-sound", bounder=angles, combination=stages.FromAngles(angles, stages.Tails(tails)))


def polar(clip: float = 1.0, split: float = stages.DEFAULT_SPLIT) -> Recipe:
    """Polar DP-SGD: sums directions and clipped magnitudes; the gradient is mean magnitude times mean direction.

    split  fraction of 1/z^2 for the direction, where z is the noise multiplier; see `best_split`
    """
    return Recipe(method="polar", bounder=stages.Polar(clip=clip, split=split), combination=stages.FromPolar())


def best_split(*, size: int, batch: float, noise: float, magnitude: float = 1.0, agreement: float = 1.0) -> float:
    """The split with the smallest expected error of polar's gradient.

    With x = (1 - split) / split:
    x^2 = (agreement^2 + size noise^2 / batch^2) / (size (magnitude^2 + noise^2 / batch^2))

    size       number of coordinates of the gradient
    magnitude  mean of min(n, C) / C, at most 1
    agreement  norm of the mean direction, at most 1

    >>> round(best_split(size=10_000, batch=4096, noise=1.0), 4)
    0.9901
    """
    check.count("give the number of trainable parameters", size=size)
    remedy = "give public numbers or guesses, not statistics of private data"
    check.positive(remedy, batch=batch, noise=noise, magnitude=magnitude, agreement=agreement)
    spread = (noise / batch) ** 2
    x = math.sqrt((agreement**2 + size * spread) / (size * (magnitude**2 + spread)))
    return 1 / (1 + x)


@final
@dataclass(frozen=True, kw_only=True)
class GeoDpOneStepClaim(Claim):
    """GeoDP claims that one step is (sqrt(2 ln(1.25/delta)) / sigma, delta + delta')-DP with delta' = 1 - beta.

    The paper gives no rule for several steps. For them `epsilon` is None; `one_step` is the claim for a single step.

    >>> claim = GeoDpOneStepClaim(noise=1.0, beta=1.0, steps=1)
    >>> round(claim.epsilon(1e-5), 5)
    4.84481
    """

    noise: float
    beta: float
    steps: int = 1
    theorem: str = "GeoDP (arXiv 2504.05618), Lemma 2 and Theorem 5, one step"
    assumes: str = "the angle of an average of B gradients has sensitivity (range of the angle)/B"

    def __post_init__(self) -> None:
        check.not_negative("give the noise multiplier, sigma in the paper", noise=self.noise)
        check.fraction("give the bounding factor of the paper, e.g. 0.1", beta=self.beta)
        check.count("give the number of steps", steps=self.steps)

    def one_step(self, delta: float) -> float:
        """The claimed epsilon of a single step."""
        check.inside_unit(ABOUT_DELTA, delta=delta)
        return math.sqrt(2 * math.log(1.25 / delta)) / self.noise if self.noise > 0 else math.inf

    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon of a run with one step; None for more steps."""
        return self.one_step(delta) if self.steps == 1 else None

    def delta(self, delta: float) -> float:
        """The claimed delta of one step: delta + delta'."""
        return min(1.0, delta + (1 - self.beta))

    def repeated(self, times: int) -> Self:
        return replace(self, steps=self.steps * times)

    def joined(self, other: Claim) -> Self | None:
        """The claim with the steps of both; None if their settings differ."""
        if isinstance(other, GeoDpOneStepClaim) and replace(other, steps=self.steps) == self:
            return replace(self, steps=self.steps + other.steps)
        return None


def _claim(plan: Plan) -> GeoDpOneStepClaim:
    """The claim for one step, whatever the sampling; the paper has no rule for several steps."""
    assert isinstance(plan.mechanism, stages.GeometricNoise)
    return GeoDpOneStepClaim(noise=plan.noise, beta=plan.mechanism.beta, steps=plan.horizon.steps)
