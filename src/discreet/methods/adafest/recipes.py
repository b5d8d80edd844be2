"""The recipe of DP-AdaFEST (Ghazi et al. 2023, arXiv 2311.08357)."""

from discreet.accounting.charges import AccountedClaim, Accounting
from discreet.core.relation import Neighbouring
from discreet.methods.adafest.selection import TouchedRows
from discreet.stages.clipping import FlatClip
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Poisson


def adafest(
    clip: float = 1.0, row_clip: float = 1.0, row_noise: float = 4.0, row_threshold: float = 2.0, least_rows: int = 1000
) -> Recipe:
    """DP-AdaFEST: noise and updates only on the rows of embedding tables that enough records touch, by a noisy count.

    clip           clipping norm of the gradient
    row_clip       clipping norm of what one record adds to the counts of all rows together
    row_noise      noise multiplier of the counts, relative to that of the gradient
    row_threshold  a row is updated if its noisy count exceeds this many standard deviations of the noise
    least_rows     embedding tables with fewer rows are always updated
    """
    rows = TouchedRows(clip=row_clip, noise=row_noise, threshold=row_threshold, least_rows=least_rows)
    return Recipe(method="adafest", bounder=FlatClip(clip), selection=rows, claims=_claim)


def _claim(plan: Plan) -> AccountedClaim:
    """The paper's accounting: one Gaussian with (z_counts^-2 + z_gradient^-2)^(-1/2) on each Poisson sample."""
    return AccountedClaim(
        events=plan.using(sampling=Poisson(), relation=Neighbouring.ADD_REMOVE).events(),
        by=Accounting.PLD,
        theorem="DP-AdaFEST (arXiv 2311.08357): counts and gradient as one Gaussian mechanism",
        assumes="batches are drawn by Poisson sampling",
    )
