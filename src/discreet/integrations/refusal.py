"""Refusals of the integrations: what was expected, what came, what to do."""

from typing import NoReturn

import discreet


def refuse(expected: str, got: object, remedy: str) -> NoReturn:
    raise discreet.Refused(f"Expected {expected}, got {got}. Remedy: {remedy}.")


def require(condition: bool, expected: str, got: object, remedy: str) -> None:
    if not condition:
        refuse(expected, got, remedy)
