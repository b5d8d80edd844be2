"""Normals rounded to whole numbers, with exactly the probabilities of real numbers.

A floating-point normal decides the rounding unless it lies next to a boundary between two whole numbers. There (about
one value in 10^8 at a scale of 10^6) the words of its pair get further random bits, and interval arithmetic, until the
rounding is certain. So the result is that of infinitely many random bits and exact arithmetic.

Running time depends on the values, though not on the data to which they are added.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from discreet.core import check, normals
from discreet.core.streams import Indices, Stream

_CHUNK: Final = 1 << 16
_GROUP: Final = 32  # the compiled transform takes multiples of this
MOST: Final = 2.0**40  # the largest scale: float64 holds the values, and their error stays far below 1


def rounded_normals(stream: Stream, count: int, scale: float) -> Indices:
    """`count` independent values of round(scale * N(0, 1))."""
    check.not_negative("scale is the standard deviation in steps of the grid", scale=scale)
    check.require(scale <= MOST, f"a scale of at most {MOST:g}", scale, "choose a coarser grid")
    out = np.empty(count, dtype=np.int64)
    for start in range(0, count, _CHUNK):
        part = out[start : start + _CHUNK]
        words = stream.uniform64(-(-len(part) // _GROUP) * _GROUP).view(np.int64)
        part[:] = _rounded(stream, words, scale)[: len(part)]
    return out


def _rounded(stream: Stream, words: npt.NDArray[np.int64], scale: float) -> Indices:
    values = normals.transform(words)
    unsure = scale * _errors(values)
    values *= scale
    whole = np.rint(values)
    unsure += np.abs(values) * 2.0**-52  # the product was rounded
    values -= whole
    near = np.abs(values, out=values) + unsure >= 0.5
    rounded = whole.astype(np.int64)
    for pair in np.unique(np.flatnonzero(near) // 2).tolist():
        rounded[2 * pair : 2 * pair + 2] = _resolved(stream, int(words[2 * pair]), int(words[2 * pair + 1]), scale)
    return rounded


def _errors(values: normals.Floats) -> normals.Floats:
    """Bounds on the distance of the floating-point normals to all real normals that begin with the same words.

    With r the radius of a pair: the formula is computed to 2^-49 (r + 1/r), which includes a word rounded to 53 bits
    (u is off by 2^-53 u, so r by 2^-53 / r); the bits behind the word move u by 2^-63, so r by 2^-63 / (u r), where
    u = e^(-r^2/2).
    """
    squares = np.square(values).reshape(-1, 2).sum(1)
    radius = np.sqrt(squares)
    with np.errstate(divide="ignore"):
        bounds = 2.0**-49 * (radius + 1 / radius) + 2.0**-62 * np.exp(squares / 2) / radius
    return np.repeat(bounds, 2)


def _resolved(stream: Stream, first: int, second: int, scale: float) -> tuple[int, int]:
    """Both roundings of a pair, from as many further bits as they need.

    The pair is r cos a, r sin a of the real numbers u = |first + s| / 2^63 and a = pi (second + t) / 2^63, where s and
    t are uniform in [0, 1) and known to `bits` bits.
    """
    from mpmath.ctx_iv import MPIntervalContext  # heavy, and hardly ever needed

    iv, bits, s, t = MPIntervalContext(), 0, 0, 0  # a context of our own: precision is a setting of the context
    while True:
        more = stream.uniform64(2)
        bits, s, t = bits + 64, s << 64 | int(more[0]), t << 64 | int(more[1])
        iv.prec = 256 + 2 * bits
        u = abs(first + iv.mpf([s, s + 1]) / 2**bits) / 2**63
        if u.a <= 0:  # the first bits are all zero: the radius is not bounded yet
            continue
        angle = iv.pi * (second + iv.mpf([t, t + 1]) / 2**bits) / 2**63
        radius = iv.sqrt(abs(-2 * iv.log(u))) * scale
        low_high = [_whole(radius * iv.cos(angle)), _whole(radius * iv.sin(angle))]
        if all(low == high for low, high in low_high):
            return low_high[0][0], low_high[1][0]


def _whole(interval: Any) -> tuple[int, int]:
    """Both ends, rounded to the nearest whole number."""
    from mpmath.libmp import from_int, mpf_add, mpf_shift, to_int

    low, high = ((mpf_add(mpf_shift(end, 1), from_int(1))) for end in interval._mpi_)  # 2 x + 1, exact
    return to_int(low, "f") // 2, to_int(high, "f") // 2  # floor(floor(2 x + 1) / 2) = floor(x + 1/2)
