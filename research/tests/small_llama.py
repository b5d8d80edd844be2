"""A GGUF file of a tiny random Llama with a byte vocabulary, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from research.tasks.bytepairs import _NAMES
from research.tasks.gguf import read_gguf
from research.tasks.smollm2 import SmolLM2

WIDTH, INNER, BLOCKS, HEADS, SHARED = 16, 24, 3, 4, 2
MERGES = ("Ġ t", "Ġt h", "Ġth e", "a t")
TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_NAMES, *(m.replace(" ", "") for m in MERGES))

Tensors = Mapping[str, tuple[int, tuple[int, ...], bytes]]
"""Type, shape (outermost axis first) and raw bytes, by name."""


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _setting(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))


def written(settings: Mapping[str, Any], tensors: Tensors, *, version: int = 3) -> bytes:
    """The bytes of a GGUF file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(settings))
    head += b"".join(_string(name) + _setting(value) for name, value in settings.items())
    body = b""
    for name, (kind, shape, raw) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += _string(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, len(body))
        body += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + body


def floats(values: npt.NDArray[Any]) -> tuple[int, tuple[int, ...], bytes]:
    return 0, values.shape, values.astype("<f4").tobytes()


def content(seed: int = 0) -> bytes:
    """A whole tiny model."""
    draw = np.random.default_rng(seed).normal
    shared = WIDTH // HEADS * SHARED
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (shared, WIDTH),
        "attn_v": (shared, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    tensors = {
        "token_embd.weight": floats(draw(size=(len(TOKENS), WIDTH))),
        "output_norm.weight": floats(1 + draw(size=WIDTH) / 10),
    }
    for block in range(BLOCKS):
        for name, shape in shapes.items():
            tensors[f"blk.{block}.{name}.weight"] = floats(draw(size=shape) / shape[1] ** 0.5)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{block}.{name}.weight"] = floats(1 + draw(size=WIDTH) / 10)
    settings = {
        "general.architecture": "llama",
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.block_count": BLOCKS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": SHARED,
        "llama.rope.freq_base": 100.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
    }
    return written(settings, tensors)


def speaker(seed: int = 0) -> SmolLM2:
    """The tiny model as the tasks use it."""
    return SmolLM2(read_gguf(content(seed)), vocabulary=len(TOKENS))
