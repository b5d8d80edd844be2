"""The clippings that a recipe can be combined with."""

from __future__ import annotations

import enum

from discreet.stages.bounding import AutoS, Bounder, FlatClip, Psac


class Clipping(enum.StrEnum):
    """How a record's gradient is bounded: the companions of GeoDP's Tables II and III."""

    FLAT = "flat"
    AUTO_S = "auto-s"
    PSAC = "psac"


def bounder(clipping: Clipping, *, clip: float, gamma: float, r: float) -> Bounder:
    """The stage that bounds a record to `clip`; gamma is automatic clipping's, r is PSAC's."""
    match clipping:
        case Clipping.FLAT:
            return FlatClip(clip)
        case Clipping.AUTO_S:
            return AutoS(clip=clip, gamma=gamma)
        case Clipping.PSAC:
            return Psac(clip=clip, r=r)
