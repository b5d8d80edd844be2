"""The GGUF reader, on files written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from small_llama import floats, written

from discreet.core.check import Refused
from research.tasks.gguf import read_gguf


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


def test_settings_and_plain_tensors() -> None:
    values = np.arange(6.0).reshape(2, 3)
    halves = (1, (4,), np.arange(4).astype("<f2").tobytes())
    settings = {"a": 7, "b": 0.5, "c": "é", "d": ["x", "yz"]}
    held = read_gguf(written(settings, {"one": floats(values), "two": halves}))
    assert held.settings == settings
    assert np.array_equal(held.tensors["one"], values)
    assert np.array_equal(held.tensors["two"], np.arange(4))


def test_q4_1_is_scale_times_number_plus_offset() -> None:
    """Number i of the first sixteen lies in the low half of byte i, number 16 + i in its high half."""
    numbers = np.array([(3 * i + 1) % 16 for i in range(64)], np.uint8).reshape(2, 32)
    raw = b""
    for row, (scale, offset) in zip(numbers, ((0.5, -2.0), (0.25, 1.0)), strict=True):
        raw += half(scale) + half(offset) + (row[:16] | row[16:] << 4).tobytes()
    held = read_gguf(written({}, {"w": (3, (2, 32), raw)})).tensors["w"]
    assert np.array_equal(held[0], 0.5 * numbers[0] - 2)
    assert np.array_equal(held[1], 0.25 * numbers[1] + 1)


def test_q8_0_is_scale_times_signed_number() -> None:
    numbers = np.arange(-16, 16, dtype=np.int8)
    held = read_gguf(written({}, {"w": (8, (32,), half(0.125) + numbers.tobytes())})).tensors["w"]
    assert np.array_equal(held, 0.125 * numbers)


def test_the_next_tensor_begins_at_its_own_offset() -> None:
    tensors = {name: floats(np.full(size, size)) for name, size in (("a", 3), ("b", 5), ("c", 9))}
    held = read_gguf(written({}, tensors)).tensors
    assert {name: (len(values), set(values)) for name, values in held.items()} == {
        "a": (3, {3.0}),
        "b": (5, {5.0}),
        "c": (9, {9.0}),
    }


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"PK\x03\x04" + bytes(40), "GGUF file of version 2 or 3"),
        (written({}, {}, version=1), "version 1"),
        (written({}, {"w": (14, (256,), bytes(210))}), "type 14"),
    ],
)
def test_other_files_are_refused(content: bytes, match: str) -> None:
    with pytest.raises(Refused, match=match):
        read_gguf(content)
