"""Per-sample weight gradients of a convolution, by the cheapest of three routes.

Index legend: N records, F images folded into one record (frames), C input and O output channels, K taps.
Convolutions of one, two and three dimensions share the code; a transposed one swaps its input and the
gradient of its output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.stages import factors
from discreet.stages.factors import Dense, Factors, Settled, norms_by_chunks, row_norms, share, widen

# Up to this many channel pairs one grouped convolution beats a matrix product per tap (measured)
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
        self._lengths: tuple[Tensor, Tensor] | None = None

    @property
    def records(self) -> int:
        return self._records

    @property
    def dtype(self) -> torch.dtype:
        return self.images.dtype

    @property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """Norms of a record's images and of its output gradients, [N] each."""
        if self._lengths is None:
            self._lengths = row_norms(self._by_record(self.images)), row_norms(self._by_record(self.outputs))
        return self._lengths

    def measure(self) -> tuple[Tensor, Tensor]:
        images, outputs = self.lengths
        patches = math.sqrt(math.prod(self.shape[2:])) * images  # a value lies in at most K patches
        return norms_by_chunks(self), patches * outputs

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        for weights_N, total in zip(weights_QN, total_Q, strict=True):
            scales = share(weights_N, *self.lengths, prefer_left=False, dtype=self.dtype)
            images, outputs = (
                values if scale is None else self._scaled(values, scale)
                for values, scale in zip((self.images, self.outputs), scales, strict=True)
            )
            total += _weight_gradient(images, outputs, self.shape, self.geometry)

    def instantiate(self, start: int, stop: int) -> Tensor:
        rows = slice(start * self._frames, stop * self._frames)
        by_taps = self.geometry.groups == 1 and self.shape[0] * self.shape[1] > GROUPED_CHANNEL_PAIRS
        way = _by_taps if by_taps else _by_groups
        return way(self.images[rows], self.outputs[rows], self.shape, self.geometry, stop - start)

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Convolution:
        images, outputs = (
            self._by_record(values)[index_K].flatten(0, 1).to(dtype or self.dtype)
            for values in (self.images, self.outputs)
        )
        return Convolution(images, outputs, self.shape, self.geometry, len(index_K))

    @property
    def _frames(self) -> int:
        return self.images.shape[0] // self._records

    def _by_record(self, values: Tensor) -> Tensor:
        by_record: Tensor = values.unflatten(0, (self._records, self._frames))
        return by_record

    def _scaled(self, values: Tensor, scale_N: Tensor) -> Tensor:
        return values * scale_N.repeat_interleave(self._frames).view(-1, *(1,) * (values.dim() - 1))


def convolution(
    images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int
) -> Factors:
    """Instantiated at once where all records fit: the weighted sum is then one matrix product."""
    part = Convolution(images, outputs, shape, geometry, records)
    if records * math.prod(shape) > factors.KEEP_ELEMENTS:
        return Settled(part)
    return Dense(part.instantiate(0, records))


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


def _by_groups(
    images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int
) -> Tensor:
    """All records at once as the groups of one convolution, their frames as its batch."""
    alone = Geometry(geometry.stride, geometry.padding, geometry.dilation, records * geometry.groups)
    images_FNC, outputs_FNC = (
        values.unflatten(0, (records, -1)).transpose(0, 1).flatten(1, 2) for values in (images, outputs)
    )
    gradient = _weight_gradient(images_FNC, outputs_FNC, (records * shape[0], *shape[1:]), alone)
    by_record: Tensor = gradient.unflatten(0, (records, shape[0]))
    return by_record


def _by_taps(
    images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int
) -> Tensor:
    """One batched matrix product per tap of the kernel, over the shifted input and all frames of a record."""
    pads = [amount for amount in reversed(geometry.padding) for _ in range(2)]
    padded = F.pad(images, pads) if any(pads) else images

    def channels_first(values: Tensor) -> Tensor:  # [N, channels, positions of all frames]
        channels: Tensor = values.unflatten(0, (records, -1)).transpose(1, 2).flatten(2)
        return channels

    outputs_NOL = channels_first(outputs)
    taps = []
    for tap in itertools.product(*(range(size) for size in shape[2:])):
        window = tuple(
            slice(at * dilation, at * dilation + (out - 1) * stride + 1, stride)
            for at, dilation, stride, out in zip(
                tap, geometry.dilation, geometry.stride, outputs.shape[2:], strict=True
            )
        )
        shifted_NCL = channels_first(padded[(slice(None), slice(None), *window)])
        taps.append(torch.bmm(outputs_NOL, shifted_NCL.transpose(1, 2)))
    return torch.stack(taps, -1).view(-1, *shape)
