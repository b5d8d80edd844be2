"""`discreet train`, `discreet resume` and `discreet compare`: private training from the command line."""

from __future__ import annotations

from discreet.cli.plans import JsonFlag


def train(as_json: JsonFlag = False) -> int:
    """Train."""
    return 0


def resume(as_json: JsonFlag = False) -> int:
    """Resume."""
    return 0


def compare(as_json: JsonFlag = False) -> int:
    """Compare."""
    return 0
