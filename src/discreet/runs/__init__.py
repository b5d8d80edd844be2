"""Runs: from a config to a run directory with a model, a ledger and a privacy statement."""

from typing import TYPE_CHECKING

from discreet.core.lazy import lazy

if TYPE_CHECKING:
    from discreet.runs.config import OPTIMIZERS, SAMPLERS, RunConfig
    from discreet.runs.defaults import complete, plan_of
    from discreet.runs.folder import RunFolder
    from discreet.runs.presets import DEFAULTS, PRESETS
    from discreet.runs.results import RunOutline, RunProgress, RunResult
    from discreet.runs.training import load_config, load_result, train

__all__ = ["DEFAULTS", "OPTIMIZERS", "PRESETS", "SAMPLERS", "RunConfig", "RunFolder", "RunOutline", "RunProgress"]
__all__ += ["RunResult", "complete", "load_config", "load_result", "plan_of", "train"]

_NAMES = {
    "config": ("OPTIMIZERS", "SAMPLERS", "RunConfig"),
    "defaults": ("complete", "plan_of"),
    "folder": ("RunFolder",),
    "presets": ("DEFAULTS", "PRESETS"),
    "results": ("RunOutline", "RunProgress", "RunResult"),
    "training": ("load_config", "load_result", "train"),
}

__getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names})
