"""The analysis of runs with correlated noise. Proofs: docs/proofs/CorrelatedRun.md and its neighbours."""

from dataclasses import dataclass
from typing import ClassVar, final

from discreet.accounting.events import Event
from discreet.core import check
from discreet.methods.dp_ftrl.correlated_noise import CorrelatedNoise, Factorisation
from discreet.stages.analysis import Analysis
from discreet.stages.combination import TakeFirst
from discreet.stages.participation import Participation
from discreet.stages.pipeline import Pipeline
from discreet.stages.plan import Plan
from discreet.stages.schedule import Constant
from discreet.stages.selection import Everything


@final
@dataclass(frozen=True)
class CorrelatedAnalysis(Analysis):
    """Charges the run with one event before its first release, because every release uses the noise of earlier ones.

    Guarantee: the epsilon of all releases together. A run that ends early has spent as much as the whole run.
    """

    visible: ClassVar[bool] = True
    composes: ClassVar[bool] = False

    def check(self, stages: Pipeline) -> None:
        """Refuse what the proof does not cover: other queries, changing clips, masks and noise schedules."""
        remedy = "use the stages of methods.dp_ftrl(...): the proof covers no others"
        for stage, kinds in (
            (stages.mechanism, (CorrelatedNoise, Factorisation)),
            (stages.schedule, (Constant,)),
            (stages.selection, (Everything,)),
            (stages.combination, (TakeFirst,)),
        ):
            expected = " or ".join(kind.__name__ for kind in kinds)
            check.require(isinstance(stage, kinds), expected, type(stage).__name__, remedy)
        sampler = type(stages.sampling).__name__
        fits = isinstance(stages.sampling, Participation)
        steps = "use FixedBins, CyclicPoisson, FixedOrder, Reshuffled or OnePass: they bound where a record comes back"
        check.require(fits, "a sampler for correlated noise", sampler, steps)
        bounder, queries = stages.bounder, stages.bounder.vectors(1.0)
        alone = len(queries) == 1 and queries[0].share == 1 and queries[0].sigma is None and not bounder.scalars()
        expected = "a bounder with one query and a clip that stays the same"
        check.require(alone and not bounder.public_records, expected, type(bounder).__name__, remedy)

    def whole_run(self, plan: Plan) -> Event:
        assert isinstance(plan.sampling, Participation)
        assert isinstance(plan.mechanism, CorrelatedNoise)
        return plan.sampling.correlated(plan.mechanism.matrix, plan.noise, plan.horizon)

    def assumptions(self, plan: Plan) -> tuple[str, ...]:
        assert isinstance(plan.sampling, Participation)
        return plan.sampling.assumptions
