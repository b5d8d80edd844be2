"""The generator of `on_device` as one Triton kernel: words, Box-Muller and sum in registers, one pass over memory.

Words, positions and formula are those of `chacha` and `on_device`. It needs Triton, which comes with torch for CUDA.
Tested in Triton's interpreter and compiled for CUDA, but not run on a GPU.
"""

# mypy: ignore-errors

import struct
from typing import Final

import torch
import triton
import triton.language as tl

_LANES: Final = 128  # cipher blocks of one program


@triton.jit
def _rotated(x, bits: tl.constexpr):
    return (x << bits) | (x >> (32 - bits))


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _real(low, high):
    """The signed 64-bit word with these halves, as float64."""
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64, bitcast=True).to(tl.float64)


@triton.jit
def _add_pair(out, place, count, std, low0, high0, low1, high1):
    u = tl.abs(_real(low0, high0) + 0.5) * 1.0842021724855044e-19  # 2^-63
    radius = tl.sqrt(tl.abs(-2.0 * tl.log(u)))
    angle = _real(low1, high1) * 3.4061215800865545e-19  # pi 2^-63
    even, odd = out + place, out + place + 1
    value = tl.load(even, mask=place < count, other=0.0).to(tl.float64) + std * (radius * tl.cos(angle))
    tl.store(even, value.to(out.dtype.element_ty), mask=place < count)
    value = tl.load(odd, mask=place + 1 < count, other=0.0).to(tl.float64) + std * (radius * tl.sin(angle))
    tl.store(odd, value.to(out.dtype.element_ty), mask=place + 1 < count)


@triton.jit
def _add(out, count, std_bits, first, k0, k1, k2, k3, k4, k5, k6, k7, LANES: tl.constexpr):
    """out += std * normals. Numbers come as 64-bit integers: Triton passes floats in single precision."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    none = tl.zeros([LANES], dtype=tl.int64)
    std = (none + std_bits).to(tl.float64, bitcast=True)
    counter = lane + first
    s4, s5 = (none + k0).to(tl.uint32), (none + k1).to(tl.uint32)
    s6, s7 = (none + k2).to(tl.uint32), (none + k3).to(tl.uint32)
    s8, s9 = (none + k4).to(tl.uint32), (none + k5).to(tl.uint32)
    s10, s11 = (none + k6).to(tl.uint32), (none + k7).to(tl.uint32)
    s0, s1 = (none + 0x61707865).to(tl.uint32), (none + 0x3320646E).to(tl.uint32)
    s2, s3 = (none + 0x79622D32).to(tl.uint32), (none + 0x6B206574).to(tl.uint32)
    s12, s13 = (counter & 0xFFFFFFFF).to(tl.uint32), ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    s14 = none.to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, s14, s14
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    place = lane * 8
    _add_pair(out, place, count, std, x0 + s0, x1 + s1, x2 + s2, x3 + s3)
    _add_pair(out, place + 2, count, std, x4 + s4, x5 + s5, x6 + s6, x7 + s7)
    _add_pair(out, place + 4, count, std, x8 + s8, x9 + s9, x10 + s10, x11 + s11)
    _add_pair(out, place + 6, count, std, x12 + s12, x13 + s13, x14 + s14, x15 + s14)


def add_(key: bytes, first: int, flat: torch.Tensor, std: float) -> None:
    """flat += std * the normals from block `first` on, in float64 and rounded once; `flat` is contiguous."""
    (bits,) = struct.unpack("<q", struct.pack("<d", std))
    (start,) = struct.unpack("<q", struct.pack("<Q", first % 2**64))
    programs = -(-flat.numel() // (8 * _LANES))
    if programs:
        _add[(programs,)](flat, flat.numel(), bits, start, *struct.unpack("<8I", key), LANES=_LANES)
