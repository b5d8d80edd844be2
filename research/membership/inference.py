"""Membership inference against a training run: shadow models, a classifier, likelihood ratios (arXiv 2502.17772, D.2).

All records of a task, train and test, are split once into candidates for the target models and a pool for the shadow
models. Each target model is trained on about half of the candidates, each included by a fair coin; each shadow model on
a random part of the pool. On the shadow models, a two-layer classifier learns to separate members from non-members by
the model's outputs. Then it is applied to the candidates.

The result has four numbers with different meanings:
    estimate     Eq. 20 of the paper, from the false positive and false negative rates: NOT a bound
    lower_bound  the bound that the guesses prove at stated confidence (`one_run`)
    auc          of the attack's scores, and advantage, the largest difference of its rates
    lira         the same area for likelihood ratios per example (Carlini et al. 2022, offline)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from scipy import stats
from sklearn import metrics
from torch import Tensor

from discreet.auditing.bounds import CONFIDENCE, Flags, Floats, guess
from discreet.auditing.trainings import OnStep
from discreet.core import check
from discreet.core.plain import plain
from discreet.core.relation import Neighbouring
from research.membership.attack import AttackClassifier, attack_features
from research.membership.shadows import Outputs, RecordSplit, load_whole, seeded, setup_on, shadow, target

if TYPE_CHECKING:
    from discreet.runs import RunConfig
    from discreet.stages.plan import Plan

_COINS = 1000  # the theorem adds a term for each coin: more of them prove less at a given delta


@final
@dataclass(frozen=True, kw_only=True)
class Membership:
    """The result of membership inference over all target models.

    estimate              ESTIMATE of epsilon by Eq. 20; `spread` its standard error over target models
    lower_bound           a lower bound on epsilon, wrong with probability at most 1 - confidence
    false_positive, false_negative   rates of the attack classifier
    auc, advantage        of its scores: 0.5 and 0 are a coin
    lira_auc              of likelihood ratios per example
    scores, lira_scores, members     per candidate, target models one after the other
    """

    estimate: float
    spread: float | None
    lower_bound: float
    confidence: float
    delta: float
    false_positive: float
    false_negative: float
    auc: float
    advantage: float
    lira_auc: float
    step: int
    shadows: int
    targets: int
    scores: Floats = dataclasses.field(repr=False)
    lira_scores: Floats = dataclasses.field(repr=False)
    members: Flags = dataclasses.field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, without the scores."""
        left_out = ("scores", "lira_scores", "members")
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in left_out}


def membership(
    config: RunConfig,
    *,
    shadows: int = 10,
    seeds: Sequence[int | None] = (None,),
    size: int | None = None,
    confidence: float = CONFIDENCE,
    on_step: OnStep | None = None,
) -> Membership:
    """Membership inference against the final models of a run: see `membership_course`."""
    course = membership_course(config, shadows=shadows, seeds=seeds, size=size, confidence=confidence, on_step=on_step)
    return course[-1]


def membership_course(
    config: RunConfig,
    *,
    shadows: int = 10,
    seeds: Sequence[int | None] = (None,),
    size: int | None = None,
    at: Sequence[int] = (),
    confidence: float = CONFIDENCE,
    on_step: OnStep | None = None,
) -> tuple[Membership, ...]:
    """Membership inference against the iterates after the steps `at` (default: the last one), in their order.

    shadows  number of shadow models on which the attack is trained
    seeds    of the target models; None: randomness of the operating system
    size     expected number of training records of a model, a quarter of all that there are by default; it is the
             public number of records, so a budget in the config is planned for it

    Earlier iterates are attacked even if the plan is certified for the final parameters only.
    """
    check.count("the attack is trained on shadow models", least=2, shadows=shadows)
    check.require(len(seeds) > 0, "at least one target model", "none", "give seeds, e.g. (0, 1, 2)")
    split = RecordSplit.of(load_whole(config), size)
    setup = setup_on(dataclasses.replace(config, records=None), split)
    steps = tuple(sorted(at)) or (setup.plan.horizon.steps,)
    check.require(
        steps[0] >= 1 and steps[-1] <= setup.plan.horizon.steps,
        f"steps between 1 and {setup.plan.horizon.steps}",
        steps,
        "name steps of the run",
    )
    each = setup.plan.horizon.steps
    total = (shadows + len(seeds)) * each

    def after(trained: int) -> OnStep | None:
        """Progress over all trainings, of which so many have ended."""
        return None if on_step is None else lambda step, _: on_step(trained * each + step, total)

    seen = [shadow(setup, split, number, steps, after(number)) for number in range(shadows)]
    hit = [
        target(seeded(setup, seed), split, number, steps, after(shadows + number)) for number, seed in enumerate(seeds)
    ]
    return tuple(
        _attack(step, [one[place] for one in seen], [one[place] for one in hit], split, setup.plan, confidence)
        for place, step in enumerate(steps)
    )


