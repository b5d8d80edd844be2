"""The two ways in which a run is keyed, in the words of every ledger, result and statement."""

from __future__ import annotations

from typing import Final

SEEDED: Final = "seeded: not private"
"""Whoever knows the seed can compute the noise. Epsilon is then what the same run has with secret randomness."""

KEYED: Final = "keyed by the operating system"
