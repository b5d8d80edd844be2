"""Train PyTorch models with differential privacy, and tell the truth about epsilon.

Names are loaded when they are first used, so that accounting starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Neighbouring": "discreet.core.relation",
    "Plan": "discreet.stages.plan",
    "Private": "discreet.training.private",
    "Refused": "discreet.core.check",
    "fix": "discreet.engine.fix",
    "statement": "discreet.runs.statement",
}

__all__ = [*_HOME, "__version__"]

if TYPE_CHECKING:
    from discreet.core.check import Refused as Refused
    from discreet.core.relation import Neighbouring as Neighbouring
    from discreet.engine.fix import fix as fix
    from discreet.runs.statement import statement as statement
    from discreet.stages.plan import Plan as Plan
    from discreet.training.private import Private as Private


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
