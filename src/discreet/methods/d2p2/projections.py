"""Random linear maps to fewer dimensions, made from a stream for one step and dropped again.

    project  x in R^d -> y in R^p                 before the noise: its sensitivity matters
    lift     y in R^p -> R^d, E[lift(project(x))] = x    after the noise: free

`Hadamard` has orthonormal rows and costs O(d log d); `DenseProjection` is a Gaussian matrix
for each part of x and costs O(d p).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from discreet.core.streams import Stream
from discreet.stages.bounding import ROUND_DOWN

_RADIX = 32  # a pass multiplies by a 32 x 32 matrix: five bits at the price of one trip through memory
_BLOCK = 2**15  # entries that are worked on at once: they and their images fit a processor's cache
_CHUNK = 2**22  # entries of a dense matrix that are in memory at once


class ProjectionMap(Protocol):
    """One linear map."""

    widths: tuple[int, ...]

    def project(self, value: Tensor) -> Tensor:
        """The image of `value`, all parts in one vector."""

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """Back to the coordinates, without bias."""


# -- orthonormal --------------------------------------------------------------------------------------------


def padded_size(size: int) -> int:
    """The least n >= size for which `hadamard` knows a matrix: 2^k, 12 * 2^k or 20 * 2^k.

    >>> [padded_size(size) for size in (1, 3, 9, 13, 20, 550_000)]
    [1, 4, 12, 16, 20, 655360]
    """
    return min(odd << (-(-size // odd) - 1).bit_length() for odd in (1, 12, 20))


def factors_of(size: int) -> list[int]:
    """The orders of the Kronecker factors of the Hadamard matrix of a padded size."""
    twos = (size & -size).bit_length() - 1
    rest = size >> twos
    orders = [] if rest == 1 else [4 * rest]
    bits = twos - (0 if rest == 1 else 2)
    step = _RADIX.bit_length() - 1
    return [2 ** min(step, bits - done) for done in range(0, bits, step)] + orders


@functools.cache
def _small(order: int) -> Tensor:
    """A Hadamard matrix: Sylvester's for powers of two, Paley's for 12 and 20."""
    if order & (order - 1) == 0:
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while len(matrix) < order:
            matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
        return matrix
    prime = order - 1
    squares = {k * k % prime for k in range(1, prime)}
    residue = [0.0] + [1.0 if k in squares else -1.0 for k in range(1, prime)]
    matrix = torch.eye(order, dtype=torch.float64)
    matrix[0, 1:], matrix[1:, 0] = 1.0, -1.0
    for row in range(prime):
        for column in range(prime):
            matrix[row + 1, column + 1] += residue[(column - row) % prime]
    return matrix


def hadamard(value: Tensor, *, transposed: bool = False) -> Tensor:
    """value <- H value (or H^T value), in place, for the Hadamard matrix H of its padded size, entries +-1.

    One pass for each Kronecker factor, the first ones in blocks that stay in the processor's cache: O(n log n).

    >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([10., -2., -4.,  0.])
    """
    done = 1
    matrices = [_small(order).to(value) for order in factors_of(len(value))]
    near = [m for k, m in enumerate(matrices) if math.prod(map(len, matrices[: k + 1])) <= _BLOCK]
    for block in value.view(-1, math.prod(map(len, near))):
        done = 1
        for matrix in near:
            _pass(block, matrix.T if transposed else matrix, done)
            done *= len(matrix)
    for matrix in matrices[len(near) :]:
        _pass(value, matrix.T if transposed else matrix, done)
        done *= len(matrix)
    return value


def _pass(value: Tensor, matrix: Tensor, done: int) -> None:
    """value <- (I x matrix x I_done) value, in place, with little memory beside it."""
    order = len(matrix)
    if done == 1:
        rows = value.view(-1, order)
        rows.copy_(rows @ matrix.T)
    elif len(value) <= _BLOCK:
        cube = value.view(-1, order, done)
        cube.copy_(torch.matmul(matrix, cube))
    else:
        for plane in value.view(-1, order, done):
            for columns in plane.split(max(1, _BLOCK // order), dim=1):
                columns.copy_(matrix @ columns)


@final
class Hadamard:
    """P = (rows of H) D / sqrt(n): random signs D, the Hadamard matrix H of order n >= d, p of its n rows.

    Guarantee: |P v| <= |v| for every v, rounding included: rows of H / sqrt(n) are orthonormal, products are formed
    in float64 and shrunk by 2^-20. E[P^T P] = (p/n) I by the signs alone, so that lifting is (n/p) P^T.
    """

    def __init__(self, size: int, width: int, stream: Stream) -> None:
        self.size = size
        self.widths: tuple[int, ...] = (width,)
        self._padded = padded_size(size)
        bits = stream.uniform64(-(-size // 64)).view(np.uint8)
        self._signs = torch.from_numpy(np.unpackbits(bits, count=size).view(np.int8)).mul_(-2).add_(1)
        self._kept = torch.from_numpy(_subset(self._padded, width, stream))

    def project(self, value: Tensor) -> Tensor:
        """P value, in float64 whatever the dtype of `value`."""
        full = value.new_zeros(self._padded, dtype=torch.float64)
        torch.mul(value, self._signs.to(value.device), out=full[: self.size])
        return hadamard(full)[self._kept.to(value.device)].mul_(ROUND_DOWN / math.sqrt(self._padded))

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """(n/p) P^T image."""
        full = image.new_zeros(self._padded, dtype=dtype)
        full[self._kept.to(image.device)] = image.to(dtype)
        scale = math.sqrt(self._padded) / (self.widths[0] * ROUND_DOWN)
        spread = hadamard(full, transposed=True)[: self.size]
        return spread.mul_(self._signs.to(image.device)).mul_(scale)


@final
class Blocks:
    """One projection for each part of the vector, side by side.

    Guarantee: if no part is lengthened, the whole is not.
    """

    def __init__(self, parts: Iterable[Hadamard]) -> None:
        self._parts = tuple(parts)
        self.widths: tuple[int, ...] = tuple(part.widths[0] for part in self._parts)

    def project(self, value: Tensor) -> Tensor:
        """The images of all parts, one after the other."""
        pieces = value.split([part.size for part in self._parts])
        return torch.cat([part.project(piece) for part, piece in zip(self._parts, pieces, strict=True)])

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """Every part lifted by its own projection."""
        pieces = image.split(self.widths)
        return torch.cat([part.lift(piece, dtype) for part, piece in zip(self._parts, pieces, strict=True)])


def _subset(of: int, count: int, stream: Stream) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """`count` of the indices 0 .. of-1, sorted: those with the smallest of `of` random numbers."""
    numbers = stream.uniform64(-(-of // 2)).view(np.uint32)[:of]
    largest = np.partition(numbers, count - 1)[count - 1]
    kept = numbers < largest
    ties = np.flatnonzero(numbers == largest)
    kept[ties[: count - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


# -- dense --------------------------------------------------------------------------------------------------


@final
class DenseProjection:
    """A_l^T x_l / sqrt(p_l) for each part x_l of the vector, A_l with independent N(0, 1) entries.

    The matrices are drawn a few columns at a time, and again for lifting: they are never held.
    """

    def __init__(self, sizes: Sequence[int], widths: tuple[int, ...], stream: Callable[[], Stream]) -> None:
        self.sizes, self.widths, self._stream = tuple(sizes), widths, stream

    def project(self, value: Tensor) -> Tensor:
        """A^T value / sqrt(p), part by part."""
        parts = value.split(self.sizes)
        image = value.new_empty(sum(self.widths))
        for part, where, columns in self._columns(value):
            image[where] = columns @ parts[part] / math.sqrt(self.widths[part])
        return image

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """A image / sqrt(p), part by part."""
        lifted = image.new_zeros(sum(self.sizes), dtype=dtype)
        parts = lifted.split(self.sizes)
        for part, where, columns in self._columns(lifted):
            parts[part].addmv_(columns.T, image[where].to(dtype), alpha=1 / math.sqrt(self.widths[part]))
        return lifted

    def _columns(self, like: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
        """(part, where in the image, some columns of its matrix as rows), the same at every call."""
        stream, start = self._stream(), 0
        for part, (size, width) in enumerate(zip(self.sizes, self.widths, strict=True)):
            stop = start + width
            while start < stop:
                count = min(stop - start, max(1, _CHUNK // size))
                drawn = stream.normal(count * size, dtype=like.dtype, device=like.device)
                yield part, slice(start, start + count), drawn.view(count, size)
                start += count
