"""Layers and optimizers that only the comparison of heads needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@final
class Moments(nn.Module):
    """Sums of x x' and y x' as gradients: the losses x'Ax and y'Bx are linear in A and B."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.second, self.cross = nn.Linear(width, width, bias=False), nn.Linear(width, classes, bias=False)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.cross.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.float().flatten(1)
        return x * self.second(x), self.cross(x)

    @torch.no_grad()
    def solved(self, ridge: float, weight: float) -> Tensor:
        """[classes, width]: ridge regression of the classes, minus their share, on x; from the released sums alone.

        Half of the sum with its transpose halves the variance of the noise off the diagonal.
        """
        second, cross = self.second.weight.double(), self.cross.weight.double() / weight
        second = (second + second.mT) / 2 + ridge * torch.eye(len(second), dtype=torch.float64)
        return torch.linalg.solve(second, (cross - cross.mean(0)).mT).mT.float()


@final
class Scaled(nn.Module):
    """A linear head whose weights are `weight * scale`, so that gradients are scaled before they are clipped.

    scale  a public buffer, which the optimizer computes from earlier releases
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, width))
        self.register_buffer("scale", torch.ones(classes, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float().flatten(1), self.weight * self.scale)


@final
class ScaleThenPrivatise(torch.optim.Optimizer):
    """Adam on `weight * scale`. The next scale is 1 / sqrt(second moments), with a mean square of 1."""

    def __init__(self, layer: Scaled, lr: float, betas: tuple[float, float] = (0.9, 0.95)) -> None:
        super().__init__(layer.parameters(), {"lr": lr})
        self._layer, self._betas, self._steps = layer, betas, 0
        self._first, self._second = torch.zeros_like(layer.weight), torch.zeros_like(layer.weight)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        layer, (b1, b2) = self._layer, self._betas
        scale: Any = layer.scale
        assert layer.weight.grad is not None
        gradient = layer.weight.grad / scale
        self._steps += 1
        self._first.mul_(b1).add_(gradient, alpha=1 - b1)
        self._second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        deviation = (self._second / (1 - b2**self._steps)).sqrt() + 1e-12
        moved = layer.weight * scale - self.param_groups[0]["lr"] * self._first / (1 - b1**self._steps) / deviation
        inverse = 1 / (deviation + deviation.mean() / 10)  # no coordinate is enlarged without bound
        scale.copy_(inverse / inverse.square().mean().sqrt())
        layer.weight.copy_(moved / scale)


@final
class RandomFeatures(nn.Module):
    """The features beside random ReLU features of them; records of length 1 keep a length of at most 1."""

    def __init__(self, width: int, more: int) -> None:
        super().__init__()
        directions = torch.randn(width, more, generator=torch.Generator().manual_seed(0))
        self.register_buffer("directions", directions)
        self.width = width + more

    def forward(self, x: Tensor) -> Tensor:
        directions: Any = self.directions
        x = x.float().flatten(1)
        made = F.normalize(F.relu(x @ directions), dim=1)
        return torch.cat([x, made], 1) / math.sqrt(2)


@final
class StandardisedConv(nn.Module):
    """A convolution whose filters have mean 0 and variance 1 / fan-in, times a gain for each."""

    def __init__(self, of: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = of.weight, of.bias
        self.gain = nn.Parameter(torch.ones(of.out_channels, 1, 1, 1))
        self._stride, self._padding = of.stride, of.padding

    def forward(self, x: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        fan_in = centred[0].numel()
        spread = (centred.square().mean((1, 2, 3), keepdim=True) * fan_in + 1e-4).sqrt()
        return F.conv2d(x, self.gain * centred / spread, self.bias, self._stride, self._padding)


def standardised(model: nn.Module) -> nn.Module:
    """The model, with weight standardisation in each convolution (Qiao et al. 2019)."""
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Conv2d):
            setattr(model, name, StandardisedConv(layer))
        else:
            standardised(layer)
    return model


def shifted(images: Tensor) -> Tensor:
    """Each image moved by -1, 0 or 1 pixels along each axis, at random; what comes in is zero."""
    count, channels, height, width = images.shape
    moves = torch.randint(0, 3, (count, 2))
    rows = (torch.arange(height) + moves[:, :1])[:, None, :, None].expand(count, channels, height, width + 2)
    columns = (torch.arange(width) + moves[:, 1:])[:, None, None, :].expand(count, channels, height, width)
    return F.pad(images, (1, 1, 1, 1)).gather(2, rows).gather(3, columns)
