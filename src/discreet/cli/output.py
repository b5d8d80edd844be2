"""What a command writes to standard output for programs."""

from __future__ import annotations

import json
from typing import Any

from discreet.core.plain import plain


def emit(answer: dict[str, Any]) -> None:
    """One JSON object; an infinite number is the string "inf"."""
    print(json.dumps(plain(answer), allow_nan=False))
