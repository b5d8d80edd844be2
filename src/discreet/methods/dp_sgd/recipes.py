"""Recipes of DP-SGD (Abadi et al. 2016) and of variants that clip differently."""

from discreet.methods.dp_sgd.clipping import AdaptiveQuantile, PerLayer
from discreet.stages.clipping import AutoS, FlatClip, Psac
from discreet.stages.plan import Recipe


def dp_sgd(clip: float = 1.0) -> Recipe:
    """DP-SGD: clip each record's gradient to norm `clip`, sum, and add Gaussian noise."""
    return Recipe(method="dp-sgd", bounder=FlatClip(clip))


def dp_adam(clip: float = 1.0) -> Recipe:
    """Adam on DP-SGD's noisy gradients."""
    return Recipe(method="dp-adam", bounder=FlatClip(clip))


def automatic(gamma: float = 0.01) -> Recipe:
    """Automatic clipping (AUTO-S): weight each gradient by 1 / (norm + gamma); no clipping norm to tune."""
    return Recipe(method="auto-s", bounder=AutoS(clip=1.0, gamma=gamma))


def psac(r: float = 0.1) -> Recipe:
    """Per-sample adaptive clipping (PSAC): automatic clipping with less weight on small gradients."""
    return Recipe(method="psac", bounder=Psac(clip=1.0, r=r))


def per_layer(clip: float = 1.0) -> Recipe:
    """Per-layer clipping: clip each parameter's gradient separately; the whole gradient has norm at most `clip`."""
    return Recipe(method="per-layer", bounder=PerLayer(clip))


def adaptive_quantile(clip: float = 1.0, quantile: float = 0.5, rate: float = 0.2, count_noise: float = 10.0) -> Recipe:
    """DP-SGD whose clipping norm tracks a quantile of the gradient norms (Andrew et al. 2021)."""
    bounder = AdaptiveQuantile(clip=clip, quantile=quantile, rate=rate, count_noise=count_noise)
    return Recipe(method="adaptive-quantile", bounder=bounder)
