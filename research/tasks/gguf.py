"""The GGUF container of language models: settings, and tensors that are restored to float32.

Little endian; a header, named settings, a table of tensors, then their numbers. Whole-number blocks of 32 hold a
scale and, in Q4_1, an offset: value = scale * number + offset.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from discreet.core.check import refuse, require

Floats = npt.NDArray[np.float32]

_BLOCK: Final = 32
_ALIGNMENT: Final = 32
_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@final
@dataclass(frozen=True)
class Gguf:
    """Settings by name, and tensors by name, each [out, in] as torch has them."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, Floats]


def read_gguf(content: bytes) -> Gguf:
    """The settings and tensors of a file of version 2 or 3 with F32, F16, Q4_1 and Q8_0 tensors."""
    magic, version = content[:4], int.from_bytes(content[4:8], "little")
    require(
        magic == b"GGUF" and version in (2, 3),
        "a GGUF file of version 2 or 3",
        f"{magic!r}, version {version}",
        "use the published file",
    )
    cursor = _Cursor(content, 8)
    tensors, settings = cursor.number("Q"), cursor.number("Q")
    held = {cursor.string(): cursor.value(cursor.number("I")) for _ in range(settings)}
    table = [cursor.tensor() for _ in range(tensors)]
    align = int(held.get("general.alignment", _ALIGNMENT))
    start = -(-cursor.at // align) * align
    return Gguf(
        held, {name: _tensor(content, shape, kind, start + offset) for name, shape, kind, offset in table}
    )


@final
class _Cursor:
    """A place in the file that moves on with every value."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self.at = content, at

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._content, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        size = self.number("Q")
        self.at += size
        return self._content[self.at - size : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(count)]
        if kind not in _NUMBERS:
            refuse("a setting of a known type", f"type {kind}", "use the published file")
        return self.number(_NUMBERS[kind])

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (outermost axis first), type and offset."""
        name, axes = self.string(), self.number("I")
        shape = tuple(self.number("Q") for _ in range(axes))[::-1]
        return name, shape, self.number("I"), self.number("Q")


def _tensor(content: bytes, shape: tuple[int, ...], kind: int, at: int) -> Floats:
    if kind not in _KINDS:
        refuse("a tensor of type F32, F16, Q4_1 or Q8_0", f"type {kind}", "use the published file")
    per_unit, width, restore = _KINDS[kind]
    units = math.prod(shape) // per_unit
    raw = np.frombuffer(content, np.uint8, units * width, at).reshape(units, width)
    return restore(raw).reshape(shape)


Raw = npt.NDArray[np.uint8]


def _plain(dtype: str) -> Callable[[Raw], Floats]:
    return lambda raw: raw.view(dtype).astype(np.float32)


def _q4_1(raw: Raw) -> Floats:
    """[n, 2 + 2 + 16]: scale, offset, and two numbers a byte, the first sixteen in the low halves."""
    scale, offset = (raw[:, at : at + 2].copy().view("<f2").astype(np.float32) for at in (0, 2))
    numbers = np.concatenate((raw[:, 4:] & 15, raw[:, 4:] >> 4), axis=1).astype(np.float32)
    return scale * numbers + offset


def _q8_0(raw: Raw) -> Floats:
    """[n, 2 + 32]: scale, and signed bytes."""
    scale = raw[:, :2].copy().view("<f2").astype(np.float32)
    return scale * raw[:, 2:].copy().view(np.int8).astype(np.float32)


# type: (values in a unit, bytes of a unit, how they are restored)
_KINDS: Final[dict[int, tuple[int, int, Callable[[Raw], Floats]]]] = {
    0: (1, 4, _plain("<f4")),
    1: (1, 2, _plain("<f2")),
    3: (_BLOCK, 20, _q4_1),
    8: (_BLOCK, 34, _q8_0),
}
