"""Random linear projections. Each is drawn for one step and then discarded.

    project  R^d -> R^p, before the noise, so it affects the sensitivity
    lift     R^p -> R^d, after the noise, so it does not; E[lift(project(x))] = x

`Hadamard` has orthonormal rows and takes O(d log d). `DenseProjection` is a Gaussian matrix for each part of x and
takes O(d p).
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from discreet.core.streams import Stream
from discreet.stages.clipping import ROUND_DOWN

_RADIX = 32  # a pass multiplies by a 32 x 32 matrix: five butterfly stages for one pass over memory
_BLOCK = 2**15  # entries processed at once: input and output fit in the processor's cache
_CHUNK = 2**22  # entries of a dense matrix held in memory at once


class ProjectionMap(Protocol):
    """A random projection and its lift; `widths` are the projected dimensions of the parts."""

    widths: tuple[int, ...]

    def project(self, value: Tensor) -> Tensor:
        """Project `value`; the images of all parts form one vector."""

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """Map an image back to full dimension, without bias."""


# -- orthonormal --------------------------------------------------------------------------------------------


def padded_size(size: int) -> int:
    """The smallest n >= size of the form 2^k, 12 * 2^k or 20 * 2^k: the orders that `hadamard` supports."""
    return min(odd << (-(-size // odd) - 1).bit_length() for odd in (1, 12, 20))


def factors_of(size: int) -> list[int]:
    """The orders of the Kronecker factors of the Hadamard matrix of order `size`, which must be a padded size."""
    twos = (size & -size).bit_length() - 1
    rest = size >> twos
    orders = [] if rest == 1 else [4 * rest]
    bits = twos - (0 if rest == 1 else 2)
    step = _RADIX.bit_length() - 1
    return [2 ** min(step, bits - done) for done in range(0, bits, step)] + orders


@functools.cache
def _small(order: int) -> Tensor:
    """A small Hadamard matrix: Sylvester's construction for powers of two, Paley's for 12 and 20."""
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
    """Compute H value (or H^T value) in place, where H is the Hadamard matrix with entries +-1. O(n log n).

    The length of `value` must be a padded size. There is one pass per Kronecker factor; the first passes work on
    blocks that fit in the processor's cache.
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
    """Compute (I x matrix x I_done) value in place, with little extra memory."""
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
    """P = (p random rows of H) D / sqrt(n), with random signs D and the Hadamard matrix H of order n >= d.

    Guarantee: |P v| <= |v| for every v, including rounding errors: the rows of H / sqrt(n) are orthonormal, and
    products are computed in float64 and shrunk by 2^-20. The random signs give E[P^T P] = (p/n) I, so the lift is
    (n/p) P^T.
    """

    def __init__(self, size: int, width: int, stream: Stream) -> None:
        self.size = size
        self.widths: tuple[int, ...] = (width,)
        self._padded = padded_size(size)
        bits = stream.uniform64(-(-size // 64)).view(np.uint8)
        self._signs = torch.from_numpy(np.unpackbits(bits, count=size).view(np.int8)).mul_(-2).add_(1)
        self._kept = torch.from_numpy(np.flatnonzero(stream.subset(width, of=self._padded)))

    def project(self, value: Tensor) -> Tensor:
        """Return P value in float64, whatever the dtype of `value`."""
        full = value.new_zeros(self._padded, dtype=torch.float64)
        torch.mul(value, self._signs.to(value.device), out=full[: self.size])
        return hadamard(full)[self._kept.to(value.device)].mul_(ROUND_DOWN / math.sqrt(self._padded))

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (n/p) P^T image."""
        full = image.new_zeros(self._padded, dtype=dtype)
        full[self._kept.to(image.device)] = image.to(dtype)
        scale = math.sqrt(self._padded) / (self.widths[0] * ROUND_DOWN)
        spread = hadamard(full, transposed=True)[: self.size]
        return spread.mul_(self._signs.to(image.device)).mul_(scale)


@final
class Blocks:
    """A separate projection for each part of the vector: a block-diagonal projection.

    Guarantee: the norm of the vector does not increase, because the norm of no part does.
    """

    def __init__(self, parts: Iterable[Hadamard]) -> None:
        self._parts = tuple(parts)
        self.widths: tuple[int, ...] = tuple(part.widths[0] for part in self._parts)

    def project(self, value: Tensor) -> Tensor:
        pieces = value.split([part.size for part in self._parts])
        return torch.cat([part.project(piece) for part, piece in zip(self._parts, pieces, strict=True)])

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        pieces = image.split(self.widths)
        return torch.cat([part.lift(piece, dtype) for part, piece in zip(self._parts, pieces, strict=True)])


# -- dense --------------------------------------------------------------------------------------------------


@final
class DenseProjection:
    """A_l^T x_l / sqrt(p_l) for each part x_l of the vector; the entries of A_l are independent N(0, 1).

    The matrices are drawn a few columns at a time and drawn again for the lift, so they are never stored.
    """

    def __init__(self, sizes: Sequence[int], widths: tuple[int, ...], stream: Callable[[], Stream]) -> None:
        self.sizes, self.widths, self._stream = tuple(sizes), widths, stream

    def project(self, value: Tensor) -> Tensor:
        """Return A^T value / sqrt(p), part by part."""
        parts = value.split(self.sizes)
        image = value.new_empty(sum(self.widths))
        for part, where, columns in self._columns(value):
            image[where] = columns @ parts[part] / math.sqrt(self.widths[part])
        return image

    def lift(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """Return A image / sqrt(p), part by part."""
        lifted = image.new_zeros(sum(self.sizes), dtype=dtype)
        parts = lifted.split(self.sizes)
        for part, where, columns in self._columns(lifted):
            parts[part].addmv_(columns.T, image[where].to(dtype), alpha=1 / math.sqrt(self.widths[part]))
        return lifted

    def _columns(self, like: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
        """Yield (part, slice of the image, columns of the part's matrix as rows); every call yields the same values."""
        stream, start = self._stream(), 0
        for part, (size, width) in enumerate(zip(self.sizes, self.widths, strict=True)):
            stop = start + width
            while start < stop:
                count = min(stop - start, max(1, _CHUNK // size))
                drawn = stream.normal(count * size, dtype=like.dtype, device=like.device)
                yield part, slice(start, start + count), drawn.view(count, size)
                start += count
