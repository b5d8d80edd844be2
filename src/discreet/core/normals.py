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
from typing import Final, final

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

BLOCK_BYTES: Final = 16
WORD_BYTES: Final = 8
CHUNK: Final = 1 << 17  # normals in one task: enough to hide what it costs to hand one over
BLOCK: Final = 1 << 15  # normals made at a time: their buffers stay in a core's own cache
WORDS, NORMALS = 0, 1  # the lanes of a key: disjoint ranges of 2^64 blocks each

_ZEROS: Final = memoryview(bytes(WORD_BYTES * BLOCK))
Floats = npt.NDArray[np.float64]
Put = Callable[[slice, Floats], object]  # takes the normals of a stretch; it may overwrite them


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
    """Room for an even number of normals, with every view of it that the work needs: making views is dear.

    words  the uniform 64-bit words; the normals take their place
    """

    def __init__(self, memory: npt.NDArray[np.int64], work: torch.Tensor) -> None:
        self._memory, self._work = memory, work
        self.words = memory[: 2 * work.shape[1]]
        self._bytes = memory.data.cast("B")  # one block longer than the words
        self._first, self._second = self.words[0::2], self.words[1::2]
        self._normals = self.words.view(np.float64)
        self._even, self._odd = self._normals[0::2], self._normals[1::2]
        self._tensors = work.unbind()
        self._arrays = tuple(tensor.numpy() for tensor in self._tensors)

    @classmethod
    def of(cls, size: int) -> Buffers:
        """Buffers of their own."""
        memory = np.empty(size + BLOCK_BYTES // WORD_BYTES, dtype=np.int64)
        return cls(memory, torch.empty(3, size // 2, dtype=torch.float64, device="cpu"))

    def first(self, size: int) -> Buffers:
        """The front part of the same memory."""
        if size == len(self.words):
            return self
        return Buffers(self._memory[: size + BLOCK_BYTES // WORD_BYTES], self._work[:, : size // 2])

    def draw(self, source: CipherContext) -> Floats:
        """The next normals of a cipher, in this memory."""
        key_stream(source, self._bytes, self.words.nbytes)
        return self.box_muller()

    def box_muller(self) -> Floats:
        """Turn the words into standard normals, pair by pair.

        u = |w0 + 1/2| / 2^63 in [2^-64, 1],  r = sqrt(-2 ln u) in [0, 9.42],  a = pi w1 / 2^63
        normals[2j] = r cos a,  normals[2j + 1] = r sin a

        Guarantee: u is never 0, so every normal is finite; a pair depends on its own two words alone.
        """
        # torch has the fast transcendental functions, numpy the fast root and the cheaper calls.
        radius, angle, cosine = self._arrays
        np.add(self._first, 0.5, out=radius)
        radius *= 2.0**-63
        radius *= radius
        self._tensors[0].log_()
        np.abs(radius, out=radius)  # |ln(u^2)| = -2 ln u, and no -0.0 below the root
        np.sqrt(radius, out=radius)
        np.multiply(self._second, math.pi * 2.0**-63, out=angle)
        torch.cos(self._tensors[1], out=self._tensors[2])
        self._tensors[1].sin_()
        np.multiply(radius, cosine, out=self._even)
        np.multiply(radius, angle, out=self._odd)
        return self._normals


class _Workspace(threading.local):
    """Buffers of one thread; they carry nothing from one task to the next."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # they outlive a caller's inference mode
            self.block = Buffers.of(BLOCK)


_WORKSPACE: Final = _Workspace()


def _task(key: bytes, start: int, stop: int, first: int, put: Put, inference: bool) -> None:
    source, block = cipher(key, NORMALS, first), _WORKSPACE.block
    with torch.inference_mode(inference):  # a thread-local mode: take it over from the caller
        for at in range(start, stop, BLOCK):
            end = min(at + BLOCK, stop)
            put(slice(at, end), block.first(end - at).draw(source))


def spread(key: bytes, first: int, count: int, put: Put, *, background: bool = False) -> list[Future[None]]:
    """Start `put(stretch, normals)` for stretches of 0 .. count-1, which use the cipher blocks from `first` on.

    The count is even. Wait for the futures; with one thread and not in the background, the work is done.
    """
    threads = torch.get_num_threads()
    size = max(2, min(CHUNK, 2 * -(-count // (2 * threads))))
    inference = torch.is_inference_mode_enabled()
    parts = [
        (key, start, min(start + size, count), first + start // 2, put, inference)
        for start in range(0, count, size)
    ]
    if threads == 1 and not background:
        for part in parts:
            _task(*part)
        return []
    workers = _WORKERS.of(threads)
    return [workers.submit(_task, *part) for part in parts]


def copying_to(target: npt.NDArray[np.floating]) -> Put:
    """Round the normals once, to the type of the target."""
    return lambda where, noise: np.copyto(target[where], noise, casting="same_kind")


def adding_to(flat: torch.Tensor, std: float) -> Put:
    """flat += std * noise in float64, rounded once."""
    if flat.device.type != "cpu":
        here = torch.cuda.current_stream(flat.device) if flat.is_cuda else None

        def put_there(where: slice, noise: Floats) -> None:
            with torch.cuda.stream(here):  # a thread has a current stream of its own: take the caller's
                flat[where].add_(torch.from_numpy(noise).to(flat.device), alpha=std)

        return put_there
    values = flat.numpy()

    def put(where: slice, noise: Floats) -> None:
        # numpy casts piece by piece, where torch makes float64 copies of both sides.
        noise *= std
        part = values[where]
        np.add(part, noise, out=part, casting="same_kind")

    return put


def behind(start: int, put: Put) -> Put:
    """The same, of a target that begins at `start`."""
    return lambda where, noise: put(slice(start + where.start, start + where.stop), noise)


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
