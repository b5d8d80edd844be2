"""Standard normals from a counter-based cipher, added to arrays.

Pair j of a key is the Box-Muller pair of cipher block j. So the values depend only on the key and the position, not on
the number of threads or on how a draw is split. Every value takes the same work: a method with rejection (ziggurat,
polar) would be faster and reveal the noise through its timing.

The work is done by a compiled twin of this module (generators/_normals.c) on as many threads as torch uses, where it
could be built and the processor has the instructions. Elsewhere NumPy and torch do it here, and gain nothing from
threads: Python threads spent as long waiting for the interpreter lock as working; torch's logarithm, cosine and sine
(of MKL) wait for all threads after every call, which takes twenty times as long on busy cores. NumPy's own take three
times as long as torch's.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from discreet.core import check

try:
    from discreet.core.generators import _normals as compiled
except ImportError:  # no compiler at installation, or another processor
    compiled = None  # type: ignore[assignment]

BLOCK_BYTES: Final = 16
WORD_BYTES: Final = 8
BLOCK: Final = 1 << 16  # normals made at a time: as many as torch still computes on one thread
WORDS, NORMALS = 0, 1  # the lanes of a key: disjoint ranges of 2^64 blocks each

_ZEROS: Final = memoryview(bytes(WORD_BYTES * BLOCK))
Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def cipher(key: bytes, lane: int, block: int = 0) -> CipherContext:
    """The key stream of AES-256-CTR, starting at `block` of `lane`."""
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
    """Memory for an even number of normals, with all views of it, because creating views is expensive.

    words  uniform 64-bit words, which the normals overwrite
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
    def of(cls, size: int) -> Self:
        """Buffers with their own memory."""
        memory = np.empty(size + BLOCK_BYTES // WORD_BYTES, dtype=np.int64)
        with torch.inference_mode(False):  # they outlive a caller's inference mode
            return cls(memory, torch.empty(3, size // 2, dtype=torch.float64, device="cpu"))

    def first(self, size: int) -> Self:
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
        square, turn = float(radius[-1]), float(self._second[-1]) * (math.pi * 2.0**-63)
        self._tensors[0].log_()
        np.abs(radius, out=radius)  # |ln(u^2)| = -2 ln u, and no -0.0 below the root
        np.sqrt(radius, out=radius)
        np.multiply(self._second, math.pi * 2.0**-63, out=angle)
        torch.cos(self._tensors[1], out=self._tensors[2])
        self._tensors[1].sin_()
        np.multiply(radius, cosine, out=self._even)
        np.multiply(radius, angle, out=self._odd)
        self._check_last_pair(math.sqrt(abs(math.log(square))), turn)
        return self._normals

    def _check_last_pair(self, radius: float, turn: float) -> None:
        """Under a mode that only traces calls, torch computes nothing and raises no error."""
        expected = radius * math.cos(turn), radius * math.sin(turn)
        remedy = "draw noise outside of fake tensors, functionalize and other modes that trace calls"
        computed = all(map(_is_near, self._normals[-2:], expected))
        check.require(computed, "torch to compute logarithm, cosine and sine", "other values", remedy)


_is_near = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-9)


_FREE: Final[list[Buffers]] = []  # unused buffers; they carry no values from one draw to the next


@contextmanager
def _buffers() -> Iterator[Buffers]:
    """Buffers for one draw. A concurrent or nested draw, from a signal or a mode, gets others."""
    try:
        block = _FREE.pop()
    except IndexError:
        block = Buffers.of(BLOCK)
    try:
        yield block
    finally:
        _FREE.append(block)


def is_compiled() -> bool:
    """Whether the compiled twin does the work."""
    return compiled is not None


def add(key: bytes, first: int, values: Values, std: float, *, threads: int | None = None) -> None:
    """values += std * the normals from pair `first` on, in float64 and rounded once; an even number, contiguous.

    threads  on how many; None: on as many as torch uses
    """
    if compiled is None:
        _add(key, first, values, std)
    else:
        compiled.add(key, NORMALS, first, values, std, threads or torch.get_num_threads())


def begin(key: bytes, first: int, values: Floats, *, beside: bool) -> object:
    """Begin to write the normals from pair `first` on to `values`, beside other work or at `finish`; compiled only."""
    assert compiled is not None
    return compiled.begin(key, NORMALS, first, values, beside)


def finish(begun: object) -> None:
    """Write what `begin` has left."""
    assert compiled is not None
    compiled.finish(begun)


def _add(key: bytes, first: int, values: Values, std: float) -> None:
    source = cipher(key, NORMALS, first)
    with _buffers() as block:
        for start in range(0, len(values), BLOCK):
            part = values[start : start + BLOCK]
            add_scaled(part, block.first(len(part)).draw(source), std)


def add_scaled(values: Values, noise: Floats, std: float) -> None:
    """values += std * noise in float64, rounded once. The noise may be overwritten."""
    if compiled is not None and values.dtype == np.float32 and values.flags.c_contiguous:
        compiled.add_scaled(values, noise, std)  # type: ignore[arg-type]
        return
    noise *= std
    np.add(values, noise, out=values, casting="same_kind")


def transform(words: npt.NDArray[np.int64]) -> Floats:
    """The normals of given words, pair by pair; a multiple of 32 words."""
    if compiled is None:
        buffers = Buffers.of(len(words))
        buffers.words[:] = words
        return buffers.box_muller()
    made = np.empty(len(words))
    compiled.transform(words, made)
    return made
