"""Recipes of gradient embedding perturbation (Yu et al. 2021, "Do not let privacy overbill utility")."""

from discreet.accounting.charges import AccountedClaim, Accounting
from discreet.accounting.events import Event, PoissonSampled, Queries
from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.methods.gep.clipping import EmbeddingClip
from discreet.methods.gep.combination import FromEmbedding
from discreet.methods.gep.subspace import Subspace
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import Poisson


def gep(
    clip: float = 1.0,
    residual_ratio: float = 0.4,
    rank: float = 0.01,
    groups: int = 10,
    public_batch: int = 256,
    refresh: int = 20,
) -> Recipe:
    """GEP: noise on each gradient's coefficients in a subspace that public records span, and less on the rest.

    clip            clipping norm of the coefficients (the embedding)
    residual_ratio  clipping norm of the rest (the residual), as a fraction of clip; in the paper 2/5
    rank            dimension of the subspace, as a fraction of the parameters; in the paper 1000 of 268,000
    groups          the number of groups of parameters, each with a subspace of its own; more are faster
    public_batch    public records that give each subspace
    refresh         steps until the next subspace
    """
    check.positive("choose the ratio of the two clipping norms, e.g. 0.4", residual_ratio=residual_ratio)
    subspace = Subspace(rank=rank, groups=groups, records=public_batch, refresh=refresh)
    return _recipe("gep", EmbeddingClip(clip, clip * residual_ratio, subspace))


def b_gep(
    clip: float = 1.0, rank: float = 0.01, groups: int = 10, public_batch: int = 256, refresh: int = 20
) -> Recipe:
    """B-GEP: the embedding of GEP alone; the part of each gradient outside of the public subspace is lost."""
    subspace = Subspace(rank=rank, groups=groups, records=public_batch, refresh=refresh)
    return _recipe("b-gep", EmbeddingClip(clip, None, subspace))


def _recipe(method: str, bounder: EmbeddingClip) -> Recipe:
    return Recipe(method=method, bounder=bounder, combination=FromEmbedding(), claims=_claim)


def _claim(plan: Plan) -> AccountedClaim:
    """The paper's accounting: the RDP of the two releases is added up, as if each had a sample of its own."""
    poisson = plan.using(sampling=Poisson(), relation=Neighbouring.ADD_REMOVE).events()
    return AccountedClaim(
        events=tuple((one, count) for event, count in poisson for one in _apart(event)),
        by=Accounting.RDP,
        theorem="GEP (Yu et al. 2021), RDP accounting of its published code",
        assumes="batches are drawn by Poisson sampling, and embedding and residual see independent samples",
    )


def _apart(event: Event) -> tuple[Event, ...]:
    if isinstance(event, PoissonSampled) and isinstance(event.event, Queries):
        return tuple(PoissonSampled(event.rate, query) for query in event.event.queries)
    return (event,)
