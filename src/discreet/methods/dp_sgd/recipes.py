"""DP-SGD and its relatives that differ in how a record is bounded (Abadi et al. 2016 and after)."""

from __future__ import annotations

from discreet.methods.dp_sgd.bounding import AdaptiveQuantile, PerLayer
from discreet.stages.bounding import AutoS, FlatClip, Psac
from discreet.stages.recipe import Recipe


def dp_sgd(clip: float = 1.0) -> Recipe:
    """Clip each record's gradient to `clip`, sum, add Gaussian noise."""
    return Recipe(method="dp-sgd", bounder=FlatClip(clip))


def dp_adam(clip: float = 1.0) -> Recipe:
    """DP-SGD's release, fed to Adam."""
    return Recipe(method="dp-adam", bounder=FlatClip(clip))


def automatic(gamma: float = 0.01) -> Recipe:
    """Automatic clipping (AUTO-S): each record weighs 1 / (norm + gamma), no clip to tune."""
    return Recipe(method="auto-s", bounder=AutoS(clip=1.0, gamma=gamma))


def psac(r: float = 0.1) -> Recipe:
    """Per-sample adaptive clipping: like automatic clipping, with less weight on tiny gradients."""
    return Recipe(method="psac", bounder=Psac(clip=1.0, r=r))


def per_layer(clip: float = 1.0) -> Recipe:
    """Each parameter clipped on its own; the whole stays within `clip`."""
    return Recipe(method="per-layer", bounder=PerLayer(clip))


def adaptive_quantile(
    clip: float = 1.0, quantile: float = 0.5, rate: float = 0.2, count_noise: float = 10.0
) -> Recipe:
    """The clip follows a quantile of the norms, from a noisy count that is charged (Andrew et al. 2021)."""
    bounder = AdaptiveQuantile(clip=clip, quantile=quantile, rate=rate, count_noise=count_noise)
    return Recipe(method="adaptive-quantile", bounder=bounder)
