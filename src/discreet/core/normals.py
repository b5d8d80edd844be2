"""Standard normals from a counter-based cipher, computed by several threads.

Pair j of a key is the pair that Box-Muller makes of cipher block j, so the values depend on the key and
the position alone: not on the number of threads, and not on how a draw is cut into chunks. Every value takes
the same work: a method that rejects (ziggurat, polar) would be faster and show the noise in its timing.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

BLOCK_BYTES: Final = 16
WORD_BYTES: Final = 8
CHUNK: Final = 1 << 17  # normals in one task: enough to hide what it costs to hand one over
BLOCK: Final = (
    1 << 16
)  # normals made at a time: enough to hide what the calls cost, and half a chunk's buffers
WORDS, NORMALS = 0, 1  # the lanes of a key: disjoint ranges of 2^64 blocks each

_ZEROS: Final = memoryview(bytes(WORD_BYTES * BLOCK))
Floats = npt.NDArray[np.float64]
Put = Callable[[torch.Tensor, torch.Tensor], object]


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


def box_muller(words: npt.NDArray[np.int64], out: Floats, work: torch.Tensor) -> None:
    """Turn 2m uniform 64-bit words into 2m standard normals, pair by pair; `work` is float64 [3, >= m].

    u = |w0 + 1/2| / 2^63 in [2^-64, 1],  r = sqrt(-2 ln u) in [0, 9.42],  a = pi w1 / 2^63
    out[2j] = r cos a,  out[2j + 1] = r sin a

    Guarantee: u is never 0, so every output is finite; a pair depends on its own two words alone.
    """
    # torch has the fast transcendental functions, numpy the fast root and the cheaper calls.
    used = work[:, : len(words) // 2]
    radius, angle, cosine = used.numpy()
    radius[:] = words[0::2]
    angle[:] = words[1::2]
    radius += 0.5
    radius *= 2.0**-63
    radius *= radius
    used[0].log_()
    np.abs(radius, out=radius)  # |ln(u^2)| = -2 ln u, and no -0.0 below the root
    np.sqrt(radius, out=radius)
    angle *= math.pi * 2.0**-63
    torch.cos(used[1], out=used[2])
    used[1].sin_()
    np.multiply(radius, cosine, out=out[0::2])
    np.multiply(radius, angle, out=out[1::2])


class _Workspace(threading.local):
    """Buffers of one thread; they carry nothing from one task to the next."""

    def __init__(self) -> None:
        self.words = np.empty(BLOCK + BLOCK_BYTES // WORD_BYTES, dtype=np.int64)
        self.bytes = self.words.data.cast("B")
        self.work = torch.empty(3, BLOCK // 2, dtype=torch.float64, device="cpu")
        self.out = torch.empty(BLOCK, dtype=torch.float64, device="cpu")


_WORKSPACE: Final = _Workspace()


def _task(key: bytes, block: int, target: torch.Tensor, put: Put, inference: bool) -> None:
    source, space = cipher(key, NORMALS, block), _WORKSPACE
    with torch.inference_mode(inference):  # a thread-local mode: take it over from the caller
        for part in target.split(BLOCK):
            size = part.numel()
            key_stream(source, space.bytes, size * WORD_BYTES)
            noise = space.out[:size]
            box_muller(space.words[:size], noise.numpy(), space.work)
            put(part, noise)


def spread(
    key: bytes, block: int, target: torch.Tensor, put: Put, *, background: bool = False
) -> list[Future[None]]:
    """Start `put(part, normals)` for each part of the flat `target`, which uses the blocks from `block` on.

    The length is even. Wait for the futures; with one thread and not in the background, the work is done.
    """
    count, threads = target.numel(), torch.get_num_threads()
    size = min(CHUNK, 2 * -(-count // (2 * threads)))
    parts = [
        (key, block + start // 2, target[start : start + size], put)
        for start in range(0, count, max(size, 1))
    ]
    inference = torch.is_inference_mode_enabled()
    if threads == 1 and not background:
        for part in parts:
            _task(*part, inference)
        return []
    workers = _WORKERS.of(threads)
    return [workers.submit(_task, *part, inference) for part in parts]


class _Workers:
    """Threads that each run torch serially.

    An op on several threads ends at a barrier; many short ops a chunk, on cores that others use too, were
    measured at up to fifty times the work itself. Whole chunks side by side meet once, at the end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_for = (0, 0)
        self._pool: ThreadPoolExecutor | None = None

    def of(self, threads: int) -> ThreadPoolExecutor:
        """The pool of this process (a fork has none of its parent's threads) with `threads` threads."""
        with self._lock:
            if self._pool is None or self._made_for != (os.getpid(), threads):
                if self._pool is not None and self._made_for[0] == os.getpid():
                    self._pool.shutdown(wait=False)
                self._pool = _serial_pool(threads)
                self._made_for = (os.getpid(), threads)
            return self._pool


def _serial_pool(threads: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads, "discreet-noise", initializer=torch.set_num_threads, initargs=(1,))
    everyone = threading.Barrier(threads)
    for started in [pool.submit(everyone.wait) for _ in range(threads)]:
        started.result()
    # set_num_threads binds its own thread, and the default of threads to come: put that default back.
    torch.set_num_threads(threads)
    return pool


_WORKERS: Final = _Workers()
