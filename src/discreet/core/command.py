"""The command that this process carries out, for the provenance of what it writes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def command_line() -> str:
    """The command as it was typed, without the folder of its program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
