"""Runs: from a config to a run directory with a model, a ledger and a privacy statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.core.lazy import lazy

if TYPE_CHECKING:
    from discreet.runs.config import OPTIMIZERS as OPTIMIZERS
    from discreet.runs.config import SAMPLERS as SAMPLERS
    from discreet.runs.config import RunConfig as RunConfig
    from discreet.runs.defaults import DEFAULTS as DEFAULTS
    from discreet.runs.defaults import complete as complete
    from discreet.runs.defaults import plan_of as plan_of
    from discreet.runs.folder import RunFolder as RunFolder
    from discreet.runs.results import RunProgress as RunProgress
    from discreet.runs.results import RunResult as RunResult
    from discreet.runs.training import load_config as load_config
    from discreet.runs.training import load_result as load_result
    from discreet.runs.training import train as train

_HOME = {
    "DEFAULTS": "discreet.runs.defaults",
    "OPTIMIZERS": "discreet.runs.config",
    "SAMPLERS": "discreet.runs.config",
    "RunConfig": "discreet.runs.config",
    "RunFolder": "discreet.runs.folder",
    "RunProgress": "discreet.runs.results",
    "RunResult": "discreet.runs.results",
    "complete": "discreet.runs.defaults",
    "load_config": "discreet.runs.training",
    "load_result": "discreet.runs.training",
    "plan_of": "discreet.runs.defaults",
    "train": "discreet.runs.training",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME)
