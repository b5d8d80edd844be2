"""GeoDP (arXiv 2504.05618) as published, which has no guarantee, and two geometric methods that have one."""

from __future__ import annotations

import math

from discreet.core import check
from discreet.methods.clipping import Clipping, bounder
from discreet.methods.geodp.bounding import DEFAULT_SPLIT, AngleWindow, Polar, Window
from discreet.methods.geodp.claim import GeoDpOneStepClaim
from discreet.methods.geodp.combination import FromAngles, FromPolar, Tails
from discreet.methods.geodp.mechanism import GeometricNoise
from discreet.stages.acceptance import AcceptAll, LossTest
from discreet.stages.analysis import Unproven
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe

REASON = "one record can turn the angle of an average of gradients that is near zero"


def geodp(
    clip: float = 0.1,
    beta: float = 0.1,
    clipping: Clipping = Clipping.FLAT,
    gamma: float = 0.01,
    r: float = 0.1,
    loss_clip: float | None = None,
) -> Recipe:
    """GeoDP as published: noise on the norm and the angles of the mean gradient. No proven guarantee.

    beta       bounding factor: the noise on angles is that of a range of beta pi
    clipping   flat, auto-s (with gamma) or psac (with r), all to the bound `clip`
    loss_clip  with selective update (`sur`), a record's bound in its test; None: without
    """
    return Recipe(
        method="geodp",
        bounder=bounder(Clipping(clipping), clip=clip, gamma=gamma, r=r),
        mechanism=GeometricNoise(beta),
        acceptance=AcceptAll() if loss_clip is None else LossTest(loss_clip=loss_clip),
        analysis=Unproven(REASON),
        claims=_claim,
    )


def geodp_sound(
    clip: float = 1.0,
    beta: float | None = None,
    window: Window = Window.BALL,
    split: float = DEFAULT_SPLIT,
    tails: Tails = Tails.EVEN,
) -> Recipe:
    """Sums of angles, each record's within a public window around the last release, and of magnitudes.

    beta    size of the window: its radius is beta pi/2 sqrt(d + 2); None: radius 1/2
    window  ball, or box: every angle clamped by itself, in ranges as the paper has them
    split   the direction's share of the information 1/z^2
    tails   how mean angles become a gradient: even, or product (the paper's)
    """
    angles = AngleWindow(clip=clip, split=split, beta=beta, window=Window(window))
    return Recipe(method="geodp-sound", bounder=angles, combination=FromAngles(angles, Tails(tails)))


def polar(clip: float = 1.0, split: float = DEFAULT_SPLIT) -> Recipe:
    """Sums of directions and of clipped magnitudes: the step is their mean magnitude times the mean direction.

    split  the direction's share of the information 1/z^2 (`best_split`)
    """
    return Recipe(method="polar", bounder=Polar(clip=clip, split=split), combination=FromPolar())


def best_split(
    *, size: int, batch: float, noise: float, magnitude: float = 1.0, agreement: float = 1.0
) -> float:
    """The split with the least expected error of polar's gradient; x below is (1 - split) / split.

    x^2 = (agreement^2 + size noise^2 / batch^2) / (size (magnitude^2 + noise^2 / batch^2))

    size       coordinates of the gradient
    magnitude  mean of min(n, C) / C;  agreement  length of the mean direction; 1 is the largest of either

    >>> round(best_split(size=10_000, batch=4096, noise=1.0), 4)
    0.9901
    """
    check.count("the number of trainable parameters", size=size)
    check.positive(
        "public numbers of the run, or guesses",
        batch=batch,
        noise=noise,
        magnitude=magnitude,
        agreement=agreement,
    )
    spread = (noise / batch) ** 2
    x = math.sqrt((agreement**2 + size * spread) / (size * (magnitude**2 + spread)))
    return 1 / (1 + x)


def _claim(plan: Plan) -> GeoDpOneStepClaim:
    """One step, whatever drew its batch; the paper has no rule for more."""
    assert isinstance(plan.mechanism, GeometricNoise)
    return GeoDpOneStepClaim(noise=plan.noise, beta=plan.mechanism.beta, steps=plan.horizon.steps)
