"""How a clip goes with a momentum: from public numbers alone, so that it costs nothing."""

from __future__ import annotations

from discreet.core import check


def scale_clip_with_momentum(*, clip: float, momentum: float, to_momentum: float) -> float:
    """The clip that goes with another momentum: C / (1 - mu) stays what it was (arXiv 2112.00845, Section 3.4).

    A velocity v <- mu v + g adds up to g / (1 - mu) of a steady gradient, so this keeps the size of the update, and
    with it the learning rate, for records that are clipped.

    >>> round(scale_clip_with_momentum(clip=0.1, momentum=0.9, to_momentum=0.0), 12)
    1.0
    """
    check.positive("the clip that was good with `momentum`", clip=clip)
    for name, value in (("momentum", momentum), ("to_momentum", to_momentum)):
        check.not_negative("the momentum of SGD", **{name: value})
        check.require(value < 1, f"{name} < 1", f"{name}={value!r}", "velocity grows without end at 1")
    return clip * (1 - to_momentum) / (1 - momentum)
