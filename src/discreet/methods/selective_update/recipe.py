"""Selective update and release (Fu et al. 2023), with every test on private data charged."""

from __future__ import annotations

from discreet.methods.clipping import Clipping, bounder
from discreet.stages.acceptance import LossTest
from discreet.stages.recipe import Recipe


def sur(
    clip: float = 1.0,
    loss_clip: float = 0.01,
    test_share: float = 4.0,
    threshold: float = 0.0,
    clipping: Clipping = Clipping.FLAT,
    gamma: float = 0.01,
    r: float = 0.1,
) -> Recipe:
    """DP-SGD that keeps an update only if the loss of a fresh sample falls, by a noisy test.

    loss_clip   bounds each record's change of loss; small makes the test a vote of records
    test_share  the test's noise multiplier over the gradient's
    threshold   the mean change of loss below which an update is kept
    clipping    flat, auto-s (with gamma) or psac (with r), all to the bound `clip`
    """
    return Recipe(
        method="sur",
        bounder=bounder(Clipping(clipping), clip=clip, gamma=gamma, r=r),
        acceptance=LossTest(loss_clip=loss_clip, share=test_share, threshold=threshold),
    )
