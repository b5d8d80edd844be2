"""The smoothness L of the losses, and the Lipschitz constant c of an update that follows from it:

    c >= |psi(x) - psi(y)| / |x - y|,   psi(x) = x - eta (sum of clipped gradients / batch + decay x)

for every possible batch. L is certified if the model and its loss are known; otherwise the user states it.
"""

import enum
import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, final

from discreet.core import check


class Curvature(Protocol):
    """What is known about the curvature of the losses."""

    @property
    def smoothness(self) -> float:
        """L: the gradient of every record's loss is L-Lipschitz in the parameters."""

    @property
    def condition(self) -> str | None:
        """The user's assumption, as a clause that begins with "if"; None if the library enforces L."""

    def expansion(self, *, learning_rate: float, ratio: float, decay: float) -> float:
        """The constant c; a batch has at most `ratio` times as many records as the public batch size."""


class Link(enum.StrEnum):
    """The loss of a linear model as a function of its scores (logits)."""

    LOGISTIC = "logistic"
    """One score s, label 0 or 1: log(1 + e^s) - y s."""
    SQUARED = "squared"
    """One score s, target y: (s - y)^2 / 2."""
    SOFTMAX = "softmax"
    """Scores s_1..s_k, label y: log sum e^s - s_y."""

    @property
    def curvature(self) -> float:
        """The largest second derivative with respect to the scores."""
        return {Link.LOGISTIC: 0.25, Link.SQUARED: 1.0, Link.SOFTMAX: 0.5}[self]

    @property
    def one_score(self) -> bool:
        """Whether the model has one score, so that every gradient is a multiple of the features."""
        return self is not Link.SOFTMAX


@final
@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """A linear model with a known loss, whose features are clipped to a public norm. It needs no assumption.

    Guarantee: L = curvature of the link * (features^2 + 1), where the 1 is for the bias. With one score, c = 1 if
    eta L ratio <= 2. With several scores, c is the smaller of 2 / sqrt(4 - eta L ratio) and 1 + eta L ratio.

    features  the bound of the `ClippedFeatures` layer before the linear layer
    bias      whether the linear layer has a bias
    """

    condition: ClassVar[str | None] = None
    link: Link
    features: float
    bias: bool = True

    def __post_init__(self) -> None:
        check.positive("choose a public bound on the norm of the features, e.g. 1.0", features=self.features)
        object.__setattr__(self, "link", Link(self.link))

    @property
    def smoothness(self) -> float:
        return self.link.curvature * (self.features**2 + self.bias)

    def expansion(self, *, learning_rate: float, ratio: float, decay: float) -> float:
        smooth = self.smoothness
        if self.link.one_score:
            return lipschitz_glm(learning_rate=learning_rate, smoothness=smooth, ratio=ratio, decay=decay)
        return _convex(learning_rate, smooth, ratio, decay)


@final
@dataclass(frozen=True, kw_only=True)
class Assumed:
    """The user states that every loss is L-smooth. The certificate holds only if that is true.

    smoothness  L; then c = 1 + eta L ratio
    convex      the user also states that every loss is convex; c = 2 / sqrt(4 - eta L ratio) if that is smaller
    """

    smoothness: float
    convex: bool = False

    def __post_init__(self) -> None:
        check.positive("give a bound on the curvature of every loss", smoothness=self.smoothness)

    @property
    def condition(self) -> str | None:
        shape = "convex and " if self.convex else ""
        return f"if every loss is {shape}L-smooth with L = {self.smoothness:g}"

    def expansion(self, *, learning_rate: float, ratio: float, decay: float) -> float:
        if self.convex:
            return _convex(learning_rate, self.smoothness, ratio, decay)
        return lipschitz_smooth(learning_rate=learning_rate, smoothness=self.smoothness, ratio=ratio, decay=decay)


def _convex(learning_rate: float, smoothness: float, ratio: float, decay: float) -> float:
    """The smaller of both constants; the one for convex losses needs zero decay and small steps."""
    smooth = lipschitz_smooth(learning_rate=learning_rate, smoothness=smoothness, ratio=ratio, decay=decay)
    if decay > 0 or learning_rate * smoothness * ratio > 2:
        return smooth
    convex = lipschitz_convex(learning_rate=learning_rate, smoothness=smoothness, ratio=ratio)
    return min(smooth, convex)


# Lipschitz constants of an update with per-record clipping -------------------------------------------------


def _size(learning_rate: float, smoothness: float, ratio: float) -> float:
    check.positive("rates and smoothness are positive", learning_rate=learning_rate, smoothness=smoothness)
    check.positive("ratio is the largest batch divided by the public divisor", ratio=ratio)
    return learning_rate * smoothness * ratio


def lipschitz_smooth(*, learning_rate: float, smoothness: float, ratio: float = 1.0, decay: float = 0.0) -> float:
    """|1 - eta decay| + eta L ratio, for any L-smooth losses; `decay` is an L2 term outside of the clip."""
    size = _size(learning_rate, smoothness, ratio)
    check.not_negative("an L2 term pulls towards zero", decay=decay)
    return abs(1 - learning_rate * decay) + size


def lipschitz_convex(*, learning_rate: float, smoothness: float, ratio: float = 1.0) -> float:
    """2 / sqrt(4 - eta L ratio), for convex L-smooth losses and eta L ratio <= 2: tight from dimension 2 on.

    Not 1: clipping turns a symmetric Jacobian into a product with a projection.
    """
    size = _size(learning_rate, smoothness, ratio)
    remedy = "take a smaller learning rate, or lipschitz_smooth"
    check.require(size <= 2, "learning_rate * smoothness * ratio <= 2", f"{size}", remedy)
    return 2 / math.sqrt(4 - size)


def lipschitz_glm(*, learning_rate: float, smoothness: float, ratio: float = 1.0, decay: float = 0.0) -> float:
    """max(|1 - eta decay|, |1 - eta decay - eta L ratio|), for convex losses phi(<a, x>) of ONE score.

    Binary logistic and linear regression. Not multinomial: a clipped gradient must stay a multiple of a.
    Without decay this is 1 as long as eta L ratio <= 2.
    """
    size = _size(learning_rate, smoothness, ratio)
    check.not_negative("an L2 term pulls towards zero", decay=decay)
    kept = 1 - learning_rate * decay
    return max(abs(kept), abs(kept - size))
