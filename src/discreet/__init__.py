"""Train PyTorch models with differential privacy, and tell the truth about epsilon.

Names are loaded when they are first used, so that accounting starts without torch.
"""

from typing import TYPE_CHECKING

from discreet.core.lazy import lazy

__version__ = "0.1.0"

_HOME = {
    "BallsInBins": "discreet.stages.sampling",
    "CappedRecords": "discreet.stages.unit",
    "CyclicPoisson": "discreet.stages.participation",
    "FixedBins": "discreet.stages.participation",
    "FixedOrder": "discreet.stages.participation",
    "FixedSize": "discreet.stages.sampling",
    "FullBatch": "discreet.stages.sampling",
    "Budget": "discreet.runs.budget",
    "BudgetLimit": "discreet.runs.budget",
    "GridNoise": "discreet.stages.grid_noise",
    "Horizon": "discreet.stages.sampling",
    "LogRange": "discreet.runs.tuning.space",
    "Neighbouring": "discreet.core.relation",
    "OnePass": "discreet.stages.participation",
    "OwnLoader": "discreet.stages.sampling",
    "Plan": "discreet.stages.plan",
    "Poisson": "discreet.stages.sampling",
    "Private": "discreet.training.private",
    "PrivateRounds": "discreet.training.federated.rounds",
    "ProcessLost": "discreet.core.errors",
    "Recipe": "discreet.stages.plan",
    "Refused": "discreet.core.check",
    "Reshuffled": "discreet.stages.participation",
    "RoundTask": "discreet.training.federated.round_task",
    "RunConfig": "discreet.runs.config",
    "SampledUsers": "discreet.stages.unit",
    "Schema": "discreet.data.schema",
    "Streams": "discreet.core.streams",
    "TruncatedPoisson": "discreet.stages.sampling",
    "check": "discreet.training.model_check",
    "data": "discreet.data",
    "features": "discreet.data",
    "fix": "discreet.engine.model.fix",
    "methods": "discreet.methods",
    "own_part": "discreet.training.draws",
    "public": "discreet.engine.public",
    "statement": "discreet.runs.statement",
    "tune": "discreet.runs.tuning.sweep",
}

__all__ = [*_HOME, "__version__"]

if TYPE_CHECKING:
    from discreet import data as data
    from discreet import methods as methods
    from discreet.core.check import Refused as Refused
    from discreet.core.errors import ProcessLost as ProcessLost
    from discreet.core.relation import Neighbouring as Neighbouring
    from discreet.core.streams import Streams as Streams
    from discreet.data import features as features
    from discreet.data.schema import Schema as Schema
    from discreet.engine.model.fix import fix as fix
    from discreet.engine.public import public as public
    from discreet.runs.budget import Budget as Budget
    from discreet.runs.budget import BudgetLimit as BudgetLimit
    from discreet.runs.config import RunConfig as RunConfig
    from discreet.runs.statement import statement as statement
    from discreet.runs.tuning.space import LogRange as LogRange
    from discreet.runs.tuning.sweep import tune as tune
    from discreet.stages.grid_noise import GridNoise as GridNoise
    from discreet.stages.participation import CyclicPoisson as CyclicPoisson
    from discreet.stages.participation import FixedBins as FixedBins
    from discreet.stages.participation import FixedOrder as FixedOrder
    from discreet.stages.participation import OnePass as OnePass
    from discreet.stages.participation import Reshuffled as Reshuffled
    from discreet.stages.plan import Plan as Plan
    from discreet.stages.plan import Recipe as Recipe
    from discreet.stages.sampling import BallsInBins as BallsInBins
    from discreet.stages.sampling import FixedSize as FixedSize
    from discreet.stages.sampling import FullBatch as FullBatch
    from discreet.stages.sampling import Horizon as Horizon
    from discreet.stages.sampling import OwnLoader as OwnLoader
    from discreet.stages.sampling import Poisson as Poisson
    from discreet.stages.sampling import TruncatedPoisson as TruncatedPoisson
    from discreet.stages.unit import CappedRecords as CappedRecords
    from discreet.stages.unit import SampledUsers as SampledUsers
    from discreet.training.draws import own_part as own_part
    from discreet.training.federated.round_task import RoundTask as RoundTask
    from discreet.training.federated.rounds import PrivateRounds as PrivateRounds
    from discreet.training.model_check import check as check
    from discreet.training.private import Private as Private


__getattr__, __dir__ = lazy(__name__, _HOME)
