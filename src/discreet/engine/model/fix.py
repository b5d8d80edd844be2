"""Swapping layers that cannot be trained privately for ones that can."""

import copy
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from discreet.core.check import require

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


@final
class GroupNormThen(nn.GroupNorm):
    """GroupNorm, followed by the layers that the BatchNorm in its place held, such as an activation."""

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        for layer in self.children():
            output = layer(output)
        return output


def fix(model: nn.Module) -> tuple[nn.Module, tuple[Swap, ...]]:
    """Swap BatchNorm for GroupNorm and stop running statistics; returns the model and what was changed.

    The root itself is replaced if it is a BatchNorm, so use the returned model. Scale and shift start at the
    layer's own values. GroupNorm takes as many groups as divide the channels, at most 32, each of at least
    4 channels. A BatchNorm in evaluation mode is swapped too: leave out `fix` to keep its frozen statistics.
    Layers that a BatchNorm applies after itself are kept (timm's BatchNormAct2d holds an activation); one that
    computes something else is refused.

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
        normed = _group_norm(name, layer)
        then = [type(child).__name__ for child in normed.children() if not isinstance(child, nn.Identity)]
        now = ", then ".join([f"GroupNorm({normed.num_groups}, {normed.num_channels})", *then])
        swaps.append(Swap(name, f"{kind}({layer.num_features})", now))
        return normed
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        swaps.append(Swap(name, kind, "the same without running statistics"))
    return layer


def _group_norm(name: str, layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    most = min(MOST_GROUPS, max(1, channels // LEAST_CHANNELS))
    groups = next(count for count in range(most, 0, -1) if channels % count == 0)
    is_plain = type(layer).forward.__module__.startswith("torch.")
    require(
        is_plain or _is_followed_by_its_layers(layer),
        "a BatchNorm that normalises and then applies the layers that it holds",
        f"{type(layer).__name__} at {name}, whose forward() computes something else",
        "replace this layer yourself, for example by nn.GroupNorm",
    )
    normed = (nn.GroupNorm if is_plain else GroupNormThen)(groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        normed.weight, normed.bias = layer.weight, layer.bias
    for child_name, child in () if is_plain else layer.named_children():
        normed.add_module(child_name, child)
    return normed.train(layer.training)


_AXES = {nn.BatchNorm1d: (), nn.BatchNorm2d: (3, 3), nn.BatchNorm3d: (3, 3, 3)}


@torch.no_grad()
def _is_followed_by_its_layers(layer: _BatchNorm) -> bool:
    """Whether forward() gives, on random values, what its layers make of the normalised input."""
    twin = copy.deepcopy(layer).cpu().eval()
    generator = torch.Generator().manual_seed(0)
    for tensor in (twin.weight, twin.bias, twin.running_mean, twin.running_var):
        if tensor is not None:
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    kinds = [kind for kind in _AXES if isinstance(layer, kind)]
    shape = (2, layer.num_features, *(_AXES[kinds[0]] if kinds else (3, 3)))
    input = torch.randn(shape, generator=generator).to(next(iter(twin.state_dict().values()), torch.zeros(())).dtype)
    mean, variance = twin.running_mean, twin.running_var
    expected = F.batch_norm(input, mean, variance, twin.weight, twin.bias, mean is None, 0.0, twin.eps)
    for child in twin.children():
        expected = child(expected)
    found = twin(input)
    return isinstance(found, Tensor) and found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
