"""D2P2-SGD, D2P-SGD and DP2-SGD (arXiv 2509.09485, Algorithms 1 to 3): decaying noise, random projection, or both."""

from __future__ import annotations

import enum

from discreet.accounting import AccountedClaim, Accounting
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.d2p2.projected_gaussian import (
    DenseBlocks,
    DenseLayers,
    Orthonormal,
    OrthonormalLayers,
    PaperLift,
    ProjectedNoise,
    UnbiasedLift,
)
from discreet.stages.bounding import AutoS
from discreet.stages.gaussian import GaussianNoise
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe
from discreet.stages.schedule import (
    Constant,
    Exponential,
    InverseFourthRoot,
    InverseRoot,
    Linear,
    Period,
    Schedule,
)


class Decay(enum.StrEnum):
    """How the noise falls with k = 1, 2, ...

    inverse-fourth-root  as in the paper's Table 3;  inverse-root  as in its Theorem 1
    exponential          as in Dynamic DPSGD (Du et al. 2021);  linear  a straight line
    constant             not at all
    """

    INVERSE_FOURTH_ROOT = "inverse-fourth-root"
    INVERSE_ROOT = "inverse-root"
    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    CONSTANT = "constant"

    @property
    def is_timed(self) -> bool:
        """Whether it ends at a factor of choice, after a number of periods that must be said."""
        return self in (Decay.EXPONENTIAL, Decay.LINEAR)


class Projection(enum.StrEnum):
    """Which projections: ours, at no price, or Gaussian matrices as published, which cost epsilon.

    orthonormal-layers projects parameter by parameter, as the paper does.
    """

    ORTHONORMAL = "orthonormal"
    ORTHONORMAL_LAYERS = "orthonormal-layers"
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
    decay_to: float | None = None,
    decay_over: int | None = None,
    projection: Projection = Projection.ORTHONORMAL,
    lift: Scale = Scale.UNBIASED,
    block: int | None = None,
    widths: tuple[int, ...] | None = None,
) -> Recipe:
    """D2P2-SGD: automatic clipping, noise that decays, on a random projection of the gradient.

    decay_to, decay_over  for exponential and linear decay: the last factor on the noise, and in which period
    block, widths  for dense projections: coordinates in a block (None: one matrix per layer), and the width of
                   each part's projection, from `layer_widths` or `block_widths`: the price depends on them
    """
    return Recipe(
        method="d2p2-sgd",
        bounder=AutoS(clip=1.0, gamma=gamma),
        mechanism=_projected(reduction, projection, lift, block, widths),
        schedule=decaying(decay, decay_per, decay_to, decay_over),
        claims=_claim,
    )


def d2p_sgd(
    gamma: float = 0.01,
    decay: Decay = Decay.INVERSE_FOURTH_ROOT,
    decay_per: Period = Period.EPOCH,
    decay_to: float | None = None,
    decay_over: int | None = None,
) -> Recipe:
    """D2P-SGD: automatic clipping and noise that decays.

    decay_to, decay_over  for exponential and linear decay: the last factor on the noise, and in which period
    """
    return Recipe(
        method="d2p-sgd",
        bounder=AutoS(clip=1.0, gamma=gamma),
        schedule=decaying(decay, decay_per, decay_to, decay_over),
        claims=_claim,
    )


def dp2_sgd(
    reduction: float = 0.3,
    gamma: float = 0.01,
    projection: Projection = Projection.ORTHONORMAL,
    lift: Scale = Scale.UNBIASED,
    block: int | None = None,
    widths: tuple[int, ...] | None = None,
) -> Recipe:
    """DP2-SGD: automatic clipping and constant noise, on a random projection of the gradient."""
    return Recipe(
        method="dp2-sgd",
        bounder=AutoS(clip=1.0, gamma=gamma),
        mechanism=_projected(reduction, projection, lift, block, widths),
        claims=_claim,
    )


def decaying(decay: Decay, per: Period, to: float | None = None, over: int | None = None) -> Schedule:
    """The schedule of a kind; `to` and `over` belong to those that end at a factor of choice.

    >>> decaying(Decay.LINEAR, Period.EPOCH, 0.5, 3)
    Linear(last=0.5, periods=3, period=<Period.EPOCH: 'epoch'>)
    """
    decay, per = Decay(decay), Period(per)
    check.require(
        decay.is_timed == (to is not None) == (over is not None),
        "decay_to and decay_over with exponential or linear decay, and only there",
        f"decay={decay}, decay_to={to!r}, decay_over={over!r}",
        f"e.g. decay_to=0.5, decay_over=the number of {per}s" if decay.is_timed else "drop them",
    )
    if decay is Decay.CONSTANT:
        return Constant()
    if to is None or over is None:
        return InverseRoot(per) if decay is Decay.INVERSE_ROOT else InverseFourthRoot(per)
    check.positive("the last factor on the noise, below 1, e.g. 0.5", decay_to=to)
    check.require(to < 1, "decay_to < 1", f"decay_to={to!r}", "noise decays to a part of its start")
    if decay is Decay.LINEAR:
        return Linear(last=to, periods=over, period=per)
    return Exponential(rho=1 / to, periods=over, period=per)


def _projected(
    reduction: float, projection: Projection, lift: Scale, block: int | None, widths: tuple[int, ...] | None
) -> ProjectedNoise:
    scale = UnbiasedLift() if Scale(lift) is Scale.UNBIASED else PaperLift()
    if Projection(projection) is not Projection.DENSE:
        check.require(
            block is None and widths is None,
            "block and widths with dense projections only",
            f"block={block!r}, widths={widths!r}",
            "drop them, or choose the dense projection",
        )
        whole = Projection(projection) is Projection.ORTHONORMAL
        kind = Orthonormal() if whole else OrthonormalLayers()
        return ProjectedNoise(reduction=reduction, projection=kind, lift=scale)
    if widths is None:
        check.refuse(
            "widths for dense projections",
            "none",
            "the price depends on them: layer_widths([p.numel() for p in model.parameters()], reduction)",
        )
    dims = tuple(widths)
    dense = DenseLayers(dims) if block is None else DenseBlocks(block, dims)
    return ProjectedNoise(reduction=reduction, projection=dense, lift=scale)


def _claim(plan: Plan) -> AccountedClaim | None:
    """The same run without its projection, which the paper calls post-processing."""
    if plan.relation is not Neighbouring.ADD_REMOVE:
        return None
    return AccountedClaim(
        events=plan.using(mechanism=GaussianNoise()).events(),
        by=Accounting.PLD,
        theorem="D2P2-SGD (arXiv 2509.09485), Theorem 1, by an accountant",
        assumes="the projection is post-processing, although the noise is added after it",
    )
