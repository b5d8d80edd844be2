"""ResNet-20 with group normalisation instead of batch normalisation, which would mix records."""

from __future__ import annotations

from itertools import pairwise
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // 4, channels)  # four channels a group at every width


@final
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a skip connection, which subsamples pixels and pads channels where the width grows.

    The skip connection has no parameters (option A of He et al. 2016) and needs no noise.
    """

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.stride = 1 if inside == outside else 2
        self.padding = outside - inside
        self.first = nn.Conv2d(inside, outside, 3, stride=self.stride, padding=1, bias=False)
        self.first_norm = _norm(outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.second_norm = _norm(outside)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.padding))
        return F.relu(self.second_norm(self.second(inner)) + shortcut)


@final
class ResNet20(nn.Module):
    """Three stages of three blocks at 16, 32 and 64 channels: 269,722 parameters (3 channels, 10 classes)."""

    def __init__(self, *, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.stem_norm = _norm(16)
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in pairwise(widths)))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(F.relu(self.stem_norm(self.stem(x))))
        scores: Tensor = self.head(features.mean(dim=(2, 3)))
        return scores
