"""Recipe of selective update and release (Fu et al. 2023). Every test on private data is charged."""

from discreet.stages.acceptance import LossTest
from discreet.stages.clipping import Clipping
from discreet.stages.plan import Recipe


def sur(
    clip: float = 1.0,
    loss_clip: float = 0.01,
    test_share: float = 4.0,
    threshold: float = 0.0,
    clipping: Clipping = Clipping.FLAT,
    gamma: float = 0.01,
    r: float = 0.1,
) -> Recipe:
    """DP-SGD that keeps an update only if a noisy test finds a lower loss on a fresh batch.

    loss_clip   bound on each record's change of loss; a small bound turns the test into a vote of the records
    test_share  noise multiplier of the test, relative to that of the gradient
    threshold   mean change of loss below which an update is kept
    clipping    flat, auto-s (uses gamma) or psac (uses r), with clipping norm `clip`
    """
    return Recipe(
        method="sur",
        bounder=Clipping(clipping).bounder(clip=clip, gamma=gamma, r=r),
        acceptance=LossTest(loss_clip=loss_clip, share=test_share, threshold=threshold),
    )
