"""Per-sample weight gradients of a convolution, by the cheaper of two routes.

Index legend: N records, F images folded into one record (frames), C input and O output channels, K taps.
Convolutions of one, two and three dimensions share the code; a transposed one swaps its input and the
gradient of its output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.stages import factors
from discreet.stages.factors import norms_by_chunks, row_norms, share, widen

# Where patches beat one grouped convolution (measured): one input channel, few positions, or many channel pairs
# on not too many positions.
FEW_POSITIONS = 16
GROUPED_CHANNEL_PAIRS = 6144
PATCH_POSITIONS = 256


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
        images, outputs = self.images[rows], self.outputs[rows]
        if not self._patches_are_cheaper:
            return _by_groups(images, outputs, self.shape, self.geometry, stop - start)
        patches = math.prod(self.shape[1:]) * math.prod(outputs.shape[2:]) * self._frames
        some = max(1, factors.KEEP_ELEMENTS // patches) * self._frames
        pieces = zip(images.split(some), outputs.split(some), strict=True)
        grads = [_by_patches(i, o, self.shape, self.geometry, len(i) // self._frames) for i, o in pieces]
        return grads[0] if len(grads) == 1 else torch.cat(grads)

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Convolution:
        images, outputs = (
            self._by_record(values)[index_K].flatten(0, 1).to(dtype or self.dtype)
            for values in (self.images, self.outputs)
        )
        return Convolution(images, outputs, self.shape, self.geometry, len(index_K))

    @property
    def _patches_are_cheaper(self) -> bool:
        positions = math.prod(self.outputs.shape[2:])
        many = self.shape[0] * self.shape[1] > GROUPED_CHANNEL_PAIRS and positions <= PATCH_POSITIONS
        return self.geometry.groups == 1 and (self.shape[1] == 1 or positions <= FEW_POSITIONS or many)

    @property
    def _frames(self) -> int:
        return self.images.shape[0] // self._records

    def _by_record(self, values: Tensor) -> Tensor:
        by_record: Tensor = values.unflatten(0, (self._records, self._frames))
        return by_record

    def _scaled(self, values: Tensor, scale_N: Tensor) -> Tensor:
        return values * scale_N.repeat_interleave(self._frames).view(-1, *(1,) * (values.dim() - 1))


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


def _by_patches(
    images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int
) -> Tensor:
    """One matrix product a record, of the output gradients and the patches that the kernel saw."""
    pads = [amount for amount in reversed(geometry.padding) for _ in range(2)]
    padded = F.pad(images, pads).contiguous()
    rows, channels, *steps = padded.stride()
    taps = [step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True)]
    moves = [step * stride for step, stride in zip(steps, geometry.stride, strict=True)]
    sizes = (*images.shape[:2], *shape[2:], *outputs.shape[2:])
    patches = padded.as_strided(sizes, (rows, channels, *taps, *moves))
    patches_NKL = _by_position(patches.reshape(images.shape[0], -1, math.prod(outputs.shape[2:])), records)
    return torch.bmm(_by_position(outputs, records), patches_NKL.transpose(1, 2)).view(-1, *shape)


def _by_position(values: Tensor, records: int) -> Tensor:
    """[N, channels, positions of all frames]."""
    positions: Tensor = values.unflatten(0, (records, -1)).transpose(1, 2).flatten(2)
    return positions
