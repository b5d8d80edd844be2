"""Per-sample weight gradients of a convolution, by the cheapest of three routes.

Index legend: N records, F images folded into one record (frames), C input and O output channels, K taps.
Convolutions of one, two and three dimensions share the code; a transposed one swaps input and output gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.stages.factors import (
    KEEP_ELEMENTS,
    Dense,
    Factors,
    norms_by_chunks,
    rounding_slack,
    row_norms,
    widen,
    zero_rows,
)

# Up to this many channel pairs one grouped convolution beats a matrix product per tap (measured on two cores).
GROUPED_CHANNEL_PAIRS = 1536


@dataclass(frozen=True)
class Geometry:
    """How a convolution walks over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Convolution:
    """g_n = the weight gradient of record n alone, for `images` and output gradients `outputs`."""

    def __init__(
        self, images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int
    ) -> None:
        self.images, self.outputs = widen(images), widen(outputs)
        self.shape, self.geometry = tuple(shape), geometry
        self._records = records

    @property
    def records(self) -> int:
        return self._records

    @property
    def _frames(self) -> int:
        return self.images.shape[0] // max(self._records, 1)

    def square_norms(self) -> tuple[Tensor, Tensor]:
        square, underflow = norms_by_chunks(self, math.prod(self.shape))
        taps = math.sqrt(
            math.prod(self.shape[2:])
        )  # each input value lies in at most this many patches, squared
        images = row_norms(self.images.unflatten(0, (self._records, -1)))
        outputs = row_norms(self.outputs.unflatten(0, (self._records, -1)))
        return square, underflow + rounding_slack(taps * images, outputs, self.images.dtype)

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        frames = weights_QN.repeat_interleave(self._frames, 1).to(self.outputs.dtype)
        for weights, total in zip(frames, total_Q, strict=True):
            scaled = self.outputs * weights.view(-1, *(1,) * (self.outputs.dim() - 1))
            total += _weight_gradient(self.images, scaled, self.shape, self.geometry)

    def instantiate(self, start: int, stop: int) -> Tensor:
        rows = slice(start * self._frames, stop * self._frames)
        images, outputs = self.images[rows], self.outputs[rows]
        if self.geometry.groups == 1 and self.shape[0] * self.shape[1] > GROUPED_CHANNEL_PAIRS:
            grads = _by_taps(images, outputs, self.shape, self.geometry)
        else:
            grads = _by_groups(images, outputs, self.shape, self.geometry)
        return grads.unflatten(0, (stop - start, self._frames)).sum(1) if self._frames > 1 else grads

    def silence(self, bad_N: Tensor) -> Convolution:
        bad = bad_N.repeat_interleave(self._frames)
        images, outputs = zero_rows(self.images, bad), zero_rows(self.outputs, bad)
        return Convolution(images, outputs, self.shape, self.geometry, self._records)


def convolution(
    images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int
) -> Factors:
    """Instantiated at once where all records fit: the weighted sum is then one matrix product."""
    factors = Convolution(images, outputs, shape, geometry, records)
    if images.shape[0] * math.prod(shape) > KEEP_ELEMENTS:
        return factors
    return Dense(factors.instantiate(0, records))


def _weight_gradient(images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry) -> Tensor:
    dimensions = len(geometry.stride)
    gradient: Tensor = torch.ops.aten.convolution_backward(
        outputs,
        images,
        images.new_empty(1).expand(shape),
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        [0] * dimensions,
        geometry.groups,
        [False, True, False],
    )[1]
    return gradient


def _by_groups(images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry) -> Tensor:
    """All records at once as the groups of one convolution."""
    N = images.shape[0]
    alone = Geometry(geometry.stride, geometry.padding, geometry.dilation, N * geometry.groups)
    stacked = (N * shape[0], *shape[1:])
    gradient = _weight_gradient(
        images.reshape(1, -1, *images.shape[2:]), outputs.reshape(1, -1, *outputs.shape[2:]), stacked, alone
    )
    return gradient.unflatten(0, (N, shape[0]))


def _by_taps(images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry) -> Tensor:
    """One batched matrix product per tap of the kernel, over the shifted input."""
    pads = [amount for amount in reversed(geometry.padding) for _ in range(2)]
    padded = F.pad(images, pads)
    outputs_NOL = outputs.flatten(2)
    taps = []
    for tap in itertools.product(*(range(size) for size in shape[2:])):
        window = tuple(
            slice(at * dilation, at * dilation + (out - 1) * stride + 1, stride)
            for at, dilation, stride, out in zip(
                tap, geometry.dilation, geometry.stride, outputs.shape[2:], strict=True
            )
        )
        shifted_NCL = padded[(slice(None), slice(None), *window)].flatten(2)
        taps.append(torch.bmm(outputs_NOL, shifted_NCL.transpose(1, 2)))
    return torch.stack(taps, -1).view(-1, *shape)