def estimate(*, false_positive: float, false_negative: float, delta: float, records: int) -> float:
    """ESTIMATE of epsilon, Eq. 20 of the paper: the larger of two logarithms.

    A rate of zero counts as half a record of `records`; otherwise the estimate would be infinite.

    >>> round(estimate(false_positive=0.3, false_negative=0.4, delta=1e-5, records=1000), 4)
    0.6931
    """
    least = 0.5 / records
    rates = max(false_positive, least), max(false_negative, least)
    found = [
        math.log(gain / other)
        for gain, other in ((1 - delta - rates[0], rates[1]), (1 - delta - rates[1], rates[0]))
        if gain > 0
    ]
    return max(found, default=0.0)


# -- the attack -------------------------------------------------------------------------------------------------


def _attack(
    step: int, shadows: Sequence[Outputs], targets: Sequence[Outputs], split: RecordSplit, plan: Plan, confidence: float
) -> Membership:
    attack, delta = AttackClassifier(), plan.delta
    attack.learn(
        torch.cat([attack_features(seen.answers, seen.labels) for seen in shadows]),
        torch.from_numpy(np.concatenate([seen.members for seen in shadows])),
    )
    scores = [attack.scores(attack_features(seen.answers, seen.labels)).numpy() for seen in targets]
    rates = [
        (float((score[~seen.members] > 0).mean()), float((score[seen.members] <= 0).mean()))
        for score, seen in zip(scores, targets, strict=True)
    ]
    estimates = [estimate(false_positive=fp, false_negative=fn, delta=delta, records=split.size) for fp, fn in rates]
    labels = split.candidates[1]
    lira = [_lira(seen, shadows, labels) for seen in targets]
    members = np.concatenate([seen.members for seen in targets])
    joined, ratios = np.concatenate(scores), np.concatenate(lira)
    spread = float(np.std(estimates, ddof=1) / math.sqrt(len(estimates))) if len(estimates) > 1 else None
    return Membership(
        estimate=float(np.mean(estimates)),
        spread=spread,
        lower_bound=_proven([_joint(*pair) for pair in zip(scores, lira, strict=True)], targets, plan, confidence),
        confidence=confidence,
        delta=delta,
        false_positive=float(np.mean([fp for fp, _ in rates])),
        false_negative=float(np.mean([fn for _, fn in rates])),
        auc=auc(joined, members),
        advantage=float(stats.ks_2samp(joined[members], joined[~members]).statistic),
        lira_auc=auc(ratios, members),
        step=step,
        shadows=len(shadows),
        targets=len(targets),
        scores=joined,
        lira_scores=ratios,
        members=members,
    )


def _joint(scores: Floats, lira: Floats) -> Floats:
    """Both attacks combined: the sum of a candidate's ranks."""
    return np.asarray(stats.rankdata(scores) + stats.rankdata(lira))


def _proven(scores: list[Floats], targets: Sequence[Outputs], plan: Plan, confidence: float) -> float:
    """The bound from the coins of candidates that are fixed in advance; the other coins are part of the data.

    Targets are trained separately with coins of their own: together they are one run with all coins.
    """
    coins = [seen.members for seen in targets]
    if plan.relation is Neighbouring.REPLACE_ONE:  # a coin chose one of two candidates
        half = len(scores[0]) // 2
        scores = [score[:half] - score[half:] for score in scores]
        coins = [members[:half] for members in coins]
    joined, there = np.concatenate(scores), np.concatenate(coins)
    chosen = np.random.default_rng(len(joined)).permutation(len(joined))[:_COINS]
    return guess(joined[chosen], there[chosen]).epsilon(plan.delta, confidence)


def _lira(target: Outputs, shadows: Sequence[Outputs], labels: Tensor) -> Floats:
    """How far the target's confidence in a candidate exceeds that of models without it, in standard deviations.

    Confidence is ln(p / (1 - p)), which is near Gaussian. No shadow saw a candidate, so all of them count; one
    variance serves all candidates, since there are few shadows (Carlini et al. 2022, section VI).
    """
    outside = np.stack([_confidence(seen.on_candidates, labels) for seen in shadows])
    spread = math.sqrt(float(outside.var(0, ddof=1).mean())) or 1.0
    return np.asarray((_confidence(target.on_candidates, labels) - outside.mean(0)) / spread)


def _confidence(answers: Tensor, labels: Tensor) -> Floats:
    own = answers.gather(1, labels.unsqueeze(1)).squeeze(1)
    others = answers.scatter(1, labels.unsqueeze(1), -math.inf).logsumexp(1)
    return np.asarray((own - others).numpy())


def auc(scores: Floats, members: Flags) -> float:
    """The probability that a member scores above a non-member, counting ties as one half.

    >>> auc(np.array([1.0, 2.0, 2.0]), np.array([False, True, False]))
    0.75
    """
    if members.all() or not members.any():
        return math.nan
    return float(metrics.roc_auc_score(members, scores))
