"""Random freeze and ranked freeze: sparse updates at the price of DP-SGD (arXiv 2112.00845)."""

from __future__ import annotations

from discreet.accounting.claims import AccountedClaim, Accounting
from discreet.core.relation import Neighbouring
from discreet.methods.random_freeze.granularity import Granularity
from discreet.methods.random_freeze.selection import RandomFreeze, RankedFreeze, Refresh
from discreet.stages.bounding import FlatClip
from discreet.stages.plan import Plan
from discreet.stages.recipe import Recipe
from discreet.stages.sampling import Poisson
from discreet.stages.selection import Frozen, Order, Selection


# Choices are read by name too, because the settings of a run come back from a file as text.
def random_freeze(
    clip: float = 1.0,
    final_rate: float = 0.9,
    cooling_epochs: int = 40,
    unit: Granularity = Granularity.ELEMENTS,
    refresh: Refresh = Refresh.EPOCH,
    order: Order = Order.FREEZE_THEN_CLIP,
    frozen: Frozen = Frozen.STILL,
) -> Recipe:
    """DP-SGD on a random part of the model, which shrinks over the epochs to 1 - final_rate."""
    selection = RandomFreeze(
        final_rate=final_rate,
        cooling_epochs=cooling_epochs,
        kind=Granularity(unit).kind,
        refresh=Refresh(refresh),
        order=Order(order),
        frozen=Frozen(frozen),
    )
    return _plan("random-freeze", clip, selection)


def ranked_freeze(
    clip: float = 1.0,
    final_rate: float = 0.9,
    cooling_epochs: int = 40,
    order: Order = Order.FREEZE_THEN_CLIP,
    frozen: Frozen = Frozen.STILL,
) -> Recipe:
    """DP-SGD on the coordinates whose released gradients were largest in the epoch before."""
    selection = RankedFreeze(
        final_rate=final_rate, cooling_epochs=cooling_epochs, order=Order(order), frozen=Frozen(frozen)
    )
    return _plan("ranked-freeze", clip, selection)


def _plan(method: str, clip: float, selection: Selection) -> Recipe:
    return Recipe(method=method, bounder=FlatClip(clip), selection=selection, claims=_claim)


def _claim(plan: Plan) -> AccountedClaim:
    """The paper accounts every run as DP-SGD with Poisson sampling, by Rényi divergences."""
    return AccountedClaim(
        events=plan.using(sampling=Poisson(), relation=Neighbouring.ADD_REMOVE).events(),
        by=Accounting.RDP,
        theorem="Random freeze (arXiv 2112.00845), Section 4: the Rényi accountant of DP-SGD",
        assumes="batches drawn by Poisson sampling, whatever drew them",
    )
