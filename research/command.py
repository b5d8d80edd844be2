"""The command that a result file names as its origin."""

from __future__ import annotations

import shlex
import sys


def typed(module: str) -> str:
    """The command of this process as a user types it in the repository's root."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])
