"""D2P2-SGD, D2P-SGD and DP2-SGD (arXiv 2509.09485, Algorithms 1 to 3): decaying noise, random projection, or both."""

from __future__ import annotations

import dataclasses
import enum

from discreet.accounting import AccountedClaim, Accounting
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.plan import Plan
from discreet.stages.bounding import AutoS
from discreet.stages.mechanisms.gaussian import GaussianNoise
from discreet.stages.mechanisms.projected_gaussian import (
    DenseBlocks,
    DenseLayers,
    Orthonormal,
    PaperLift,
    ProjectedGaussian,
    UnbiasedLift,
)
from discreet.stages.schedules import InverseFourthRoot, InverseRoot, Period, Schedule


class Decay(enum.StrEnum):
    """How the noise falls with k = 1, 2, ...: as in the paper's Table 3, or as in its Theorem 1."""

    INVERSE_FOURTH_ROOT = "inverse-fourth-root"
    INVERSE_ROOT = "inverse-root"


class Projection(enum.StrEnum):
    """Which projections: ours, at no price, or Gaussian matrices as published, which cost epsilon."""

    ORTHONORMAL = "orthonormal"
    DENSE = "dense"


class Scale(enum.StrEnum):
    """How the projected gradient is lifted back."""

    UNBIASED = "unbiased"
    PAPER = "paper"


def d2p2_sgd(
    reduction: float = 0.3,
    gamma: float = 0.01,
    decay: Decay = Decay.INVERSE_FOURTH_ROOT,
    decay_per: Period = Period.EPOCH,
    projection: Projection = Projection.ORTHONORMAL,
    lift: Scale = Scale.UNBIASED,
    block: int | None = None,
    widths: tuple[int, ...] | None = None,
) -> Plan:
    """D2P2-SGD: automatic clipping, noise that decays, on a random projection of the gradient.

    block, widths  for dense projections: coordinates in a block (None: one matrix per layer), and the width of
                   each part's projection, from `layer_widths` or `block_widths`: the price depends on them
    """
    return Plan(
        method="d2p2-sgd",
        bounder=AutoS(clip=1.0, gamma=gamma),
        mechanism=_projected(reduction, projection, lift, block, widths),
        schedule=_decaying(decay, decay_per),
        claims=_claim,
    )


def d2p_sgd(
    gamma: float = 0.01, decay: Decay = Decay.INVERSE_FOURTH_ROOT, decay_per: Period = Period.EPOCH
) -> Plan:
    """D2P-SGD: automatic clipping and noise that decays."""
    return Plan(
        method="d2p-sgd",
        bounder=AutoS(clip=1.0, gamma=gamma),
        schedule=_decaying(decay, decay_per),
        claims=_claim,
    )


def dp2_sgd(
    reduction: float = 0.3,
    gamma: float = 0.01,
    projection: Projection = Projection.ORTHONORMAL,
    lift: Scale = Scale.UNBIASED,
    block: int | None = None,
    widths: tuple[int, ...] | None = None,
) -> Plan:
    """DP2-SGD: automatic clipping and constant noise, on a random projection of the gradient."""
    return Plan(
        method="dp2-sgd",
        bounder=AutoS(clip=1.0, gamma=gamma),
        mechanism=_projected(reduction, projection, lift, block, widths),
        claims=_claim,
    )


def _decaying(decay: Decay, per: Period) -> Schedule:
    kinds: dict[Decay, type[InverseFourthRoot] | type[InverseRoot]] = {
        Decay.INVERSE_FOURTH_ROOT: InverseFourthRoot,
        Decay.INVERSE_ROOT: InverseRoot,
    }
    return kinds[Decay(decay)](Period(per))


def _projected(
    reduction: float, projection: Projection, lift: Scale, block: int | None, widths: tuple[int, ...] | None
) -> ProjectedGaussian:
    scale = UnbiasedLift() if Scale(lift) is Scale.UNBIASED else PaperLift()
    if Projection(projection) is Projection.ORTHONORMAL:
        check.require(
            block is None and widths is None,
            "block and widths with dense projections only",
            f"block={block!r}, widths={widths!r}",
            "drop them, or choose the dense projection",
        )
        return ProjectedGaussian(reduction=reduction, projection=Orthonormal(), lift=scale)
    if widths is None:
        check.refuse(
            "widths for dense projections",
            "none",
            "the price depends on them: layer_widths([p.numel() for p in model.parameters()], reduction)",
        )
    dims = tuple(widths)
    dense = DenseLayers(dims) if block is None else DenseBlocks(block, dims)
    return ProjectedGaussian(reduction=reduction, projection=dense, lift=scale)


def _claim(plan: Plan) -> AccountedClaim | None:
    """The same run without its projection, which the paper calls post-processing."""
    if plan.relation is not Neighbouring.ADD_REMOVE:
        return None
    plain = dataclasses.replace(plan, mechanism=GaussianNoise(), claims=None)
    return AccountedClaim(
        events=plain.charge().certified,
        by=Accounting.PLD,
        theorem="D2P2-SGD (arXiv 2509.09485), Theorem 1, by an accountant",
        assumes="the projection is post-processing, although the noise is added after it",
    )
