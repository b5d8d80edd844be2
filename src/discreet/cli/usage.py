"""Command lines that cannot be parsed, in our own words."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

SYNONYMS: Final = MappingProxyType(
    {
        "--lr": "--learning-rate",
        "--eps": "--epsilon",
        "--target-epsilon": "--epsilon",
        "--target-delta": "--delta",
        "--noise-multiplier": "--noise",
        "--sigma": "--noise",
        "--max-grad-norm": "--clip",
        "--l2-norm-clip": "--clip",
        "--batch-size": "--batch",
        "--bs": "--batch",
        "--max-physical-batch-size": "--micro-batch",
        "--dataset": "--data",
        "--target": "--label",
        "--output": "--out",
        "--optim": "--optimizer",
        "--ema": "--average",
        "--n": "--records",
        "--sample-rate": "--rate",
        "--num-epochs": "--epochs",
    }
)
"""What other programs call our flags."""


def sentence(error: Any, words: list[str], commands: Iterable[str], program: str) -> str:
    """One line that says what was expected, what came and what to do."""
    message = error.format_message().rstrip(".")
    command = next((f"{program} {word}" for word in words if word in commands), program)
    known = _options(error)
    see = f"see `{command} --help`"
    if found := re.match(r"No such option:? '?([^\s'.]+)", message):
        return f"Expected a flag of `{command}`, got {found[1]}. Remedy: {_instead(found[1], known) or see}."
    if found := re.match(r"No such command '([^']*)'", message):
        close = get_close_matches(found[1], list(commands), n=1)
        remedy = f"the nearest is `{program} {close[0]}`" if close else f"`{program} --help` lists them"
        return f"Expected a command of {program}, got {found[1]!r}. Remedy: {remedy}."
    if found := re.match(r"Option '(\S+)' requires an argument", message):
        return f"Expected a value after {found[1]}, got none. Remedy: give it, or {see}."
    if found := re.match(r"Invalid value for '([^']+)'(?: / '[^']+')*: (.*)", message):
        return f"Expected {found[1]} to be {_kind(found[2])}, got {_value(found[1], words)}. Remedy: {see}."
    if found := re.match(r"Missing argument '([^']+)'", message):
        return f"Expected {found[1]}, got none. Remedy: add it; {see}."
    if found := re.match(r"Got unexpected extra argument\S* \((.*)\)", message):
        return f"Expected flags that start with --, got {found[1]!r} by itself. Remedy: {see}."
    return f"Expected flags and values that `{command}` takes, got: {message}. Remedy: {see}."


def _options(error: Any) -> list[str]:
    """The flags of the command that was called."""
    context = getattr(error, "ctx", None)
    return [] if context is None else [name for parameter in context.command.params for name in parameter.opts]


def _instead(name: str, known: list[str]) -> str:
    """The flag that was probably meant."""
    meant = SYNONYMS.get(name.lower())
    if meant in known:
        return f"the flag is {meant}"
    close = get_close_matches(name, known, n=1)
    return f"the nearest flag is {close[0]}" if close else ""


_KINDS = {"number": "a number", "integer": "a whole number", "boolean": "yes or no"}


def _kind(told: str) -> str:
    """What a value should have been."""
    if found := re.search(r"is not one of (.*)", told):
        return f"one of {found[1].replace(chr(39), '')}"
    found = re.search(r"should be a valid (\w+)", told)
    return _KINDS.get(found[1], found[1]) if found else f"what it takes ({told})"


def _value(flag: str, words: list[str]) -> str:
    """What was given for a flag."""
    joined = next((word.partition("=")[2] for word in words if word.startswith(f"{flag}=")), None)
    after = words[words.index(flag) + 1 :] if flag in words else []
    given = joined if joined is not None else next(iter(after), None)
    return "another value" if given is None else repr(given)
