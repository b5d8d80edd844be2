"""Recipes of D2P2-SGD, D2P-SGD and DP2-SGD (arXiv 2509.09485, Algorithms 1 to 3)."""

import enum
import math
from dataclasses import dataclass
from typing import final

from discreet.accounting.charges import AccountedClaim, Accounting
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.d2p2 import projected_noise as projected
from discreet.stages.clipping import AutoS
from discreet.stages.noise import GaussianNoise
from discreet.stages.plan import Plan, Recipe
from discreet.stages.schedule import Constant, Exponential, Linear, Period, PerPeriod, Schedule


@final
@dataclass(frozen=True)
class InverseRoot(PerPeriod):
    """The factor 1 / sqrt(k) in period k = 1, 2, ..., as in Theorem 1 of D2P2-SGD."""

    period: Period = Period.EPOCH

    def at(self, k: int) -> float:
        return 1 / math.sqrt(k)


@final
@dataclass(frozen=True)
class InverseFourthRoot(PerPeriod):
    """The factor 1 / k^(1/4) in period k = 1, 2, ...; the variance decays as 1 / sqrt(k), as in Table 3 of D2P2-SGD."""

    period: Period = Period.EPOCH

    def at(self, k: int) -> float:
        return 1 / math.sqrt(math.sqrt(k))


class Decay(enum.StrEnum):
    """How the noise decays over periods k = 1, 2, ..."""

    INVERSE_FOURTH_ROOT = "inverse-fourth-root"  # 1 / k^(1/4), as in Table 3 of the paper
    INVERSE_ROOT = "inverse-root"  # 1 / sqrt(k), as in Theorem 1 of the paper
    EXPONENTIAL = "exponential"  # as in Dynamic DPSGD (Du et al. 2021)
    LINEAR = "linear"  # a straight line
    CONSTANT = "constant"  # no decay

    @property
    def is_timed(self) -> bool:
        """Whether the decay needs a last factor (decay_to) and a number of periods (decay_over)."""
        return self in (Decay.EXPONENTIAL, Decay.LINEAR)


class Projection(enum.StrEnum):
    """The kind of projection."""

    ORTHONORMAL = "orthonormal"  # one orthonormal projection of the whole gradient; no extra privacy cost
    ORTHONORMAL_LAYERS = "orthonormal-layers"  # one orthonormal projection per parameter; no extra privacy cost
    DENSE = "dense"  # Gaussian matrices, as in the paper; increases epsilon


class Scale(enum.StrEnum):
    """The scale of the lift: unbiased, or as in the paper's Algorithm 1."""

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
    """D2P2-SGD: automatic clipping, with decaying noise on a random projection of the gradient.

    decay_to, decay_over  for exponential and linear decay: the last factor on the noise, and the period that has it
    block   for dense projections: number of coordinates in a block; None for one matrix per parameter
    widths  for dense projections: the projected dimensions, from `layer_widths` or `block_widths`; the cost depends
            on them
    """
    mechanism = _projected(reduction, projection, lift, block, widths)
    schedule = decaying(decay, decay_per, decay_to, decay_over)
    bounder = AutoS(clip=1.0, gamma=gamma)
    return Recipe(method="d2p2-sgd", bounder=bounder, mechanism=mechanism, schedule=schedule, claims=_claim)


def d2p_sgd(
    gamma: float = 0.01,
    decay: Decay = Decay.INVERSE_FOURTH_ROOT,
    decay_per: Period = Period.EPOCH,
    decay_to: float | None = None,
    decay_over: int | None = None,
) -> Recipe:
    """D2P-SGD: automatic clipping with decaying noise.

    decay_to, decay_over  for exponential and linear decay: the last factor on the noise, and the period that has it
    """
    schedule = decaying(decay, decay_per, decay_to, decay_over)
    return Recipe(method="d2p-sgd", bounder=AutoS(clip=1.0, gamma=gamma), schedule=schedule, claims=_claim)


def dp2_sgd(
    reduction: float = 0.3,
    gamma: float = 0.01,
    projection: Projection = Projection.ORTHONORMAL,
    lift: Scale = Scale.UNBIASED,
    block: int | None = None,
    widths: tuple[int, ...] | None = None,
) -> Recipe:
    """DP2-SGD: automatic clipping, with constant noise on a random projection of the gradient."""
    mechanism = _projected(reduction, projection, lift, block, widths)
    return Recipe(method="dp2-sgd", bounder=AutoS(clip=1.0, gamma=gamma), mechanism=mechanism, claims=_claim)


def decaying(decay: Decay, per: Period, to: float | None = None, over: int | None = None) -> Schedule:
    """Return the schedule of a decay. Exponential and linear decay need `to` and `over`; the others refuse them.

    >>> decaying(Decay.LINEAR, Period.EPOCH, 0.5, 3)
    Linear(last=0.5, periods=3, period=<Period.EPOCH: 'epoch'>)
    """
    decay, per = Decay(decay), Period(per)
    got = f"decay={decay}, decay_to={to!r}, decay_over={over!r}"
    expected = "decay_to and decay_over with exponential and linear decay only"
    remedy = f"set e.g. decay_to=0.5 and decay_over to the number of {per}s" if decay.is_timed else "remove them"
    check.require(decay.is_timed == (to is not None) == (over is not None), expected, got, remedy)
    if decay is Decay.CONSTANT:
        return Constant()
    if to is None or over is None:
        return InverseRoot(per) if decay is Decay.INVERSE_ROOT else InverseFourthRoot(per)
    check.positive("choose the last factor on the noise, e.g. 0.5", decay_to=to)
    check.require(to < 1, "decay_to < 1", f"decay_to={to!r}", "choose a factor below 1, e.g. 0.5")
    if decay is Decay.LINEAR:
        return Linear(last=to, periods=over, period=per)
    return Exponential(rho=1 / to, periods=over, period=per)


def _projected(
    reduction: float, projection: Projection, lift: Scale, block: int | None, widths: tuple[int, ...] | None
) -> projected.ProjectedNoise:
    scale = projected.UnbiasedLift() if Scale(lift) is Scale.UNBIASED else projected.PaperLift()
    if Projection(projection) is not Projection.DENSE:
        expected, got = "block and widths with dense projections only", f"block={block!r}, widths={widths!r}"
        check.require(block is None and widths is None, expected, got, "remove them, or use projection=dense")
        whole = Projection(projection) is Projection.ORTHONORMAL
        kind = projected.Orthonormal() if whole else projected.OrthonormalLayers()
        return projected.ProjectedNoise(reduction=reduction, projection=kind, lift=scale)
    if widths is None:
        expected = "widths for dense projections"
        check.refuse(expected, "none", "pass widths=layer_widths([p.numel() for p in model.parameters()], reduction)")
    dims = tuple(widths)
    dense = projected.DenseLayers(dims) if block is None else projected.DenseBlocks(block, dims)
    return projected.ProjectedNoise(reduction=reduction, projection=dense, lift=scale)


def _claim(plan: Plan) -> AccountedClaim | None:
    """The cost of the same run without projection, because the paper treats the projection as post-processing."""
    if plan.relation is not Neighbouring.ADD_REMOVE:
        return None
    return AccountedClaim(
        events=plan.using(mechanism=GaussianNoise()).events(),
        by=Accounting.PLD,
        theorem="D2P2-SGD (arXiv 2509.09485), Theorem 1, evaluated with the PLD accountant",
        assumes="the projection is post-processing, although the noise is added after it",
    )
