"""The settings that a search draws from: public, independent of the records."""

import dataclasses
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self, final

from discreet.core import check
from discreet.methods import METHODS
from discreet.runs.config import RunConfig

Setting = float | int | str | bool
_EXAMPLE = "e.g. --space learning_rate=0.1..10 --space clip=0.1,1 --space batch=512,1024"

_PLANNED: Final = ("method", "batch", "epochs", "steps")  # they decide the cost of a run
_TRAINED: Final = MappingProxyType({"learning_rate": float, "momentum": float, "weight_decay": float, "average": float})
OPTIMIZER: Final = "optimizer"


@final
@dataclass(frozen=True)
class Choices:
    """One of these values, each with the same probability."""

    values: tuple[Setting, ...]

    def __post_init__(self) -> None:
        check.require(len(self.values) > 0, "at least one value", "none", _EXAMPLE)

    @property
    def ends(self) -> tuple[Setting, ...]:
        """Draws between which all others lie."""
        return self.values

    def draw(self, uniform: float) -> Setting:
        return self.values[int(uniform * len(self.values))]


@final
@dataclass(frozen=True)
class LogRange:
    """A number between `low` and `high`, uniform in its logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check.positive("a range is low..high of positive numbers", low=self.low, high=self.high)
        check.require(self.low < self.high, "low < high", f"{self.low}..{self.high}", _EXAMPLE)

    @property
    def ends(self) -> tuple[Setting, ...]:
        """Draws between which all others lie; rounding may take them out of the range."""
        return self.draw(0.0), self.draw(math.nextafter(1.0, 0.0))

    def draw(self, uniform: float) -> Setting:
        return float(f"{self.low * (self.high / self.low) ** uniform:.4g}")


Axis = Choices | LogRange


@final
@dataclass(frozen=True)
class Space:
    """Names of settings with the values that they may take.

    >>> space = Space.parse(["learning_rate=0.1..10", "clip=0.1,1", "batch=512,1024"])
    >>> space.draw([0.5, 0.0, 0.99])
    {'learning_rate': 1.0, 'clip': 0.1, 'batch': 1024}
    """

    axes: tuple[tuple[str, Axis], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        check.require(len(names) == len(set(names)) > 0, "different settings, at least one", f"{names}", _EXAMPLE)
        check.require(not {"epochs", "steps"} <= set(names), "epochs or steps", "both", "search one of the two")
        for name, axis in self.axes:
            fits = name in _TRAINED or isinstance(axis, Choices)
            remedy = f"list its values, as {name}=1,2: they may change the cost, so each of them is planned for"
            check.require(fits, f"a range for {' or '.join(_TRAINED)} only", f"a range for {name}", remedy)

    @classmethod
    def of(cls, axes: Mapping[str, Sequence[Setting] | Axis]) -> Self:
        """From a mapping: a sequence of values, or a `LogRange`."""
        given = {name: axis if isinstance(axis, Axis) else Choices(tuple(axis)) for name, axis in axes.items()}
        return cls(tuple(given.items()))

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """From the words of a command line."""
        return cls(tuple(_parsed(text) for text in texts))

    def draw(self, uniforms: Sequence[float]) -> dict[str, Setting]:
        """One setting for each name, from numbers in [0, 1)."""
        return {name: axis.draw(uniform) for (name, axis), uniform in zip(self.axes, uniforms, strict=True)}

    def planned(self) -> Iterator[dict[str, Setting]]:
        """Every combination of the settings that may change the cost of a run."""
        axes = [(name, axis.values) for name, axis in self.axes if isinstance(axis, Choices) and not _is_trained(name)]
        for values in itertools.product(*(values for _, values in axes)):
            yield dict(zip((name for name, _ in axes), values, strict=True))

    def check_against(self, config: RunConfig) -> None:
        """Refuse values that no run takes, and a range for a setting that a searched method's certificate depends on.

        After the charge, such values would lose the search, and its failure would tell what was drawn.
        """
        for name, axis in self.axes:
            for value in axis.ends if _is_trained(name) else ():
                applied(config, {name: value})
        methods = dict(self.axes).get("method", Choices((config.method,)))
        for name, axis in self.axes:
            for method in methods.values if isinstance(methods, Choices) else ():
                _certified(method)
                takes = name in inspect.signature(METHODS[str(method)].recipe).parameters
                fits = not (takes and name in _TRAINED)
                remedy = "search methods whose certificate does not depend on the optimizer"
                check.require(fits, f"{method} with a fixed {name}, which its certificate uses", f"{axis}", remedy)

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"low": axis.low, "high": axis.high} if isinstance(axis, LogRange) else list(axis.values)
            for name, axis in self.axes
        }


def _is_trained(name: str) -> bool:
    return name in _TRAINED or name == OPTIMIZER


def _certified(method: Setting) -> None:
    known = [name for name, one in METHODS.items() if one.certified]
    check.require(method in known, f"a method with a certificate ({', '.join(known)})", f"{method!r}", "choose these")


def applied(config: RunConfig, settings: Mapping[str, Setting]) -> RunConfig:
    """The run with these settings; names that are no settings of a run are parameters of its method."""
    fields = {name: value for name, value in settings.items() if name in _PLANNED or _is_trained(name)}
    if "epochs" in fields or "steps" in fields:
        fields = {"epochs": None, "steps": None, **fields}  # type: ignore[dict-item]
    parameters = {**dict(config.parameters), **{k: v for k, v in settings.items() if k not in fields}}
    return dataclasses.replace(config, **fields, parameters=tuple(sorted(parameters.items())))  # type: ignore[arg-type]


def _parsed(text: str) -> tuple[str, Axis]:
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    check.require(bool(name and equals and values), "--space NAME=VALUES", repr(text), _EXAMPLE)
    if ".." in values:
        low, _, high = values.partition("..")
        try:
            return name, LogRange(float(low), float(high))
        except ValueError as error:
            if isinstance(error, check.Refused):
                raise
            check.refuse("two numbers low..high", repr(values), _EXAMPLE)
    return name, Choices(tuple(_value(word.strip()) for word in values.split(",")))


def _value(word: str) -> Setting:
    for kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            continue
        check.require(math.isfinite(value), "finite numbers", word, _EXAMPLE)
        return value
    return {"true": True, "false": False}.get(word, word)
