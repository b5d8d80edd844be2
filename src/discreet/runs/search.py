"""A small grid of learning rates and clips around a starting point, for a search on public stand-in data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from discreet.core import check


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """One point of a grid; `clip` None: the method has none."""

    learning_rate: float
    clip: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Grid:
    """Factors on the starting point.

    >>> Grid(rates=(0.5, 1.0), clips=(1.0, 2.0)).around(learning_rate=4.0, clip=0.1)[-1]
    Setting(learning_rate=2.0, clip=0.2)
    """

    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    clips: tuple[float, ...] = (1.0, 4.0)

    def __post_init__(self) -> None:
        for name, factors in (("rates", self.rates), ("clips", self.clips)):
            check.require(len(factors) > 0, f"{name} to hold a factor", "none", "1.0 is the starting point")
            for factor in factors:
                check.positive(f"{name} are factors on the starting point", **{name: factor})

    def around(
        self, *, learning_rate: float, clip: float | None, adaptive: bool = False
    ) -> tuple[Setting, ...]:
        """All points; SGD's rate falls as the clip grows, so that a clipped record moves the model alike.

        adaptive  the optimizer divides by the size of the gradient, as Adam does: the rate stays
        """
        check.positive("where the search starts", learning_rate=learning_rate)
        if clip is None:
            return tuple(Setting(learning_rate=learning_rate * rate, clip=None) for rate in self.rates)
        return tuple(
            Setting(learning_rate=learning_rate * rate / (1.0 if adaptive else factor), clip=clip * factor)
            for factor in self.clips
            for rate in self.rates
        )
