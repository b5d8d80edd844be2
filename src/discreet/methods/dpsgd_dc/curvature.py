"""How strongly an update can push two parameter vectors apart: smoothness L and the Lipschitz factor c.

    c >= |psi(x) - psi(y)| / |x - y|,   psi(x) = x - eta (sum of clipped gradients / batch + decay x)

for every batch that can occur. L is certified where the model and its loss are known, and the user's word elsewhere.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol, final

from discreet.accounting.last_iterate import lipschitz_convex, lipschitz_glm, lipschitz_smooth
from discreet.core import check


class Curvature(Protocol):
    """What is known of the losses."""

    @property
    def smoothness(self) -> float:
        """L: the gradient of every record's loss is L-Lipschitz in the parameters."""

    @property
    def condition(self) -> str | None:
        """What the user assumes, as a clause that begins with "if"; None where the library sees to it."""

    def expansion(self, *, learning_rate: float, ratio: float, decay: float) -> float:
        """c, where a batch holds at most `ratio` times the public divisor."""


class Link(enum.StrEnum):
    """The loss of a linear model, as a function of its scores."""

    LOGISTIC = "logistic"
    """One score s, label 0 or 1: log(1 + e^s) - y s."""
    SQUARED = "squared"
    """One score s, target y: (s - y)^2 / 2."""
    SOFTMAX = "softmax"
    """Scores s_1..s_k, label y: log sum e^s - s_y."""

    @property
    def curvature(self) -> float:
        """The largest second derivative in the scores.

        >>> [link.curvature for link in Link]
        [0.25, 1.0, 0.5]
        """
        return {Link.LOGISTIC: 0.25, Link.SQUARED: 1.0, Link.SOFTMAX: 0.5}[self]

    @property
    def one_score(self) -> bool:
        """Whether a clipped gradient stays a multiple of the features."""
        return self is not Link.SOFTMAX


@final
@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """A linear model whose features the library clips to a public norm, with a known loss: nothing is assumed.

    Guarantee: L = curvature of the link * (features^2 + 1), the 1 for the bias. One score: c = 1 as long as
    eta L ratio <= 2. Several scores: 2 / sqrt(4 - eta L ratio), or 1 + eta L ratio where that is smaller.

    features  the bound of `ClippedFeatures`, in front of the linear layer
    bias      whether the linear layer has one

    >>> LinearModel(link=Link.LOGISTIC, features=1.0).smoothness
    0.5
    """

    link: Link
    features: float
    bias: bool = True

    def __post_init__(self) -> None:
        check.positive("features are clipped to a public norm, e.g. 1.0", features=self.features)
        object.__setattr__(self, "link", Link(self.link))

    @property
    def smoothness(self) -> float:
        return self.link.curvature * (self.features**2 + self.bias)

    @property
    def condition(self) -> str | None:
        return None

    def expansion(self, *, learning_rate: float, ratio: float, decay: float) -> float:
        smooth = self.smoothness
        if self.link.one_score:
            return lipschitz_glm(learning_rate=learning_rate, smoothness=smooth, ratio=ratio, decay=decay)
        return _convex(learning_rate, smooth, ratio, decay)


@final
@dataclass(frozen=True, kw_only=True)
class Assumed:
    """Losses that are L-smooth by the user's word: the certificate holds only if that is true.

    c = 1 + eta L ratio. `convex`: by the user's word also convex, c = 2 / sqrt(4 - eta L ratio) where it is smaller.
    """

    smoothness: float
    convex: bool = False

    def __post_init__(self) -> None:
        check.positive("a bound on the curvature of every loss", smoothness=self.smoothness)

    @property
    def condition(self) -> str | None:
        shape = "convex and " if self.convex else ""
        return f"if every loss is {shape}L-smooth with L = {self.smoothness:g}"

    def expansion(self, *, learning_rate: float, ratio: float, decay: float) -> float:
        if self.convex:
            return _convex(learning_rate, self.smoothness, ratio, decay)
        return lipschitz_smooth(
            learning_rate=learning_rate, smoothness=self.smoothness, ratio=ratio, decay=decay
        )


def _convex(learning_rate: float, smoothness: float, ratio: float, decay: float) -> float:
    """The smaller of the two rules; the one for convex losses has no decay and takes small steps only."""
    smooth = lipschitz_smooth(learning_rate=learning_rate, smoothness=smoothness, ratio=ratio, decay=decay)
    if decay > 0 or learning_rate * smoothness * ratio > 2:
        return smooth
    convex = lipschitz_convex(learning_rate=learning_rate, smoothness=smoothness, ratio=ratio)
    return min(smooth, convex)
