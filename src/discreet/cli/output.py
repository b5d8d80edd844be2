"""What a command tells programs: JSON and exit codes."""

from __future__ import annotations

import json
from typing import Any

from discreet.core.plain import plain

FAILED = 1  # the command did its work, and the answer is bad
BAD_INPUT = 2  # refused before anything was spent
STOPPED = 3  # refused after the run had spent
# From here on as in sysexits.h.
DAMAGED = 65
INTERNAL = 70
NO_MEMORY = 71
FILES = 74
PROCESS_LOST = 75
INTERRUPTED = 130


def emit(answer: dict[str, Any]) -> None:
    """One JSON object; an infinite number is the string "inf"."""
    print(json.dumps(plain(answer), allow_nan=False))
