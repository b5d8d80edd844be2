"""Settings that a comparison uses unless told otherwise, tuned on public benchmark data and never on a user's.

Each method got the same small search on digits: trained on four fifths of its 1437 training records, scored on
the fifth. The 360 test records took no part. docs/comparison.md has the grid and the scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from discreet.core import check
from discreet.methods import METHODS, Method
from discreet.report.values import Setting

TUNED_ON = "digits"


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all methods of a comparison share."""

    model: str
    batch: float
    epochs: int


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One row to be: a method and the settings that it runs with.

    name     names the row and its directory; default: the method
    average  decay of the average of released iterates, whose accuracy then counts; None: the last iterate's
    tuned    whether the settings were searched for, rather than taken from the recipe's defaults
    """

    method: str
    name: str = ""
    parameters: tuple[tuple[str, Setting], ...] = ()
    learning_rate: float
    momentum: float = 0.0
    average: float | None = None
    tuned: bool = False

    def __post_init__(self) -> None:
        check.require(
            self.method in METHODS,
            f"a method of {', '.join(METHODS)}",
            repr(self.method),
            "`discreet methods` describes them",
        )
        check.positive("the optimizer's step size, e.g. 0.5", learning_rate=self.learning_rate)
        if not self.name:
            object.__setattr__(self, "name", self.method)
        safe = self.name.replace("-", "").replace("_", "").replace(".", "")
        check.require(
            safe.isascii() and safe.isalnum() and not self.name.startswith("."),
            "a name of letters, digits, dots and hyphens",
            repr(self.name),
            "it names a directory",
        )


SETUPS: Mapping[str, Setup] = MappingProxyType(
    {
        "digits": Setup(model="cnn-digits", batch=360, epochs=30),
        "fashion-mnist": Setup(model="cnn-small", batch=2048, epochs=15),
        "mnist": Setup(model="cnn-small", batch=2048, epochs=15),
        "cifar10": Setup(model="cnn-550k", batch=2048, epochs=10),
        "adult": Setup(model="logistic", batch=1024, epochs=10),
    }
)
OWN_DATA = Setup(model="mlp", batch=256, epochs=20)

TUNED: Mapping[str, Candidate] = MappingProxyType(
    {
        candidate.method: candidate
        for candidate in (
            Candidate(method="dp-sgd", parameters=(("clip", 1.0),), learning_rate=1.0, tuned=True),
            Candidate(method="dp-adam", parameters=(("clip", 1.0),), learning_rate=0.01, tuned=True),
            Candidate(method="auto-s", parameters=(("gamma", 0.01),), learning_rate=1.0, tuned=True),
            Candidate(method="psac", parameters=(("r", 0.1),), learning_rate=1.0, tuned=True),
            Candidate(method="per-layer", parameters=(("clip", 1.0),), learning_rate=1.0, tuned=True),
            Candidate(method="adaptive-quantile", parameters=(("clip", 1.0),), learning_rate=1.0, tuned=True),
        )
    }
)


def setup(data: str) -> Setup:
    """The shared settings for a dataset; an unknown name is the user's own file."""
    return SETUPS.get(data, OWN_DATA)


def candidate(method: Method) -> Candidate:
    """The method's tuned settings; a method without any runs with its recipe's own."""
    usual = 0.01 if method.adam else 0.5
    return TUNED.get(method.name, Candidate(method=method.name, learning_rate=usual))


def candidates(names: Iterable[str] | None = None) -> tuple[Candidate, ...]:
    """The chosen methods with their settings; by default every method that has a certificate.

    >>> [one.method for one in candidates(["dp-sgd"])]
    ['dp-sgd']
    """
    chosen = [m.name for m in METHODS.values() if m.certified] if names is None else list(names)
    for name in chosen:
        check.require(
            name in METHODS, f"methods of {', '.join(METHODS)}", repr(name), "`discreet methods` describes them"
        )
        check.require(
            METHODS[name].certified,
            "methods with a certificate",
            f"{name}: {METHODS[name].guarantee}",
            "leave it out: without a certificate there is no budget to compare at",
        )
    return tuple(candidate(METHODS[name]) for name in dict.fromkeys(chosen))
