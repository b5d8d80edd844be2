"""Recipes of random freeze and ranked freeze (arXiv 2112.00845): sparse updates at the privacy cost of DP-SGD."""

from discreet.accounting.charges import AccountedClaim, Accounting
from discreet.core.relation import Neighbouring
from discreet.methods.random_freeze.selection import Granularity, RandomFreeze, RankedFreeze, Refresh
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Poisson
from discreet.stages.selection import Frozen, Order


# Options are converted from strings, because settings that are read from a file are text.
def random_freeze(
    clip: float = 1.0,
    final_rate: float = 0.9,
    cooling_epochs: int = 40,
    granularity: Granularity = Granularity.ELEMENTS,
    refresh: Refresh = Refresh.EPOCH,
    order: Order = Order.FREEZE_THEN_CLIP,
    frozen: Frozen = Frozen.STILL,
) -> Recipe:
    """DP-SGD on a random subset of coordinates, which shrinks over `cooling_epochs` epochs to 1 - final_rate of them.

    granularity  what is frozen together: elements, rows, columns or tensors
    refresh      when a new mask is drawn: every epoch or every step
    order        whether gradients are clipped before or after freezing
    frozen       what the optimizer does with frozen coordinates
    """
    selection = RandomFreeze(
        final_rate=final_rate,
        cooling_epochs=cooling_epochs,
        granularity=Granularity(granularity),
        refresh=Refresh(refresh),
        order=Order(order),
        frozen=Frozen(frozen),
    )
    return Recipe(method="random-freeze", bounder=FlatClip(clip), selection=selection, claims=_claim)


def ranked_freeze(
    clip: float = 1.0,
    final_rate: float = 0.9,
    cooling_epochs: int = 40,
    order: Order = Order.FREEZE_THEN_CLIP,
    frozen: Frozen = Frozen.STILL,
) -> Recipe:
    """DP-SGD on the coordinates with the largest released gradients in the previous epoch."""
    selection = RankedFreeze(
        final_rate=final_rate, cooling_epochs=cooling_epochs, order=Order(order), frozen=Frozen(frozen)
    )
    return Recipe(method="ranked-freeze", bounder=FlatClip(clip), selection=selection, claims=_claim)


def _claim(plan: Plan) -> AccountedClaim:
    """The paper accounts for every run as DP-SGD with Poisson sampling, with the RDP accountant."""
    return AccountedClaim(
        events=plan.using(sampling=Poisson(), relation=Neighbouring.ADD_REMOVE).events(),
        by=Accounting.RDP,
        theorem="Random freeze (arXiv 2112.00845), Section 4: the RDP accountant of DP-SGD",
        assumes="batches are drawn by Poisson sampling",
    )
