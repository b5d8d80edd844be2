"""What a command tells programs: JSON and exit codes."""

from __future__ import annotations

import json
from typing import Any

from discreet.core.plain import plain

FAILED = 1
BAD_INPUT = 2
INTERNAL = 70  # as in sysexits.h
INTERRUPTED = 130


def emit(answer: dict[str, Any]) -> None:
    """One JSON object; an infinite number is the string "inf"."""
    print(json.dumps(plain(answer), allow_nan=False))
