"""The rows of a comparison: methods with the settings they run with.

Tuned settings were found on public benchmark data, so they cost no privacy: by a small search on digits, trained on
four fifths of its 1437 training records and scored on the rest. The 360 test records were not used. docs/comparison.md
has the grid and the scores. Comments mark rows that were not searched. Datasets without rows use the defaults of a run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from discreet.core import check
from discreet.methods import METHODS
from discreet.runs.comparison.values import Setting

_LISTED = "`discreet methods` describes them"
_NO_BUDGET = "without a certificate there is no budget to compare at"


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method and its settings; None means the default of the dataset.

    name     names the row and its directory; default: the method
    average  decay of the average of released iterates, whose accuracy then counts; 0: no average
    given    whether the user chose the settings; otherwise they were chosen on public data
    """

    method: str
    name: str = ""
    parameters: tuple[tuple[str, Setting], ...] = ()
    learning_rate: float | None = None
    momentum: float | None = None
    average: float | None = None
    given: bool = False

    def __post_init__(self) -> None:
        check.require(self.method in METHODS, f"a method of {', '.join(METHODS)}", repr(self.method), _LISTED)
        method, remedy = METHODS[self.method], f"remove it: {_NO_BUDGET}"
        check.require(method.certified, "methods with a certificate", f"{method.name}: {method.guarantee}", remedy)
        if not self.name:
            object.__setattr__(self, "name", self.method)
        letters = self.name.replace("-", "").replace("_", "").replace(".", "")
        is_name = letters.isascii() and letters.isalnum() and self.name[0] != "." and self.name != SET_ASIDE
        expected = f"a name of letters, digits, dots and hyphens, not {SET_ASIDE}"
        check.require(is_name, expected, repr(self.name), "it names a directory")


SET_ASIDE = "superseded"  # the directory for earlier runs whose settings differ


def _row(method: str, learning_rate: float | None = None, **parameters: Setting) -> Candidate:
    return Candidate(method=method, parameters=tuple(parameters.items()), learning_rate=learning_rate)


_DIGITS = (
    _row("dp-sgd", 16.0, clip=0.05),
    _row("dp-adam", 0.015, clip=0.05),
    _row("auto-s", 0.8, gamma=0.01),
    _row("psac", 0.8, r=0.5),
    _row("per-layer", 16.0, clip=0.05),
    _row("adaptive-quantile", 0.8, clip=0.5, quantile=0.2, rate=0.02),
    # Not searched: the clip that DP-SGD's search found, for methods that clip likewise.
    *(_row(method, clip=0.05) for method in ("sur", "polar", "geodp-sound", "dpsgd-dc", "dpsgd-gc")),
    _row("two-level", clip=0.05, residual=0.2),
)
# Not searched: with 40 cooling epochs, freezing would not start in a short run.
_FASHION = tuple(_row(method, final_rate=0.5, cooling_epochs=4) for method in ("random-freeze", "ranked-freeze"))

TUNED: Mapping[str, Mapping[str, Candidate]] = MappingProxyType(
    {name: {row.method: row for row in rows} for name, rows in (("digits", _DIGITS), ("fashion-mnist", _FASHION))}
)
"""Settings by dataset and method."""


def candidates(data: str, names: Iterable[str] | None = None) -> tuple[Candidate, ...]:
    """The chosen methods with their settings for `data`; by default every method that has a certificate.

    Chosen methods without a certificate are left out: a comparison lists them as not comparable.

    >>> [row.name for row in candidates("digits", ["psac", "dp-sgd"])]
    ['psac', 'dp-sgd']
    """
    certified = (method.name for method in METHODS.values() if method.certified)
    chosen = dict.fromkeys(certified if names is None else names)
    tuned = TUNED.get(data, {})
    rows = [name for name in chosen if name not in METHODS or METHODS[name].certified]
    check.require(bool(rows), "at least one method with a certificate", ", ".join(chosen) or "none", _NO_BUDGET)
    return tuple(tuned[name] if name in tuned else Candidate(method=name) for name in rows)
