"""ChaCha20 in integer tensor operations: the same words on every device, computed where they are needed.

A device has no AES instructions, but adds, shifts and xors integers. Nothing is copied from or to the CPU, and no
operation depends on a value, so the time reveals nothing.

    x_4B   four rows of the 4 x 4 state at a time, for B blocks
"""

import struct
from typing import Final

import torch
from torch import Tensor

KEY_BYTES: Final = 32
BLOCK_WORDS: Final = 8  # 64-bit words in a block
_CONSTANTS: Final = struct.unpack("<4I", b"expand 32-byte k")
_DOUBLE_ROUNDS: Final = 10


def words(key: bytes, first: int, blocks: int, *, device: torch.device | str, nonce: int = 0) -> Tensor:
    """The key stream from block `first` on, as 64-bit words [blocks, 8].

    RFC 8439 with a counter of 64 bits: its upper half takes the place of the first word of the RFC's nonce.
    """
    low, high = _counters(first, blocks, device)
    start: list[int | Tensor] = [*_CONSTANTS, *struct.unpack("<8I", key), low, high, *_halves(nonce)]
    state = torch.empty(16, blocks, dtype=torch.int32, device=device)
    for row, value in zip(state, start, strict=True):
        if isinstance(value, Tensor):
            row.copy_(value)
        else:
            row.fill_(_signed(value))
    mixed = state.clone()
    a_4B, b_4B, c_4B, d_4B = mixed.split(4)
    for _ in range(_DOUBLE_ROUNDS):
        _quarter_rounds(a_4B, b_4B, c_4B, d_4B)
        b_4B, c_4B, d_4B = b_4B.roll(-1, 0), c_4B.roll(-2, 0), d_4B.roll(-3, 0)  # the diagonals become columns
        _quarter_rounds(a_4B, b_4B, c_4B, d_4B)
        b_4B, c_4B, d_4B = b_4B.roll(1, 0), c_4B.roll(2, 0), d_4B.roll(3, 0)
    state += torch.cat([a_4B, b_4B, c_4B, d_4B])
    return state.t().flatten().view(torch.int64).view(blocks, BLOCK_WORDS)


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """One quarter round on each column, in place. Sums of 32-bit integers wrap around."""
    for added, turned, bits in ((a, d, 16), (c, b, 12), (a, d, 8), (c, b, 7)):
        added += b if added is a else d
        turned ^= added
        low = turned >> (32 - bits)
        low &= (1 << bits) - 1  # the shift is arithmetic
        turned <<= bits
        turned |= low


def _counters(first: int, blocks: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """The halves of first .. first+blocks-1 modulo 2^64."""
    counters = torch.arange(blocks, dtype=torch.int64, device=device)
    counters += _signed(first % 2**64, bits=64)
    return counters.to(torch.int32), (counters >> 32).to(torch.int32)


def _halves(value: int) -> tuple[int, int]:
    return value & 0xFFFFFFFF, value >> 32


def _signed(value: int, *, bits: int = 32) -> int:
    """The signed integer with the same bits, because torch's unsigned ones have few operations."""
    return value - 2**bits if value >> (bits - 1) else value
