"""The bounds that are proven for each event, one row per event.

A rule bounds ONE occurrence; `accountants` composes. A new event needs its class in `events`, its bounds, its proof in
docs/proofs, and one row here.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from discreet.accounting import best_of_runs, correlated, events, feedback, group_sampled, last_iterate, sampled
from discreet.accounting.pld import Floats, Parts, Resolution
from discreet.accounting.rdp import Orders
from discreet.core import check
from discreet.core.relation import Neighbouring


@final
@dataclass(frozen=True)
class Rule:
    """The proven bounds of one kind of event.

    relations  where the proof holds; other relations are refused
    mu         the distance of the Gaussian release that the event is; None: it is not Gaussian
    pld, rdp   dominating loss distributions (with counts) and Rényi divergence of one occurrence
    assumes    what must hold outside of the mathematics, in words
    whole      (epsilon, name of the bound) at a delta for a run that consists of this event only
    composed   whether `whole` includes composition of its steps, which is then not computed again
    blocks     simpler events that dominate it, with their number; they are accounted for in its place
    """

    relations: frozenset[Neighbouring]
    mu: Callable[[Any, Neighbouring], float | None] | None = None
    pld: Callable[[Any, Neighbouring, Resolution], Parts] | None = None
    rdp: Callable[[Any, Neighbouring, Orders], Floats] | None = None
    assumes: tuple[str, ...] = ()
    whole: Callable[[Any, Neighbouring, float], tuple[float, str]] | None = None
    composed: bool = False
    blocks: Callable[[Any], tuple[events.Event, int]] | None = None


_ADD_REMOVE = frozenset({Neighbouring.ADD_REMOVE})
_REPLACE_ONE = frozenset({Neighbouring.REPLACE_ONE})
_BOTH = _ADD_REMOVE | _REPLACE_ONE

_FRESH = ("the projection is drawn afresh for each step, after the data is fixed and independent of it",)
_POISSON = ("each record is sampled independently with the stated rate, and the sample itself stays hidden",)
_CAPPED = ("no user has more records than stated, by a secret choice that ignores the records of others",)
_AT_MOST = ("the data never holds more records than the stated public bound",)
_SUBSET = ("every batch is a uniform subset of the stated size, and stays hidden",)
_ONE_BIN = ("in every epoch each record joins one step, chosen independently of the other records",)
_LOADER = (
    "the loader walks over the records in an order that is secret or does not depend on them, in batches of one size",
    "no batch holds a record twice",
    "under add/remove: no pass gives a record twice or leaves one out, and every pass begins anew",
    "neither the presence nor the contents of a record decide how the others are batched, but for one exchange a batch",
)

_HISTORY = ("the noise of earlier steps, and the keys that it is drawn from, are never published",)
_PATTERN = (
    "neighbours differ in the contributions of one record only, in as many steps and as far apart as the plan says",
)
_EACH_EPOCH = ("neighbours differ in one record, which joins at most one step of every epoch",)
_PARTS = ("each record belongs to one part for the whole run, by a draw that is independent of the other records",)

_GAUSSIAN = Rule(_BOTH, sampled.whitened_mu)

RULES: dict[type[events.Event], Rule] = {
    events.Gaussian: _GAUSSIAN,
    events.CountQuery: _GAUSSIAN,
    events.SelectionQuery: _GAUSSIAN,
    events.Queries: _GAUSSIAN,
    events.ProjectedGaussian: Rule(_BOTH, sampled.noiseless_mu, sampled.poisson_pld, sampled.poisson_rdp, _FRESH),
    events.PoissonSampled: Rule(_ADD_REMOVE, sampled.poisson_mu, sampled.poisson_pld, sampled.poisson_rdp, _POISSON),
    events.GroupPoissonSampled: Rule(
        _ADD_REMOVE, group_sampled.group_mu, group_sampled.group_pld, group_sampled.group_rdp, (*_POISSON, *_CAPPED)
    ),
    events.TruncatedPoissonSampled: Rule(
        _ADD_REMOVE, sampled.noiseless_mu, sampled.truncated_pld, sampled.truncated_rdp, (*_POISSON, *_AT_MOST)
    ),
    events.WithoutReplacement: Rule(
        _REPLACE_ONE, sampled.without_mu, sampled.without_pld, sampled.without_rdp, _SUBSET
    ),
    events.BallsInBinsEpoch: Rule(_BOTH, sampled.balls_mu, assumes=_ONE_BIN),
    events.Unamplified: Rule(_BOTH, sampled.loader_mu, assumes=_LOADER),
    events.ClippedFeedback: Rule(
        _ADD_REMOVE,
        feedback.event_mu,
        feedback.event_pld,
        whole=feedback.event_epsilon,
        composed=True,
        assumes=(
            *_POISSON,
            "the accumulated error starts at zero and is never released",
            "where there is a pre-clip, it bounds every gradient, and both clips are projections on balls",
        ),
    ),
    events.LastIterateRun: Rule(
        _BOTH,
        last_iterate.event_mu,
        last_iterate.event_pld,
        last_iterate.event_rdp,
        whole=last_iterate.event_epsilon,
        assumes=(
            "only the last iterate is seen",
            "every update is Lipschitz with the stated constant, for every batch of either neighbour",
        ),
    ),
    events.CorrelatedRun: Rule(_BOTH, correlated.separated_mu, assumes=(*_HISTORY, *_PATTERN)),
    events.ReshuffledRun: Rule(_REPLACE_ONE, correlated.reshuffled_mu, assumes=(*_HISTORY, *_EACH_EPOCH)),
    events.CyclicPoissonRun: Rule(
        _ADD_REMOVE, assumes=(*_HISTORY, *_POISSON, *_PARTS), blocks=correlated.cyclic_blocks
    ),
    events.BestOfRuns: Rule(
        _BOTH,
        rdp=best_of_runs.event_rdp,
        whole=best_of_runs.event_epsilon,
        assumes=(
            "K, the runs that were not chosen, their scores and their running times stay hidden",
            "every run draws its settings and its randomness independently of the other runs",
        ),
    ),
}


def rule_for(event: events.Event, relation: Neighbouring) -> Rule:
    """The rule of this event. Refuses events and relations without a proof."""
    if isinstance(event, events.LastIterateRun):
        rule_for(event.step, relation)
    if isinstance(event, events.BestOfRuns):
        for inner, _ in itertools.chain.from_iterable(event.candidates):
            if not isinstance(inner, events.NonPrivate):
                rule_for(inner, relation)
    rule = RULES.get(type(event))
    if rule is None:
        remedy = "add its rule and its proof, or charge NonPrivate()"
        check.refuse("an event with a proven bound", f"{event!r}", remedy)
    if relation not in rule.relations:
        proven = " or ".join(sorted(str(r) for r in rule.relations))
        remedy = "choose that relation, or a sampler that is proven for yours"
        check.refuse(f"{event.kind} under {proven}", f"relation={relation}", remedy)
    return rule
