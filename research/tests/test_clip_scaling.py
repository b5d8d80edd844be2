"""Rules for settings."""

from __future__ import annotations

import pytest

from discreet.core.check import Refused
from research.reproductions.random_freeze.clip_scaling import scale_clip_with_momentum


@pytest.mark.parametrize(("clip", "momentum"), [(0.1, 0.9), (1.0, 0.0), (0.37, 0.5)])
@pytest.mark.parametrize("to_momentum", [0.0, 0.5, 0.9, 0.99])
def test_the_ratio_is_kept(clip: float, momentum: float, to_momentum: float) -> None:
    scaled = scale_clip_with_momentum(clip=clip, momentum=momentum, to_momentum=to_momentum)
    assert scaled / (1 - to_momentum) == pytest.approx(clip / (1 - momentum), rel=1e-12)


def test_the_pair_of_the_paper() -> None:
    """Figure 4: clip 0.1 with momentum 0.9 is clip 1 without."""
    assert scale_clip_with_momentum(clip=0.1, momentum=0.9, to_momentum=0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "wrong", [{"clip": 0.0}, {"momentum": 1.0}, {"to_momentum": 1.0}, {"momentum": -0.1}, {"clip": float("nan")}]
)
def test_settings_without_a_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Refused, match=next(iter(wrong))):
        scale_clip_with_momentum(**{"clip": 1.0, "momentum": 0.9, "to_momentum": 0.0, **wrong})
