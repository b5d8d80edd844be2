"""The two sources of randomness, as ledgers, results and statements name them."""

from typing import Final

SEEDED: Final = "seeded: not private"
"""Whoever knows the seed can compute the noise. Epsilon is then what the same run has with secret randomness."""

KEYED: Final = "keyed by the operating system"
