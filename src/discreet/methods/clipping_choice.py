"""Clipping rules that several recipes accept as an option."""

from __future__ import annotations

import enum

from discreet.stages.bounding import AutoS, Bounder, FlatClip, Psac


class Clipping(enum.StrEnum):
    """How each record's gradient is clipped; the choices of GeoDP's Tables II and III."""

    FLAT = "flat"
    AUTO_S = "auto-s"
    PSAC = "psac"


def bounder(clipping: Clipping, *, clip: float, gamma: float, r: float) -> Bounder:
    """Return the bounder with clipping norm `clip`; `gamma` is used by auto-s, `r` by psac."""
    match clipping:
        case Clipping.FLAT:
            return FlatClip(clip)
        case Clipping.AUTO_S:
            return AutoS(clip=clip, gamma=gamma)
        case Clipping.PSAC:
            return Psac(clip=clip, r=r)
