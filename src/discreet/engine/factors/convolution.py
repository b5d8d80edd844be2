"""Per-sample weight gradients of a convolution, by the cheaper of two routes, some records at a time.

Index legend: N records, F images folded into one record (frames), C input and O output channels, K taps.
Convolutions of one, two and three dimensions share the code; a transposed one swaps its input and the
gradient of its output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.engine.factors import parts as factors
from discreet.engine.factors.lengths import row_norms, widen
from discreet.engine.factors.parts import VersionGuard, WriteOnce, norms_by_chunks, share

# Where one grouped convolution beats patches (measured, 3x3 kernels): few channel pairs, but more than a stem's,
# on many positions. A rule and no stopwatch: the route decides the last bits, and a seeded run repeats them.
STEM_CHANNELS = 3
GROUPED_CHANNEL_PAIRS = 1024
FEW_POSITIONS = 127
# Records in one grouped convolution. Always as many: another number may round otherwise, so that one record more would
# move the gradients of others; and oneDNN compiles a kernel for every new shape.
GROUPED_RECORDS = 32
# Elements of patches at a time: they stay in the cache until they are multiplied.
PATCH_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Geometry:
    """How a convolution walks over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Convolution(WriteOnce):
    """g_n = the weight gradient of record n alone, for `images` and output gradients `outputs`."""

    def __init__(self, images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int) -> None:
        self.images, self.outputs = widen(images), widen(outputs)
        self.records, self.shape, self.geometry = records, tuple(shape), geometry
        self.dtype, self.device = self.images.dtype, images.device
        self._frames, self._seal = len(images) // max(records, 1), VersionGuard(self.images, self.outputs)

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """Norms of a record's images and of its output gradients, [N] each."""
        return row_norms(self._by_record(self.images)), row_norms(self._by_record(self.outputs))

    def measure(self) -> tuple[Tensor, Tensor]:
        return norms_by_chunks(self), self.absolute()

    def absolute(self) -> Tensor:
        images, outputs = self.lengths
        return math.sqrt(math.prod(self.shape[2:])) * images * outputs  # a value lies in at most K patches

    def add_weighted(self, weights_QN: Tensor, total_Q: Tensor) -> None:
        self._seal.check()
        for weights_N, total in zip(weights_QN.unbind(), total_Q.unbind(), strict=True):
            scales = share(weights_N, *self.lengths, prefer_left=False, dtype=total.dtype)
            images, outputs = (
                values.to(total.dtype) if scale is None else self._scaled(values.to(total.dtype), scale)
                for values, scale in zip((self.images, self.outputs), scales, strict=True)
            )
            total += _weight_gradient(images, outputs, self.shape, self.geometry)

    def write(self, start: int, stop: int, out: Tensor) -> None:
        self._seal.check()
        outside, inside = self.shape[:2]
        positions = math.prod(self.outputs.shape[2:]) * self._frames
        few = inside > STEM_CHANNELS and outside * inside <= GROUPED_CHANNEL_PAIRS
        patches, some = self.geometry.groups == 1 and not (few and positions > FEW_POSITIONS), GROUPED_RECORDS
        if patches:
            each = math.prod(self.shape[1:]) * positions
            some = max(1, min(PATCH_ELEMENTS, factors.KEEP_ELEMENTS) // max(1, each))
        for at in range(start, stop, some):
            end = min(at + some, stop)
            rows = slice(at * self._frames, end * self._frames)
            images, outputs, grads = self.images[rows], self.outputs[rows], out[at - start : end - start]
            if patches:
                _by_patches(images, outputs, grads, self.geometry)
            else:
                missing = (at + some - end) * self._frames  # zeros: the bits of a record depend on no other number
                images, outputs = (_with_zeros(values, missing) for values in (images, outputs))
                grads.copy_(_by_groups(images, outputs, self.shape, self.geometry, some)[: end - at])

    def take(self, index_K: Tensor, dtype: torch.dtype | None = None) -> Convolution:
        self._seal.check()
        images, outputs = (
            self._by_record(values)[index_K].flatten(0, 1).to(dtype or self.dtype)
            for values in (self.images, self.outputs)
        )
        return Convolution(images, outputs, self.shape, self.geometry, len(index_K))

    def summed(self, size: int) -> Convolution:
        self._seal.check()
        return Convolution(self.images, self.outputs, self.shape, self.geometry, self.records // size)

    def _by_record(self, values: Tensor) -> Tensor:
        return values.view(self.records, self._frames, *values.shape[1:])

    def _scaled(self, values: Tensor, scale_N: Tensor) -> Tensor:
        return values * scale_N.repeat_interleave(self._frames).view(-1, *(1,) * (values.dim() - 1))


def _weight_gradient(images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry) -> Tensor:
    walk, no_output_padding = (geometry.stride, geometry.padding, geometry.dilation), [0] * len(geometry.stride)
    like, wanted = images.new_empty(1).expand(shape), [False, True, False]
    gradient: Tensor = torch.ops.aten.convolution_backward(
        outputs, images, like, None, *walk, False, no_output_padding, geometry.groups, wanted
    )[1]
    return gradient


def _by_groups(images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry, records: int) -> Tensor:
    """All records at once as the groups of one convolution, their frames as its batch."""
    alone = replace(geometry, groups=records * geometry.groups)
    images_FNC, outputs_FNC = (
        values.unflatten(0, (records, -1)).transpose(0, 1).flatten(1, 2) for values in (images, outputs)
    )
    gradient = _weight_gradient(images_FNC, outputs_FNC, (records * shape[0], *shape[1:]), alone)
    return gradient.view(records, *shape)


def _with_zeros(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows, *values.shape[1:])]) if rows else values


def patches_of(images: Tensor, outputs: Tensor, shape: Sequence[int], geometry: Geometry) -> Tensor:
    """What the kernel saw at every position, a view [images, C, *taps, *positions]."""
    pads = [amount for amount in reversed(geometry.padding) for _ in range(2)]
    padded = F.pad(images, pads).contiguous() if any(pads) else images.contiguous()
    rows_step, channels, *steps = padded.stride()
    taps = [step * dilation for step, dilation in zip(steps, geometry.dilation, strict=True)]
    moves = [step * stride for step, stride in zip(steps, geometry.stride, strict=True)]
    sizes = (*images.shape[:2], *shape[2:], *outputs.shape[2:])
    return padded.as_strided(sizes, (rows_step, channels, *taps, *moves), padded.storage_offset())


def _by_patches(images: Tensor, outputs: Tensor, grads: Tensor, geometry: Geometry) -> None:
    """One matrix product a record, of the output gradients and the patches that the kernel saw."""
    records, rows, *shape = grads.shape
    patches = patches_of(images, outputs, (rows, *shape), geometry).reshape(images.shape[0], math.prod(shape), -1)
    patches_NKL, outputs_NOL = _by_position(patches, records), _by_position(outputs, records)
    torch.bmm(outputs_NOL, patches_NKL.transpose(1, 2), out=grads.view(records, rows, -1))


def _by_position(values: Tensor, records: int) -> Tensor:
    """[N, channels, positions of all frames]."""
    positions: Tensor = values.unflatten(0, (records, -1)).transpose(1, 2).flatten(2)
    return positions
