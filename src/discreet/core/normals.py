"""Standard normals from a counter-based cipher.

Pair j of a key is the pair that Box-Muller makes of cipher block j, so the values depend on the key and
the position alone: not on the number of threads, and not on how a draw is cut into chunks. Every value takes
the same work: a method that rejects (ziggurat, polar) would be faster and show the noise in its timing.

torch spreads each call over its own threads. Threads of ours, with whole chunks side by side, would spend what
they gain on waiting for Python's lock, and slow every other call of torch down.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final, final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

BLOCK_BYTES: Final = 16
WORD_BYTES: Final = 8
CHUNK: Final = 1 << 17  # normals made at a time: in the cache, and enough for torch to share them out
WORDS, NORMALS = 0, 1  # the lanes of a key: disjoint ranges of 2^64 blocks each

_ZEROS: Final = memoryview(bytes(1 << 18))
Put = Callable[[slice, Tensor], object]  # takes the normals of a stretch, float64; it may overwrite them


def cipher(key: bytes, lane: int, block: int = 0) -> CipherContext:
    """The key stream of AES-256-CTR from `block` of `lane` on."""
    start = lane.to_bytes(8, "big") + block.to_bytes(8, "big")
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()


def key_stream(source: CipherContext, target: memoryview, size: int) -> None:
    """Write the next `size` bytes of `source` to `target`, which is one block longer."""
    # Older releases of the cipher library want that block of slack behind the output.
    for start in range(0, size, len(_ZEROS)):
        zeros = _ZEROS[: min(size - start, len(_ZEROS))]
        source.update_into(zeros, target[start : start + len(zeros) + BLOCK_BYTES])


@final
class Buffers:
    """Room for an even number of normals.

    words  the uniform 64-bit words; the normals take their place
    """

    def __init__(self, size: int) -> None:
        memory = np.empty(size + BLOCK_BYTES // WORD_BYTES, dtype=np.int64)
        self._bytes = memory.data.cast("B")  # one block longer than the words
        self.words = torch.from_numpy(memory[:size])
        self._work = torch.empty(3, size // 2, dtype=torch.float64, device="cpu")

    def draw(self, source: CipherContext, size: int) -> Tensor:
        """The next normals of a cipher, an even number, in this memory."""
        key_stream(source, self._bytes, size * WORD_BYTES)
        return self.box_muller(size)

    def box_muller(self, size: int) -> Tensor:
        """Turn the first words into standard normals, pair by pair.

        u = |w0 + 1/2| / 2^63 in [2^-64, 1],  r = sqrt(-2 ln u) in [0, 9.42],  a = pi w1 / 2^63
        normals[2j] = r cos a,  normals[2j + 1] = r sin a

        Guarantee: u is never 0, so every normal is finite; a pair depends on its own two words alone.
        """
        first, second = self.words[:size].view(-1, 2).unbind(1)
        radius, angle, cosine = self._work[:, : size // 2].unbind()
        radius.copy_(first).add_(0.5).mul_(2.0**-63).mul_(radius)
        radius.log_().abs_().sqrt_()  # |ln(u^2)| = -2 ln u, and no -0.0 below the root
        angle.copy_(second).mul_(math.pi * 2.0**-63)
        torch.cos(angle, out=cosine)
        normals = self.words[:size].view(torch.float64)
        torch.mul(radius, cosine, out=normals[0::2])
        torch.mul(radius, angle.sin_(), out=normals[1::2])
        return normals


class _Workspace(threading.local):
    """Buffers of one thread; they carry nothing from one draw to the next."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # they outlive a caller's inference mode
            self.chunk = Buffers(CHUNK)


_WORKSPACE: Final = _Workspace()


def draw(key: bytes, first: int, count: int, put: Put) -> None:
    """`put(stretch, normals)` for the stretches of 0 .. count-1, from the cipher's block `first` on; count is even."""
    source = cipher(key, NORMALS, first)
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        put(slice(start, stop), _WORKSPACE.chunk.draw(source, stop - start))


def copying_to(target: Tensor) -> Put:
    """Round the normals once, to the type of the target."""
    return lambda where, noise: target[where].copy_(noise)


def adding_to(flat: Tensor, std: float) -> Put:
    """flat += std * noise in float64, rounded once."""
    if flat.device.type != "cpu":
        return lambda where, noise: flat[where].add_(noise.to(flat.device), alpha=std)
    values = flat.numpy()

    def put(where: slice, noise: Tensor) -> None:
        # numpy casts piece by piece, where torch makes float64 copies of both sides.
        part = values[where]
        np.add(part, noise.mul_(std).numpy(), out=part, casting="same_kind")

    return put


def behind(start: int, put: Put) -> Put:
    """The same, of a target that begins at `start`."""
    return lambda where, noise: put(slice(start + where.start, start + where.stop), noise)
