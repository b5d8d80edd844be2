"""DPSGD-DC and DPSGD-GC: clipped gradients with and without a bounded domain (arXiv 2502.17772)."""

from __future__ import annotations

from dataclasses import replace

from discreet.accounting.claims import Claim
from discreet.core import check
from discreet.methods.dpsgd_dc.analysis import LastIterate
from discreet.methods.dpsgd_dc.claim import LastIterateClaim
from discreet.methods.dpsgd_dc.curvature import Assumed, Curvature, LinearModel, Link
from discreet.stages.bounding import FlatClip
from discreet.stages.domain import Ball, Centre
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe
from discreet.stages.sampling import FullBatch


# Choices are read by name too, because the settings of a run come back from a file as text.
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
    """DP-SGD in a ball; where the losses are known, only the last iterate leaves and epsilon stops growing.

    link        certified for the last iterate alone: the loss of a linear model on features clipped to `features`
    smoothness  the same for any model, if the user's word is true that every loss is L-smooth
    neither     certified by composition, like DP-SGD: iterates may be seen

    The diameter of the domain is 2 radius. `link` and `smoothness` need the learning rate, and full batches pay best.
    """
    check.require(
        link is None or smoothness is None,
        "either link (a linear model) or smoothness (the user's word)",
        f"link={link!s} and smoothness={smoothness!r}",
        "give one of the two",
    )
    domain = Ball(radius=radius, centre=Centre(centre))
    curvature: Curvature | None = None
    if link is not None:
        curvature = LinearModel(link=Link(link), features=features)
    if smoothness is not None:
        curvature = Assumed(smoothness=smoothness)
    if curvature is None:
        return Recipe(method="dpsgd-dc", bounder=FlatClip(clip), domain=domain, claims=_claim)
    if learning_rate is None:
        check.refuse(
            "a learning rate with link or smoothness",
            "none",
            "the bound depends on it: state the one that the optimizer keeps",
        )
    return Recipe(
        method="dpsgd-dc",
        bounder=FlatClip(clip),
        domain=domain,
        sampling=FullBatch(),
        analysis=LastIterate(learning_rate=learning_rate, curvature=curvature, decay=weight_decay),
        claims=_claim,
    )


def dpsgd_gc(clip: float = 1.0) -> Recipe:
    """DPSGD-DC without a domain: DP-SGD, certified by composition, beside the claim of Theorem 3.3."""
    return Recipe(method="dpsgd-gc", bounder=FlatClip(clip), claims=_claim)


def _claim(plan: Plan) -> Claim | None:
    """Theorem 3.3, and 3.4 where a smoothness is known; None where no batch size is.

    The paper says D both for the diameter and for the radius of its ball; its proof needs the diameter.
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
