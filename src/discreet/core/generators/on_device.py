"""Standard normals where a tensor lives: Box-Muller in float64 on the words of ChaCha20.

The formula is that of `core/normals.py`; the words are those of another cipher under a key of their own. Values agree
between devices to the last bits: a device rounds logarithm, cosine and sine in its own way.
"""

import functools
import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from discreet.core import check
from discreet.core.generators import chacha

CHUNK: Final = 1 << 18  # blocks at a time: about 80 MB of working memory
WITHOUT_DOUBLE: Final = frozenset({"mps"})  # devices that cannot compute in float64


def blocks_for(count: int) -> int:
    """How many cipher blocks `count` normals take."""
    return -(-count // chacha.BLOCK_WORDS)


def add_(key: bytes, first: int, flat: Tensor, std: float) -> None:
    """flat += std * the normals from block `first` on, in float64 and rounded once."""
    fused = _fused(flat.device) if flat.device.type == "cuda" else None
    (fused or _add_)(key, first, flat, std)


@functools.cache
def _fused(device: torch.device) -> Callable[[bytes, int, Tensor, float], None] | None:
    """The Triton kernel, if Triton is installed, after one comparison with the tensor operations on this device."""
    try:
        from discreet.core.generators import triton_normals
    except ImportError:
        return None
    ours, theirs = torch.zeros(2, 4096, dtype=torch.float64, device=device)
    _add_(bytes(range(32)), 2**32 - 100, ours, 0.7)
    triton_normals.add_(bytes(range(32)), 2**32 - 100, theirs, 0.7)
    remedy = "report it with the versions of torch and Triton; uninstall Triton to use tensor operations"
    same = torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    check.require(same, "the same noise from Triton and tensor operations", "other noise", remedy)
    return triton_normals.add_


def _add_(key: bytes, first: int, flat: Tensor, std: float) -> None:
    for start in range(0, len(flat), chacha.BLOCK_WORDS * CHUNK):
        part = flat[start : start + chacha.BLOCK_WORDS * CHUNK]
        words = chacha.words(key, first + start // chacha.BLOCK_WORDS, blocks_for(len(part)), device=flat.device)
        noise = box_muller(words.flatten())[: len(part)]
        part.copy_(noise.mul_(std).add_(part))


def box_muller(words: Tensor) -> Tensor:
    """Words to standard normals, pair by pair.

    u = |w0 + 1/2| / 2^63 in [2^-64, 1],  r = sqrt(-2 ln u) in [0, 9.42],  a = pi w1 / 2^63
    normals[2j] = r cos a,  normals[2j + 1] = r sin a

    Guarantee: u is never 0, so every normal is finite; a pair depends on its own two words alone.
    """
    first, second = words.view(-1, 2).to(torch.float64).unbind(1)
    radius = first.add(0.5).abs_().mul_(2.0**-63).log_().mul_(-2.0).abs_().sqrt_()
    angle = second.mul(math.pi * 2.0**-63)
    return torch.stack((angle.cos().mul_(radius), angle.sin_().mul_(radius)), 1).flatten()
