"""Exact uniform integers from uniform words, by rejection of the biased residues."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


def below(words: Callable[[int], Words], bounds: Indices) -> Indices:
    """One exact uniform integer in [0, bound) for each bound; `words` draws that many new words."""
    limits = bounds.astype(np.uint64)
    out = np.zeros(len(bounds), dtype=np.uint64)
    missing = np.arange(len(bounds))
    while len(missing):
        drawn, limit = words(len(missing)), limits[missing]
        kept = unbiased(drawn, limit)
        out[missing[kept]] = drawn[kept] % limit[kept]
        missing = missing[~kept]
    return out.astype(np.int64)


def unbiased(words: Words, bound: Words) -> npt.NDArray[np.bool_]:
    """Which words are below the largest multiple of `bound` up to 2^64, so that w % bound is uniform."""
    top = np.uint64(2**64 - 1)
    beyond = (top % bound + np.uint64(1)) % bound  # 2^64 mod bound
    return words <= top - beyond
