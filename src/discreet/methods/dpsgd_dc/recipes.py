"""Recipes of DPSGD-DC and DPSGD-GC (arXiv 2502.17772): DP-SGD with and without a bounded domain."""

from __future__ import annotations

from dataclasses import replace

from discreet.accounting.claims import Claim
from discreet.core import check
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.claim import LastIterateClaim
from discreet.methods.dpsgd_dc.curvature import Assumed, Curvature, LinearModel, Link
from discreet.methods.dpsgd_dc.domain import Ball, Centre
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe
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
    claim = LastIterateClaim(
        records=horizon.records,
        batch=horizon.batch,
        clip=plan.bounder.clip,
        noise_std_on_mean=plan.noise * plan.bounder.clip / horizon.batch,
        steps=horizon.steps,
    )
    if not isinstance(analysis, LastIterate):
        return claim
    return replace(
        claim,
        learning_rate=analysis.learning_rate,
        smoothness=analysis.curvature.smoothness,
        diameter=plan.domain.diameter,
    )
