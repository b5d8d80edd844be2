"""Swapping layers that cannot be trained privately for ones that can."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

MOST_GROUPS = 32
LEAST_CHANNELS = 4  # a group of one value is always its own mean: its output would be zero


@dataclass(frozen=True)
class Swap:
    """One change that `fix` made."""

    name: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: {self.was} -> {self.now}"


def fix(model: nn.Module) -> tuple[nn.Module, tuple[Swap, ...]]:
    """Swap BatchNorm for GroupNorm and stop running statistics; returns the model and what was changed.

    The root itself is replaced if it is a BatchNorm, so use the returned model. Scale and shift start at the
    layer's own values. GroupNorm takes as many groups as divide the channels, at most 32, each of at least
    4 channels. A BatchNorm in evaluation mode is swapped too: leave out `fix` to keep its frozen statistics.

    >>> model, swaps = fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> print(*swaps)
    1: BatchNorm2d(8) -> GroupNorm(2, 8)
    """
    swaps: list[Swap] = []
    fixed = _fixed("the root", model, swaps)
    for name, module in list(fixed.named_modules()):
        for child_name, child in list(module.named_children()):
            full = f"{name}.{child_name}" if name else child_name
            swapped = _fixed(full, child, swaps)
            if swapped is not child:
                setattr(module, child_name, swapped)
    return fixed, tuple(swaps)


def _fixed(name: str, layer: nn.Module, swaps: list[Swap]) -> nn.Module:
    """The layer itself, or what takes its place; says so in `swaps`."""
    kind = type(layer).__name__
    if isinstance(layer, _BatchNorm):
        normed = _group_norm(layer)
        swaps.append(
            Swap(name, f"{kind}({layer.num_features})", f"GroupNorm({normed.num_groups}, {normed.num_channels})")
        )
        return normed
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        swaps.append(Swap(name, kind, "the same without running statistics"))
    return layer


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    most = min(MOST_GROUPS, max(1, channels // LEAST_CHANNELS))
    groups = next(count for count in range(most, 0, -1) if channels % count == 0)
    normed = nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        normed.weight, normed.bias = layer.weight, layer.bias
    return normed.train(layer.training)
