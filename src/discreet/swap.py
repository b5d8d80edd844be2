"""Swapping layers that cannot be trained privately for ones that can."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

GROUPS = 32


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
    layer's own values; GroupNorm takes up to 32 groups.

    >>> model, swaps = fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> print(*swaps)
    1: BatchNorm2d(8) -> GroupNorm(8, 8)
    """
    swaps: list[Swap] = []
    if isinstance(model, _BatchNorm):
        replacement = _group_norm(model)
        return replacement, (_swap("", model, replacement),)
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            full = f"{name}.{child_name}" if name else child_name
            if isinstance(child, _BatchNorm):
                replacement = _group_norm(child)
                setattr(module, child_name, replacement)
                swaps.append(_swap(full, child, replacement))
            elif isinstance(child, _InstanceNorm) and child.track_running_stats:
                child.track_running_stats = False
                child.running_mean = child.running_var = child.num_batches_tracked = None
                swaps.append(Swap(full, type(child).__name__, "the same without running statistics"))
    return model, tuple(swaps)


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    normed = nn.GroupNorm(math.gcd(GROUPS, channels), channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        normed.weight, normed.bias = layer.weight, layer.bias
        normed = normed.to(layer.weight.device)
    return normed.train(layer.training)


def _swap(name: str, old: _BatchNorm, new: nn.GroupNorm) -> Swap:
    return Swap(
        name or "the root",
        f"{type(old).__name__}({old.num_features})",
        f"GroupNorm({new.num_groups}, {new.num_channels})",
    )
