"""Features of a column of text: a fixed hash of its words, or the vectors of a public sentence encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from discreet.data.features.sentences import MiniLM, SentenceEncoder
from discreet.data.features.store import stored
from discreet.data.schema import ENCODERS

_BYTES = 1024  # of a text that the sentence encoder is given, which reads 128 tokens of it


def encoded(encoder: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """[n, width] by the encoder of this name.

    Guarantee: the features of a text depend on that text and on public constants alone.
    """
    return _minilm(texts) if encoder == "minilm" else _hashed(texts)


def _hashed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=ENCODERS["words"], alternate_sign=False, norm="l2", dtype=np.float32)
    found: Any = hashing.transform(texts)
    return np.asarray(found.toarray(), np.float32)


def _minilm(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    rows = torch.zeros(len(texts), _BYTES, dtype=torch.uint8)
    for row, text in zip(rows, texts, strict=True):
        content = np.frombuffer(text.encode()[:_BYTES], np.uint8)
        row[: len(content)] = torch.from_numpy(content.copy())
    encoder = MiniLM(SentenceEncoder.minilm(length=MiniLM.length))
    return stored(encoder, rows).float().numpy()
