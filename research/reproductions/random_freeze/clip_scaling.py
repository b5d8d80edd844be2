"""Adjust the clipping norm to a momentum. It uses public numbers only, so it costs no privacy."""

from __future__ import annotations

from discreet.core import check


def scale_clip_with_momentum(*, clip: float, momentum: float, to_momentum: float) -> float:
    """The clipping norm for another momentum: C / (1 - mu) stays constant (arXiv 2112.00845, Section 3.4).

    With momentum v <- mu v + g, a constant gradient g gives an update of g / (1 - mu). Scaling the clipping norm keeps
    the size of the update for clipped records, so the learning rate can stay the same.

    >>> round(scale_clip_with_momentum(clip=0.1, momentum=0.9, to_momentum=0.0), 12)
    1.0
    """
    check.positive("give the clipping norm that works with `momentum`", clip=clip)
    for name, value in (("momentum", momentum), ("to_momentum", to_momentum)):
        check.not_negative("give a momentum of SGD", **{name: value})
        check.require(value < 1, f"{name} < 1", f"{name}={value!r}", "use a momentum below 1, e.g. 0.9")
    return clip * (1 - to_momentum) / (1 - momentum)
