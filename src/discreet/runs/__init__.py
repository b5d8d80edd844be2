"""Runs: from a config to a run directory with a model, a ledger and a privacy statement."""

from discreet.runs.config import OPTIMIZERS, SAMPLERS, RunConfig
from discreet.runs.defaults import DEFAULTS, complete, plan_of
from discreet.runs.folder import RunFolder
from discreet.runs.results import RunProgress, RunResult
from discreet.runs.training import load_config, load_result, train

__all__ = [
    "DEFAULTS",
    "OPTIMIZERS",
    "SAMPLERS",
    "RunConfig",
    "RunFolder",
    "RunProgress",
    "RunResult",
    "complete",
    "load_config",
    "load_result",
    "plan_of",
    "train",
]
