"""A small pre-norm transformer over patches of an image.

Positions are fixed sines and cosines, which need no parameters and therefore no noise.
"""

from __future__ import annotations

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, DEPTH, HEADS = 64, 2, 4


def sines(length: int, width: int) -> Tensor:
    """[length, width] of sin and cos at geometric frequencies (Vaswani et al. 2017)."""
    place = torch.arange(length, dtype=torch.float32)[:, None]
    pace = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10_000.0) / width))
    return torch.cat((torch.sin(place * pace), torch.cos(place * pace)), dim=1)


def sines_2d(rows: int, columns: int, width: int) -> Tensor:
    """[rows * columns, width]: half of the width encodes the row, half the column."""
    down = sines(rows, width // 2)[:, None].expand(-1, columns, -1)
    across = sines(columns, width // 2)[None].expand(rows, -1, -1)
    return torch.cat((down, across), dim=2).reshape(rows * columns, width)


@final
class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.inner_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        packed: Tensor = self.queries_keys_values(self.attention_norm(x))
        by_head = packed.reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = by_head.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(n, t, d))
        inner: Tensor = self.narrow(F.gelu(self.widen(self.inner_norm(x))))
        return x + inner


@final
class PatchTransformer(nn.Module):
    """An image as a row of patches: 68,810 parameters at 1x28x28 with patches of 4 and 10 classes."""

    positions: Tensor

    def __init__(self, *, channels: int, height: int, width: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(channels * patch * patch, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock(WIDTH, HEADS) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        self.register_buffer("positions", sines_2d(height // patch, width // patch, WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        p = self.patch
        patches = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * p * p)
        features: Tensor = self.norm(self.blocks(self.embed(patches) + self.positions))
        scores: Tensor = self.head(features.mean(dim=1))
        return scores
